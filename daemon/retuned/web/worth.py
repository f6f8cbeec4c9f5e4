"""What a swap is worth, in words: kernel time, GPU-hours and money, each with its bounds. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from retuned.report import words
from retuned.stages.proposal import Proposal
from retuned.stages.watch import Hours
from retuned.web.records import CostBasis

HOURS_PER_MONTH = 730.0


def saving_of(proposal: Proposal) -> Hours:
    """Return the share of kernel time that a swap saves, by each bound of its speedup.

    Examples
    --------
    A kernel with half of the time, twice as fast, saves a quarter.
    """
    speedup, share = proposal.speedup, proposal.share
    low, middle, high = (
        share * (1.0 - 1.0 / max(each, 1.0))
        for each in (speedup.lower, speedup.point, speedup.upper)
    )
    return Hours(lower=low, point=middle, upper=high)


def monthly_hours(proposal: Proposal, fleet: CostBasis) -> Hours | None:
    """Return GPU-hours a month that a swap saves; None where nobody knows how busy the GPU is."""
    if fleet.busy_ratio is None:
        return None
    whole = fleet.gpus * HOURS_PER_MONTH * min(max(fleet.busy_ratio, 0.0), 1.0)
    share = saving_of(proposal)
    return Hours(lower=whole * share.lower, point=whole * share.point, upper=whole * share.upper)


def lead_of(proposal: Proposal, fleet: CostBasis) -> str:
    """Return the sentence under the headline."""
    hours = monthly_hours(proposal, fleet)
    saved = f"Saves at least {proposal.expected_saving:.2%} of kernel time"
    touches = f"it touches {proposal.share:.1%} of it, for {proposal.guard}"
    if hours is None:
        return f"{saved}; {touches}."
    return f"{saved}, about {words.significant(hours.lower)} GPU-hours a month; {touches}."


def worth_of(proposal: Proposal, fleet: CostBasis) -> Iterator[tuple[str, str]]:
    """Yield what it saves, and how that was reckoned."""
    share, hours = saving_of(proposal), monthly_hours(proposal, fleet)
    yield "kernel time", f"{share.point:.2%} less ({share.lower:.2%} to {share.upper:.2%})"
    if hours is None:
        yield "GPU-hours", "not known: no profile says how busy the GPU is"
        return
    said = " to ".join(words.significant(each) for each in (hours.lower, hours.upper))
    yield "GPU-hours", f"{words.significant(hours.point)} a month ({said})"
    price = fleet.usd_per_gpu_hour
    if price is not None:
        low, high = hours.lower * price, hours.upper * price
        yield (
            "money",
            f"${hours.point * price:,.0f} a month (${low:,.0f} to ${high:,.0f}) at "
            f"${price:g} an hour",
        )
    busy = fleet.busy_ratio or 0.0
    yield (
        "reckoned with",
        f"{words.plural(fleet.gpus, 'GPU')}, kernels running {busy:.1%} of the time, "
        f"{HOURS_PER_MONTH:g} hours a month",
    )

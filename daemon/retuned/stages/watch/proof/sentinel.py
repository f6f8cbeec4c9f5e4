"""Sentinel of a swap that was kept: when its next pair runs. Pure.

Time is divided into periods, and one pair of long blocks runs at a random moment of each, so that
no periodic work of the server meets the same block each time. The moment is drawn and stored before
its period begins. The pairs of a day are one proof; only harm follows from it.
"""

from __future__ import annotations

from enum import StrEnum

from retuned.contract import Record
from retuned.stages.gate import LiveProof
from retuned.stages.watch.proof.design import Coin
from retuned.stages.watch.proof.records import ProofReport, ProofSettings, settings_of

DAY_S = 24 * 3600.0
"""The pairs of so many seconds are one proof."""
_BITS = 53


class SentinelAction(StrEnum):
    """What to do now."""

    WAIT = "wait"
    """The moment of the pair has not come."""
    MEASURE = "measure"
    """Run the pair, then draw the moment of the next one."""
    DRAW = "draw"
    """The period ended without its pair; draw the moment of the next one."""


class SentinelPlan(Record):
    """The next pair. Times are seconds since the epoch."""

    day_began_s: float
    """Start of the day whose proof has the pair."""
    at_s: float
    """Drawn moment of the pair."""
    until_s: float
    """End of its period."""


def day_settings(rule: LiveProof) -> ProofSettings:
    """Return the settings of the proof of one day under a policy's rule."""
    return settings_of(rule).model_copy(update={"long_blocks": 0, "max_duration_s": DAY_S})


def period_s(settings: ProofSettings, *, share: float) -> float:
    """Return the length of a period, seconds: one long block in it is off.

    Examples
    --------
    >>> period_s(ProofSettings(), share=0.008)
    1250.0

    Raises
    ------
    ValueError
        If the share is not positive.
    """
    if share <= 0.0:
        raise ValueError(f"a sentinel needs a positive share of time, got {share}")
    return max(settings.long_block_s / share, 2.0 * settings.long_block_s)


def next_plan(
    last: SentinelPlan | None, *, settings: ProofSettings, share: float, coin: Coin, now_s: float
) -> SentinelPlan:
    """Draw the moment of the next pair; store the result before the period begins.

    Parameters
    ----------
    last
        The plan before; None for the first, whose period begins now.
    settings
        With the length of a long block.
    share
        Share of time in which the swap is off.
    coin
        Source of random bits.
    now_s
        Seconds since the epoch.
    """
    length_s = period_s(settings, share=share)
    starts_s = now_s
    if last is not None and now_s < last.until_s:
        starts_s = last.until_s
    part = coin.getrandbits(_BITS) / 2.0**_BITS
    day_s = now_s if last is None or is_over(last, now_s=now_s) else last.day_began_s
    return SentinelPlan(
        day_began_s=day_s,
        at_s=starts_s + part * (length_s - 2.0 * settings.long_block_s),
        until_s=starts_s + length_s,
    )


def is_over(plan: SentinelPlan, *, now_s: float) -> bool:
    """Return whether the day of a plan is over."""
    return now_s - plan.day_began_s >= DAY_S


def action_of(plan: SentinelPlan, *, now_s: float) -> SentinelAction:
    """Return what to do now.

    Examples
    --------
    >>> plan = SentinelPlan(day_began_s=0.0, at_s=300.0, until_s=1250.0)
    >>> [str(action_of(plan, now_s=now_s)) for now_s in (299.0, 300.0, 1250.0)]
    ['wait', 'measure', 'draw']
    """
    if now_s >= plan.until_s:
        return SentinelAction.DRAW
    return SentinelAction.MEASURE if now_s >= plan.at_s else SentinelAction.WAIT


def effect_changed(before: ProofReport, now: ProofReport) -> bool:
    """Return whether two proofs of a swap show effects that exclude each other.

    Examples
    --------
    >>> alone = ProofReport(verdict="helps", reason="faster", low=-0.05, high=-0.03)
    >>> beside = ProofReport(verdict="helps", reason="faster", low=-0.02, high=-0.01)
    >>> effect_changed(alone, beside), effect_changed(alone, alone)
    (True, False)
    """
    if before.low is None or before.high is None or now.low is None or now.high is None:
        return False
    return now.low > before.high or now.high < before.low

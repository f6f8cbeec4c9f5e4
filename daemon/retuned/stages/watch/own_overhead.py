"""What Retuned itself costs a server: what a measurement says, and what follows. Pure.

The server's wrappers leave and return in turns of a few steps, and a live proof asks one question:
are steps longer by one per cent with them, or by less? Where they are, launches are counted in a
share of the time only, so that what is left of the cost is below the budget.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import timedelta
from enum import StrEnum

from pydantic import AwareDatetime, Field

from retuned.contract import Record
from retuned.stages.gate import (
    KernelTuningPolicy,
    LiveProof,
    LiveProofMode,
    OwnOverhead,
    selects_server,
)
from retuned.stages.watch.proof import ProofReport, ProofSettings, Verdict

BUDGET = 0.01
"""Most that Retuned may add to the time of a step, ratio."""
SHARES = (1.0, 0.25, 0.1, 0.03)
"""Shares of the time in which launches may be counted."""
_LEAST_UNPROVEN = 0.1
"""Least share without a proof of a cost: wide intervals would otherwise end all counting."""
AFTER = timedelta(minutes=10)
"""From the begin of the daemon to the first measurement."""
EVERY = timedelta(days=1)
AGAIN = timedelta(hours=1)
"""After a measurement without an answer: the server may have had no traffic."""
SETTINGS = ProofSettings(
    mode="observe",
    ask="ceiling",
    min_effect=math.log1p(BUDGET),
    turn_steps=4,
    long_blocks=0,
    max_duration_s=300.0,
)


class OverheadOutcome(StrEnum):
    WITHIN_BUDGET = "within-budget"
    """Steps are longer by less than the budget."""
    LOWERED = "lowered"
    """They are longer; launches are counted in a share of the time since."""
    OVER_BUDGET = "over-budget"
    """They are longer, and the smallest share is still too much."""
    UNKNOWN = "unknown"
    """There was no verdict, and the interval is too wide to follow it."""


class OverheadRecord(Record):
    """The last measurement of a server."""

    at: AwareDatetime
    engine: str = Field(default="", max_length=200)
    """Name and version of the server's engine."""
    outcome: OverheadOutcome
    share: float = Field(default=1.0, gt=0.0, le=1.0)
    """Share of the time in which launches are counted from then on."""
    report: ProofReport

    @property
    def sentence(self) -> str:
        """What was found and done, as one sentence."""
        cost = _words(self.report)
        match self.outcome:
            case OverheadOutcome.WITHIN_BUDGET:
                return f"Retuned adds {cost} to a step"
            case OverheadOutcome.UNKNOWN:
                return f"what Retuned adds to a step is not known ({self.report.reason}): {cost}"
            case _:
                done = f"launches are counted in {self.share:.0%} of the time"
                left = " and that is still too much" * (self.outcome is OverheadOutcome.OVER_BUDGET)
                return f"Retuned added {cost} to a step with all launches counted; {done}{left}"


def judged(
    report: ProofReport, *, share_before: float, at: AwareDatetime, engine: str = ""
) -> OverheadRecord:
    """Return what follows from a measurement.

    Parameters
    ----------
    report
        Effect of the wrappers on the time of a step; positive is longer.
    share_before
        Share of the last measurement, 1 without one; an unknown cost does not change it.
    """
    share = share_for(report)
    fits = share * _most(report) < BUDGET
    if report.verdict is Verdict.NO_MEASURABLE_EFFECT:
        outcome, share = OverheadOutcome.WITHIN_BUDGET, 1.0
    elif report.verdict is Verdict.HARMS:
        outcome = OverheadOutcome.LOWERED if fits else OverheadOutcome.OVER_BUDGET
    elif report.high is not None and fits and share >= _LEAST_UNPROVEN:
        outcome = OverheadOutcome.LOWERED  # it may be too much, and so it cannot be
    else:
        outcome, share = OverheadOutcome.UNKNOWN, share_before
    return OverheadRecord(at=at, engine=engine, outcome=outcome, share=share, report=report)


def share_for(report: ProofReport) -> float:
    """Return the largest share whose cost is below the budget, the smallest if none is."""
    most = _most(report)
    return next((share for share in SHARES[1:] if share * most < BUDGET), SHARES[-1])


def _most(report: ProofReport) -> float:
    """Return the most that a step may be longer, ratio minus one."""
    if report.high is not None:
        return math.expm1(report.high)
    return math.expm1(2.0 * max(report.effect or 0.0, SETTINGS.min_effect))  # no upper end yet


def is_due(last: OverheadRecord | None, *, began_at: AwareDatetime, now: AwareDatetime) -> bool:
    """Whether it is time to measure: some time after the begin, then once a day.

    After a measurement without an answer it is time sooner.

    Parameters
    ----------
    began_at
        When the daemon first saw the steps of this server.
    """
    if now - began_at < AFTER:
        return False
    if last is None:
        return True
    return now - last.at >= (AGAIN if last.outcome is OverheadOutcome.UNKNOWN else EVERY)


def is_allowed(policies: Iterable[KernelTuningPolicy], labels: Mapping[str, str]) -> bool:
    """Whether the policies of a server let its wrappers leave for a measurement.

    One that selects it and says `ownOverhead: off` is enough to forbid it; so is `mode: off` in all
    of them. Without a policy the defaults hold.

    Parameters
    ----------
    labels
        Labels of the server, as in `policy_for`.
    """
    mine = [each.spec.live_proof for each in policies if selects_server(each, labels)]
    rules = mine or [LiveProof()]
    if any(rule.own_overhead is OwnOverhead.OFF for rule in rules):
        return False
    return any(rule.mode is not LiveProofMode.OFF for rule in rules)


def _words(report: ProofReport) -> str:
    if report.effect is None:
        return "an unknown time"
    low, high = report.low, report.high
    ends = [f"{100.0 * math.expm1(each):.2f}" for each in (low, high) if each is not None]
    interval = f" ({ends[0]} to {ends[1]} %)" if len(ends) == 2 else ""
    return f"{100.0 * math.expm1(report.effect):.2f} %{interval}"

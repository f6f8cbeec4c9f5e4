"""Attribution: whether a swap of Retuned is the cause of an alarm about kernel times. Pure.

An alarm reports that the same work takes another time. A swap that Retuned made may be the cause,
so each swap that could be is switched off and on in random pairs before the alarm names clocks,
driver or neighbours. The alarm waits for that, but not longer than `HOLD_S`.

    found = suspects(swaps, kernels=kernels_of_the_alarm, now_s=now)
    if found:
        state = AttributionState(began_s=now, suspects=found)
        while (suspect := state.next_suspect) is not None:
            state = state.after(suspect, report)     # of a proof with its swap off and on
    finding(state)                                   # what the alarm says
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import StrEnum

from pydantic import Field

from retuned.contract import Digest, Name, Record
from retuned.stages.gate import LiveProof
from retuned.stages.watch.proof import (
    ProofReport,
    ProofSettings,
    Verdict,
    percent_of,
    settings_of,
)

HOLD_S = 60.0
"""Longest time that an alarm waits for its attribution, seconds."""
TRY_S = 600.0
"""Longest time of an attribution, seconds; the alarm is sent long before."""
RECENT_S = 24 * 3600.0
"""A swap that is younger may be the cause of an alarm about any kernel, seconds."""
_PILOT_PAIRS = 10


class Suspect(Record):
    """A swap in force that may be the cause of an alarm."""

    proposal: str
    definition: Name
    artifact: Digest
    order: str
    """Id of its order."""
    since_s: float
    """When the order was committed, seconds since the epoch."""


class AttributionOutcome(StrEnum):
    """Stable codes for the history and for metrics."""

    TRYING = "trying"
    """Pairs are measured, or wait for another measurement."""
    SWAP = "swap"
    """Steps are slower with a swap: it is the cause."""
    NOT_SWAPS = "not-swaps"
    """No swap makes steps slower."""
    UNKNOWN = "unknown"
    """A swap could not be tried, or its pairs gave no verdict."""


class SuspectResult(Record):
    """What pairs showed of one suspect."""

    suspect: Suspect
    report: ProofReport | None = None
    """None if it was not tried."""
    reason: str
    """Of the report, or why it was not tried; a reason code."""
    withdraws: bool = False
    """Whether the policy rolls it back."""

    @property
    def is_cause(self) -> bool:
        """Whether steps are slower with the swap."""
        return self.report is not None and self.report.verdict is Verdict.HARMS

    @property
    def is_cleared(self) -> bool:
        """Whether the pairs show that the swap does not make steps slower."""
        cleared = (Verdict.HELPS, Verdict.NO_MEASURABLE_EFFECT)
        return self.report is not None and self.report.verdict in cleared


class AttributionState(Record):
    """All that an attribution has to remember. Store it after each change."""

    began_s: float
    """When the alarm was raised, seconds since the epoch."""
    suspects: tuple[Suspect, ...] = Field(min_length=1)
    """In the order in which they are tried."""
    results: tuple[SuspectResult, ...] = ()
    """Of the first suspects."""

    @property
    def next_suspect(self) -> Suspect | None:
        """Return the swap to try now; None if the attribution has ended."""
        if any(result.is_cause for result in self.results):
            return None  # the others are measured after its rollback, if the alarm returns
        left = self.suspects[len(self.results) :]
        return left[0] if left else None

    @property
    def outcome(self) -> AttributionOutcome:
        """Return what the results show so far."""
        if any(result.is_cause for result in self.results):
            return AttributionOutcome.SWAP
        if self.next_suspect is not None:
            return AttributionOutcome.TRYING
        cleared = all(result.is_cleared for result in self.results)
        return AttributionOutcome.NOT_SWAPS if cleared else AttributionOutcome.UNKNOWN

    def after(self, result: SuspectResult) -> AttributionState:
        """Return the state with the result of the suspect that was tried.

        Raises
        ------
        ValueError
            If it is not the next suspect's.
        """
        if result.suspect != self.next_suspect:
            raise ValueError(f"{result.suspect.proposal} is not the swap that is tried now")
        return self.model_copy(update={"results": (*self.results, result)})


def suspects(
    swaps: Sequence[Suspect], *, kernels: Collection[str], now_s: float
) -> tuple[Suspect, ...]:
    """Return the swaps that may be the cause, in the order in which to try them.

    Those of the alarm's kernels come first, whatever their age, then those of the last 24 hours,
    the newest first.

    Parameters
    ----------
    swaps
        All swaps in force.
    kernels
        Definitions of the kernels in the alarm.
    now_s
        Seconds since the epoch.
    """
    mine = [each for each in swaps if each.definition in kernels]
    recent = [e for e in swaps if e.definition not in kernels and now_s - e.since_s < RECENT_S]
    newest = (sorted(part, key=lambda each: -each.since_s) for part in (mine, recent))
    return tuple(each for part in newest for each in part)


def trial_settings(rule: LiveProof, *, left_s: float = TRY_S) -> ProofSettings:
    """Return the settings of the pairs of one suspect: short ones, and a short pilot.

    Parameters
    ----------
    rule
        The policy's rule.
    left_s
        Time that is left for the attribution, seconds.
    """
    return settings_of(rule).model_copy(
        update={
            "long_blocks": 0,
            "pilot_pairs": _PILOT_PAIRS,
            "max_duration_s": max(left_s, HOLD_S),
        }
    )


def must_send(state: AttributionState, *, now_s: float) -> bool:
    """Return whether the alarm must be sent now: it has its answer, or it waited long enough."""
    return state.outcome is not AttributionOutcome.TRYING or now_s - state.began_s >= HOLD_S


def is_too_late(state: AttributionState, *, now_s: float) -> bool:
    """Return whether a suspect that could not be tried until now is left untried."""
    return now_s - state.began_s >= TRY_S


def finding(state: AttributionState, *, command: str = "") -> str:
    """Return what the alarm says of the swaps, as a part of its sentence.

    Parameters
    ----------
    command
        Rolls the swap back that is the cause; only read where a person has to.

    Examples
    --------
    >>> suspect = Suspect(
    ...     proposal="p", definition="gemm", artifact="sha256:" + "a" * 64, order="o", since_s=0.0
    ... )
    >>> state = AttributionState(began_s=0.0, suspects=(suspect,))
    >>> finding(state)
    'whether the swap of gemm is the cause is being measured'
    >>> finding(state.after(SuspectResult(suspect=suspect, reason="not-switchable")))
    'whether the swap of gemm is the cause is unknown (not-switchable), so check this, clocks, \
driver and neighbours'
    """
    match state.outcome:
        case AttributionOutcome.SWAP:
            cause = next(result for result in state.results if result.is_cause)
            return _blamed(cause, command=command)
        case AttributionOutcome.TRYING:
            names = _names([e.definition for e in state.suspects[len(state.results) :]])
            return f"whether {names} the cause is being measured"
        case AttributionOutcome.NOT_SWAPS:
            tried = "; ".join(f"{r.suspect.definition}: {_effect(r)}" for r in state.results)
            return (
                f"Retuned's swaps were tried off and are not the cause ({tried}), so check "
                "clocks, driver and neighbours"
            )
        case AttributionOutcome.UNKNOWN:
            left = [result for result in state.results if not result.is_cleared]
            names = _names([result.suspect.definition for result in left])
            reasons = ", ".join(dict.fromkeys(result.reason for result in left))
            return (
                f"whether {names} the cause is unknown ({reasons}), so check this, clocks, driver "
                "and neighbours"
            )


def _blamed(result: SuspectResult, *, command: str) -> str:
    assert result.report is not None, "pairs showed it"
    then = "it rolls back" if result.withdraws else f"roll it back with `{command}`"
    return f"the swap of {result.suspect.definition} is the cause: {_effect(result)}; {then}"


def _effect(result: SuspectResult) -> str:
    report = result.report
    if report is None or report.effect is None:
        return str(result.reason)
    percent = percent_of(report.effect)
    side = "longer" if percent > 0.0 else "less time"
    return f"steps take {abs(percent):.1f} % {side} with it"


def _names(definitions: Sequence[str]) -> str:
    if len(definitions) == 1:
        return f"the swap of {definitions[0]} is"
    return f"one of the swaps of {', '.join(definitions)} is"

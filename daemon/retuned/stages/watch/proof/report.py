"""The report of a proof, and what it asks for. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum

from retuned.stages.gate import LiveProof
from retuned.stages.watch.proof.account import settle_account
from retuned.stages.watch.proof.evidence import interval, location, scale_of, visible_effect
from retuned.stages.watch.proof.records import (
    EvidenceLogs,
    PairKind,
    PairResult,
    ProofReason,
    ProofReport,
    ProofSettings,
    StepAccount,
    Verdict,
    settings_of,
)
from retuned.stages.watch.proof.state import ProofState

_LEAST_LONG_FOR_SCALE = 4
LEAST_LONG_FOR_SIZE = 4
_LEAST_FOR_VISIBLE = 4


class Consequence(StrEnum):
    """What a report asks for."""

    KEEP = "keep"
    WITHDRAW = "withdraw"
    PARK = "park"
    """Off, and a new proof later."""


def consequence(
    report: ProofReport, settings: ProofSettings, *, attempts: int = 1, kept: bool = False
) -> Consequence:
    """Return what a report asks for under these settings.

    Parameters
    ----------
    report
        The report of the proof.
    settings
        Its settings.
    attempts
        Proofs of this swap so far, this one included; a parked swap expires after the retries.
    kept
        Whether the swap was kept before; only harm withdraws it then.
    """
    if settings.mode != "required":
        return Consequence.KEEP
    if kept and report.verdict is not Verdict.HARMS:
        return Consequence.KEEP
    match report.verdict:
        case Verdict.HELPS:
            return Consequence.KEEP
        case Verdict.NO_MEASURABLE_EFFECT:
            saves = report.evidence.busy_faster >= settings.log_bound
            keep = settings.on_no_effect == "keep" and saves
            return Consequence.KEEP if keep else Consequence.WITHDRAW
        case Verdict.TOO_LITTLE_TRAFFIC:
            wanted = Consequence(settings.on_too_little_traffic)
            expired = wanted is Consequence.PARK and attempts > settings.retries
            return Consequence.WITHDRAW if expired else wanted
        case Verdict.NOT_CONCLUDED:
            again = report.reason is ProofReason.INTERRUPTED and attempts <= settings.retries
            return Consequence.PARK if again else Consequence.WITHDRAW
        case Verdict.HARMS:
            return Consequence.WITHDRAW


def keeps(report: ProofReport, rule: LiveProof, *, kept: bool = False) -> bool:
    """Return whether a swap stays in force after this report; `kept` as for `consequence`."""
    return consequence(report, settings_of(rule), kept=kept) is Consequence.KEEP


def next_scale(state: ProofState) -> float:
    """Return the scale of the next pair, from sham and earlier pairs."""
    long = values(state.of(PairKind.LONG))
    if len(long) >= _LEAST_LONG_FOR_SCALE:
        return scale_of((), long)
    return scale_of(values(state.of(PairKind.SHAM)), values(state.of(PairKind.SHORT)))


def values(pairs: Sequence[PairResult]) -> list[float]:
    return [pair.d for pair in pairs if pair.d is not None]


def scales_of(pairs: Sequence[PairResult]) -> list[float]:
    return [pair.scale for pair in pairs if pair.scale is not None]


def total_effect(pairs: Sequence[PairResult]) -> float:
    """Return the plain log ratio of all normalised time, on over off."""
    on = sum(p.on.seconds for p in pairs) / sum(p.on.expected_s for p in pairs)
    off = sum(p.off.seconds for p in pairs) / sum(p.off.expected_s for p in pairs)
    return math.log(on / off)


def effect_so_far(state: ProofState) -> float | None:
    """Return the effect by the pairs until now, log ratio; None without pairs that count."""
    if state.report is not None:
        return state.report.effect
    sized = state.of(PairKind.LONG) or state.of(PairKind.SHORT)
    return location(values(sized), scales_of(sized)) if sized else None


def report_of(
    state: ProofState, verdict: Verdict, reason: ProofReason, *, at_s: float
) -> ProofReport:
    short, long = state.of(PairKind.SHORT), state.of(PairKind.LONG)
    sized = long if len(long) >= LEAST_LONG_FOR_SIZE else short
    effect = low = high = visible = None
    shown = sized or state.of(PairKind.SHAM)  # sham pairs have the same noise
    if len(shown) >= _LEAST_FOR_VISIBLE:
        visible = visible_effect(next_scale(state), len(shown))
    if sized:
        d, scales = values(sized), scales_of(sized)
        effect = location(d, scales)
        low, high = interval(d, scales, log_bound=state.settings.log_bound)
    real = [pair for pair in state.pairs if not pair.sham]
    since = state.pilot_ended_s
    return ProofReport(
        verdict=verdict,
        reason=reason,
        effect=effect,
        low=low,
        high=high,
        visible=visible,
        pairs=len(short) + len(long),
        void_pairs=sum(pair.void is not None for pair in real),
        seconds=0.0 if since is None else max(at_s - since, 0.0),
        exposed_s=sum(pair.on.wall_s for pair in real),
        evidence=_evidence(state),
        account=_account(state, short + long),
    )


def _evidence(state: ProofState) -> EvidenceLogs:
    capitals = state.capitals
    faster, slower = capitals.sides(long=bool(state.of(PairKind.LONG)))
    return EvidenceLogs(
        faster=faster,
        slower=slower,
        above_margin=capitals.above_margin.log_e,
        below_margin=capitals.below_margin.log_e,
        slow_steps=capitals.slow_steps.log_e,
        busy_faster=capitals.busy_faster.log_e,
    )


def _account(state: ProofState, pairs: Sequence[PairResult]) -> StepAccount:
    steps = sum(pair.on.steps + pair.off.steps for pair in pairs)
    seconds = sum(pair.on.expected_s + pair.off.expected_s for pair in pairs)
    least_s = state.settings.min_effect * seconds / steps if steps else 0.0
    return settle_account(
        pairs, kernels=state.kernels, least_s=least_s, in_graphs=state.pace.in_graphs > 0
    )

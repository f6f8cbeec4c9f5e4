"""How the evidence of a proof grew, pair by pair, for pictures and compact text. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from retuned.stages.watch.proof.evidence import Capitals, interval
from retuned.stages.watch.proof.records import PairKind, PairResult, Verdict
from retuned.stages.watch.proof.report import LEAST_LONG_FOR_SIZE, scales_of, values
from retuned.stages.watch.proof.state import ProofState

_MOST = 60
"""Points: an interval costs as much as all pairs before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoursePoint:
    """Evidence after a pair; logarithms of E-values."""

    pairs: int
    """Pairs that count so far, sham pairs not included; 0 before the first."""
    faster: float = 0.0
    slower: float = 0.0
    no_effect: float = 0.0
    """Against both: an effect of the smallest size that counts, or more, on either side."""
    low: float | None = None
    """Lower end of the interval so far, log ratio; None if it is open."""
    high: float | None = None

    def towards(self, verdict: Verdict) -> float:
        """Return the evidence for a verdict; for one without a side, the largest."""
        sides = {
            Verdict.HELPS: self.faster,
            Verdict.HARMS: self.slower,
            Verdict.NO_MEASURABLE_EFFECT: self.no_effect,
        }
        return sides.get(verdict, max(sides.values()))


def course(state: ProofState) -> tuple[CoursePoint, ...]:
    """Return the evidence before the first pair, after some pairs, and after the last."""
    pairs = [pair for pair in state.pairs if not pair.sham and pair.void is None]
    step = max(1, -(-len(pairs) // _MOST))
    capitals, margin = Capitals(), state.settings.min_effect
    points = [CoursePoint(pairs=0)]
    for count, pair in enumerate(pairs, start=1):
        assert pair.d is not None, "it counts"
        assert pair.scale is not None, "it counts"
        if pair.kind is PairKind.LONG:
            capitals = capitals.after_long(pair.d, scale=pair.scale)
        else:
            capitals = capitals.after_short(pair.d, scale=pair.scale, margin=margin)
        if count % step == 0 or count == len(pairs):
            bound = state.settings.log_bound
            points.append(_point(count, capitals, pairs[:count], log_bound=bound))
    return tuple(points)


def _point(
    count: int, capitals: Capitals, pairs: Sequence[PairResult], *, log_bound: float
) -> CoursePoint:
    long = [pair for pair in pairs if pair.kind is PairKind.LONG]
    short = [pair for pair in pairs if pair.kind is not PairKind.LONG]
    sized = long if len(long) >= LEAST_LONG_FOR_SIZE else short
    low, high = interval(values(sized), scales_of(sized), log_bound=log_bound)
    faster, slower = capitals.sides(long=bool(long))
    return CoursePoint(
        pairs=count,
        faster=faster,
        slower=slower,
        no_effect=min(capitals.above_margin.log_e, capitals.below_margin.log_e),
        low=low,
        high=high,
    )

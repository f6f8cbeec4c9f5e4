"""fast_p: the share of all problems that are solved correctly and faster than p. Pure.

The measure of the KernelBench paper: a problem without a correct kernel counts in the denominator
and never in the numerator, whatever the reason; fast_0 is the share of correct ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """What a score needs to know of one problem."""

    correct: bool
    """Whether its kernel passed all checks."""
    speedup: float | None = None
    """Baseline's time over the kernel's; None where nothing was timed."""


def fast(scores: Sequence[Score], p: float) -> float:
    """Return fast_p over all problems; 0 where there are none.

    Examples
    --------
    >>> found = [Score(correct=True, speedup=2.5), Score(correct=True, speedup=0.8),
    ...          Score(correct=False), Score(correct=True, speedup=1.0)]
    >>> fast(found, 0), fast(found, 1), fast(found, 2)
    (0.75, 0.25, 0.25)
    """
    if not scores:
        return 0.0
    return sum(_counts(score, p) for score in scores) / len(scores)


def table(scores: Sequence[Score], points: Iterable[float]) -> dict[str, float]:
    """Return fast_p by its name, such as ``fast_1``, in rising order of p.

    Examples
    --------
    >>> table([Score(correct=True, speedup=1.2)], [1.5, 0, 1])
    {'fast_0': 1.0, 'fast_1': 1.0, 'fast_1.5': 0.0}
    """
    return {f"fast_{p:g}": fast(scores, p) for p in sorted(set(points))}


def _counts(score: Score, p: float) -> bool:
    if not score.correct:
        return False
    return p <= 0.0 or (score.speedup is not None and score.speedup > p)

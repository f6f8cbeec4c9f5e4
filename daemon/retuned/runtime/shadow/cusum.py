"""CUSUM, one-sided: detects that numbers stay higher than before, without a limit for one.

``S = max(0, S + z - slack)`` over numbers in units of their spread; it alarms at `threshold`.
Mean and spread are learned over the first numbers and then frozen, because a reference that follows
a slow decay would never detect it. The rules below were chosen by the run lengths that
`retuned.stages.watch.run_length` computes. Pure; standard library only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CusumRule:
    slack: float
    """Rise that is not counted, in units of the spread."""
    threshold: float
    """Sum of counted rises that alarms."""
    clip: float
    """Maximum contribution of one number, in either direction."""
    warmup: int
    """Numbers from which mean and spread are learned; 0 uses 0 and 1."""
    least_spread: float
    """Lower limit of the spread, so that tiny changes of nearly constant numbers do not alarm."""


DECAY = CusumRule(slack=0.35, threshold=32.0, clip=4.0, warmup=100, least_spread=0.1)
"""For the log rms ratio, per shape bucket.

If the learned mean is off by a tenth of the spread, there are still more than 10^6 checks between
false alarms. A doubling is found within 200 checks even if single ratios scatter by a factor of e.
"""
PACE = CusumRule(slack=0.35, threshold=24.0, clip=1.0, warmup=0, least_spread=1.0)
"""For the signs of "clearly slower than the incumbent".

Signs need no assumption on the distribution, which the times of a busy machine do not meet.
"""


class Cusum:
    """The sum over one sequence of numbers.

    Examples
    --------
    >>> steady = Cusum(CusumRule(slack=0.5, threshold=3.0, clip=4.0, warmup=0, least_spread=1.0))
    >>> [steady.add(z) for z in (0.0, 2.0, 2.0, 2.0)]
    [False, False, True, True]
    """

    __slots__ = ("_rule", "_seen", "_square", "mean", "score", "spread")

    def __init__(self, rule: CusumRule) -> None:
        self._rule = rule
        self._seen = 0
        self._square = 0.0
        self.score = 0.0
        """The sum; alarms at the rule's threshold."""
        self.mean = 0.0
        self.spread = 1.0
        """The learned standard deviation, after the warm-up."""

    def add(self, number: float) -> bool:
        """Add one number; return whether the sum has reached the threshold.

        Raises
        ------
        ValueError
            If the number is not finite: that is a fault, which other code judges.
        """
        if not math.isfinite(number):
            raise ValueError(f"a course of numbers cannot hold {number}")
        rule = self._rule
        if self._seen < rule.warmup:
            self._learn(number)
            return False
        z = (number - self.mean) / self.spread
        z = max(-rule.clip, min(rule.clip, z))
        self.score = max(0.0, self.score + z - rule.slack)
        return self.score >= rule.threshold

    def _learn(self, number: float) -> None:
        self._seen += 1
        step = number - self.mean
        self.mean += step / self._seen
        self._square += step * (number - self.mean)
        if self._seen == self._rule.warmup:
            variance = self._square / max(1, self._seen - 1)
            self.spread = max(self._rule.least_spread, math.sqrt(variance))

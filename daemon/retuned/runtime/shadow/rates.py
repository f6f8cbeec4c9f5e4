"""Rates of checks, and the limit of their cost.

Checks are frequent at first and rare later, but never stop: a kernel may become wrong with a
driver, a neighbour or a shape. A shape bucket that occurs late starts with the first rate, whatever
the age of the order.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

BURST_S = 0.25
"""Time that checks may take beyond their share: the first ones come close together."""


@dataclass(frozen=True, slots=True)
class Rates:
    """One check in a number of launches, by age."""

    first: int
    later: tuple[tuple[float, int], ...] = ()
    """(age in seconds, one check in this many launches from then on), rising ages."""

    def every(self, age_s: float) -> int:
        """Return the rate at an age.

        Examples
        --------
        >>> rates = Rates(50, ((600.0, 1_000), (86_400.0, 10_000)))
        >>> rates.every(0.0), rates.every(600.0), rates.every(1e6)
        (50, 1000, 10000)
        """
        now = self.first
        for since_s, every in self.later:
            if age_s >= since_s:
                now = max(self.first, every)
        return now


class Cost:
    """Time that checks have taken, limited to a share of all time.

    Parameters
    ----------
    share
        Maximum time of checks as a share of elapsed time; 1 means unlimited.
    """

    __slots__ = ("_clock", "_lock", "_share", "_since_s", "_spent_s", "throttled")

    def __init__(self, share: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._share = share
        self._clock = clock
        self._since_s = clock()
        self._spent_s = 0.0
        self._lock = threading.Lock()
        self.throttled = 0
        """Checks that were skipped for their cost."""

    @property
    def spent_s(self) -> float:
        return self._spent_s

    def spend(self, seconds: float) -> None:
        with self._lock:
            self._spent_s += seconds

    def allows(self) -> bool:
        """Whether another check may be made now; counts it if not."""
        if self._share >= 1.0:
            return True
        passed_s = self._clock() - self._since_s
        if self._spent_s <= self._share * passed_s + BURST_S:
            return True
        with self._lock:
            self.throttled += 1
        return False

"""Sampler of shadow checks: which launches also run the incumbent for a comparison of outputs.

In every block of `every` swapped launches of a shape bucket exactly one is checked, at a random
position in the block. The rate is exact, no bucket is left out, and neither a model's layer count
nor a kernel that counts launches can synchronise with the checks. The first launch of a bucket is
always checked. `comparison` compares the outputs.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from retuned.runtime.schema import Key
from retuned.runtime.shadow.comparison import (
    RATIO_CAP,
    Compare,
    Comparison,
    as_outputs,
    compare_tensors,
)
from retuned.runtime.shadow.cusum import DECAY, PACE, Cusum
from retuned.runtime.shadow.fingerprints import fingerprint
from retuned.runtime.shadow.rates import Rates

__all__ = [
    "RATIO_CAP",
    "TRIP_RATIO",
    "Compare",
    "Comparison",
    "Sampler",
    "Stats",
    "Stratum",
    "as_outputs",
    "bucket",
    "compare_tensors",
    "fingerprint",
]

TRIP_RATIO = 4.0
"""From this ratio the runtime trips an order without waiting for the daemon."""
_EWMA_WEIGHT = 0.05


@dataclass(slots=True)
class Stratum:
    ran: int = 0
    held: int = 0
    """Launches that a canary's fraction left to the original."""
    check_at: int = 0
    """The launch after this many is the next to be checked."""
    block_end: int = 1
    """First launch of the next block; the first launch is a block by itself."""
    since_s: float = 0.0
    """First launch of the bucket, monotonic seconds."""
    checks: int = 0
    step_checks: int = 0
    """Of those, since the last change of the fraction."""
    decay: Cusum = field(default_factory=lambda: Cusum(DECAY))
    """Sequence of the log rms ratio."""
    pace: Cusum = field(default_factory=lambda: Cusum(PACE))
    """Sequence of "clearly slower than the incumbent"."""


def bucket(key: Key) -> Key:
    """Return the shape bucket of a key: lengths within a factor of two share one."""
    return tuple(length.bit_length() for length in key)


class Sampler:
    """Chooses the launches to check.

    Parameters
    ----------
    rates
        One check in this many launches, per bucket; by the bucket's age if there are several.
    random_source
        Unpredictable for a kernel by default; a seeded one in tests.
    """

    def __init__(
        self,
        rates: int | Rates,
        random_source: random.Random | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rates = rates if isinstance(rates, Rates) else Rates(rates)
        self._random = random_source or random.SystemRandom()
        self._clock = clock
        self._strata: dict[Key, Stratum] = {}

    def stratum(self, key: Key) -> Stratum:
        """Return the bucket of a key, the same object every time."""
        name = bucket(key)
        known = self._strata.get(name)
        if known is None:
            known = self._strata.setdefault(name, Stratum(since_s=self._clock()))
        return known

    def strata(self) -> dict[Key, Stratum]:
        return self._strata.copy()

    def advance(self, stratum: Stratum) -> None:
        """Choose the next launch to check, one in the block after the current one."""
        every = self._rates.every(self._clock() - stratum.since_s)
        while True:
            stratum.check_at = stratum.block_end + self._random.randrange(every)
            stratum.block_end += every
            if stratum.check_at >= stratum.ran:  # else: other threads ran past that block
                return

    def ran(self) -> int:
        return sum(stratum.ran for stratum in self._strata.copy().values())


@dataclass(slots=True)
class Stats:
    checks: int = 0
    mismatches: int = 0
    """Checks over the allowed difference, or with an input changed."""
    nonfinite: int = 0
    """Checks where NaN or Inf did not agree."""
    worst_ratio: float = 0.0
    mean_ratio: float = 0.0
    """Exponentially weighted mean of the ratio over about the last 20 checks."""
    errors: int = 0
    ineligible: dict[str, int] = field(default_factory=dict)
    """Launches within the guard that the variant could not take, by reason."""
    mismatched: int = 0
    """Elements over the allowed difference, of asynchronous checks."""
    dropped: dict[str, int] = field(default_factory=dict)
    """Checks that were due and not made, or have no result, by reason."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held to write; checks and errors are rare."""

    def check(self, comparison: Comparison) -> None:
        with self.lock:
            self.checks += 1
            if comparison.nonfinite:
                self.nonfinite += 1
                return
            first = self.checks - self.nonfinite == 1
            self.mismatches += comparison.ratio > 1.0
            self.worst_ratio = max(self.worst_ratio, comparison.ratio)
            step = comparison.ratio - self.mean_ratio
            self.mean_ratio += step if first else _EWMA_WEIGHT * step

    def error(self) -> int:
        with self.lock:
            self.errors += 1
            return self.errors

    def drop(self, reason: str) -> None:
        with self.lock:
            self.dropped[reason] = self.dropped.get(reason, 0) + 1

    def skip(self, reason: str) -> None:
        with self.lock:
            self.ineligible[reason] = self.ineligible.get(reason, 0) + 1

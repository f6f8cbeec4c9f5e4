"""Canary share: which launches of an order run the variant while the original serves the rest.

Launches of each shape are numbered, and a table maps each number to variant or original. The table
has cells of ``1000 / share`` launches, with one launch of the rarer kind at a hashed position in
each. So any 1,000 consecutive launches contain the share to within one, and the pattern does not
synchronise with the period of a model's layers. Changing the fraction is one store of another
table.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Collection
from functools import lru_cache

from retuned.runtime.schema import Key
from retuned.runtime.shadow.sampler import bucket

BLOCK = 1000
"""Launches over which the share is exact."""
PERIOD = 32 * BLOCK
"""Length of the table in launches; then it repeats."""
_MIX = 0x9E3779B97F4A7C15


def per_mille(fraction: float) -> int:
    """Return a fraction in thousandths; a fraction above 0 is at least one thousandth.

    Examples
    --------
    >>> per_mille(0.01), per_mille(1e-9), per_mille(0.0), per_mille(0.99999)
    (10, 1, 0, 999)
    """
    if fraction <= 0.0:
        return 0
    return BLOCK if fraction >= 1.0 else min(BLOCK - 1, max(1, round(fraction * BLOCK)))


@lru_cache(maxsize=16)
def pattern(share: int) -> bytes:
    """Return the table of a share in thousandths: 1 where a launch runs the variant.

    Examples
    --------
    >>> sum(pattern(10)[:1000]), sum(pattern(900)[5_000:6_000]), sum(pattern(0))
    (10, 900, 0)
    """
    rare = min(share, BLOCK - share)
    usual = 0 if share == rare else 1
    table = bytearray([usual]) * PERIOD
    for cell in range(rare * (PERIOD // BLOCK)):
        start, end = -(-BLOCK * cell // rare), -(-BLOCK * (cell + 1) // rare)
        table[start + _hashed(cell) % (end - start)] = 1 - usual
    return bytes(table)


def _hashed(number: int) -> int:
    """Map whole numbers evenly to 32 bits, deterministically."""
    mixed = (number + 1) * _MIX & (1 << 64) - 1
    mixed = (mixed ^ mixed >> 29) * 0xBF58476D1CE4E5B9 & (1 << 64) - 1
    return mixed >> 32


class CanaryShare:
    """The share of launches that run the variant, and the excluded shape buckets.

    Parameters
    ----------
    fraction
        Initial share, 0 to 1; 0 serves the original and only shadows the variant.
    """

    __slots__ = ("_clock", "_counters", "_since_s", "excluded", "share", "table")

    def __init__(self, fraction: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._counters: dict[Key, Callable[[], int]] = {}
        self.excluded: frozenset[Key] = frozenset()
        """Buckets that the original serves although they are within the guard."""
        self.share = 0
        """Thousandths."""
        self.table: bytes | None = None
        """Table that launches read; None if all of them run the variant."""
        self.set(fraction)

    @property
    def fraction(self) -> float:
        return self.share / BLOCK

    @property
    def seconds(self) -> float:
        """Seconds since the last change of the share."""
        return max(0.0, self._clock() - self._since_s)

    def set(self, fraction: float) -> None:
        """Change the share: the table is made first, then stored in one assignment."""
        share = per_mille(fraction)
        table = None if share == BLOCK else pattern(share)
        self._since_s = self._clock()
        self.share = share
        self.table = table

    def exclude(self, buckets: Collection[Key]) -> None:
        self.excluded = frozenset(buckets)

    def serves(self, key: Key) -> bool:
        return bucket(key) not in self.excluded

    def counter(self, key: Key) -> Callable[[], int]:
        """Return the function that numbers the launches of a shape; it is thread-safe."""
        return self._counters.setdefault(key, itertools.count().__next__)

"""Schedule of timed calls: ABBA units of the incumbent and another side. Pure.

The order inside a unit is random. Buffers rotate with a period that shares no factor with the
unit's. The inputs change before every call. So drift, buffer placement and cached results favour no
side.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from retuned.lab.harness.run import POISON_MIXED, POISON_ONES

INCUMBENT, CANDIDATE, CLONE = 0, 1, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Swap:
    """Two elements of one input that are exchanged: new content, same distribution."""

    set: int
    tensor: str
    left: int
    right: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedCall:
    """One timed call of `repeat` launches."""

    which: int
    first: int
    """Set of buffers of the first launch; the others follow in turn."""
    repeat: int
    poison: int
    swaps: tuple[Swap, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Calls that run without a pause, and their pairs."""

    calls: tuple[TimedCall, ...]
    pairs: tuple[tuple[int, int, int], ...]
    """(other side, position of the incumbent's call, position of the other's call)."""


class Scheduler:
    """Draws blocks; the random numbers stay in the parent.

    `sets` must be odd, so that ABBA does not tie sides to sets of buffers. `mutable` maps inputs
    whose elements may be exchanged to their number of elements. `repeat` is launches per call;
    `seed` is secret.
    """

    def __init__(
        self, *, sets: int, mutable: Sequence[tuple[str, int]], repeat: int, seed: int
    ) -> None:
        if sets % 2 == 0:
            raise ValueError("sets of buffers must be odd in number")
        self._sets = sets
        self._mutable = [(name, size) for name, size in mutable if size > 1]
        self._repeat = repeat
        self._random = random.Random(seed)
        self._turn = 0

    def block(self, units: Sequence[int]) -> Block:
        """Draw one block; `units` lists the other side of each ABBA unit."""
        order = list(units)
        self._random.shuffle(order)
        calls: list[TimedCall] = []
        pairs: list[tuple[int, int, int]] = []
        for other in order:
            first, second = (
                (INCUMBENT, other) if self._random.random() < 0.5 else (other, INCUMBENT)
            )
            start = len(calls)
            calls += [self._call(which) for which in (first, second, second, first)]
            for left, right in ((start, start + 1), (start + 3, start + 2)):
                incumbent, rest = (left, right) if first == INCUMBENT else (right, left)
                pairs.append((other, incumbent, rest))
        return Block(calls=tuple(calls), pairs=tuple(pairs))

    def _call(self, which: int) -> TimedCall:
        first = self._turn % self._sets
        self._turn += self._repeat if self._repeat % self._sets else self._repeat + 1
        used = [(first + turn) % self._sets for turn in range(min(self._repeat, self._sets))]
        return TimedCall(
            which=which,
            first=first,
            repeat=self._repeat,
            poison=self._random.choice((POISON_ONES, POISON_MIXED)),
            swaps=tuple(self._swap(index) for index in used if self._mutable),
        )

    def _swap(self, index: int) -> Swap:
        name, size = self._random.choice(self._mutable)
        left, right = self._random.sample(range(size), 2)
        return Swap(set=index, tensor=name, left=left, right=right)

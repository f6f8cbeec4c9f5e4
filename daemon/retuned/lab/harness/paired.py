"""Paired times: from calls to samples, and what in them no honest kernel shows. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import numpy as np

from retuned.lab.harness.schedule import CANDIDATE, CLONE, Block
from retuned.lab.statistics import ShapeSamples

Pair = tuple[int, float, float]
"""(other side, incumbent's us, other's us)."""
_SEEN_RATIO = 1.4
"""Short calls cost both sides some tenths of a microsecond more, which hides part of a speedup."""


def pairs_of(block: Block, times_ns: Sequence[int]) -> list[Pair]:
    """Return microseconds a launch of both sides of each pair of a block."""
    each = [ns / call.repeat / 1e3 for ns, call in zip(times_ns, block.calls, strict=True)]
    return [(other, each[left], each[right]) for other, left, right in block.pairs]


def samples_of(
    pairs: Sequence[Sequence[Pair]],
    *,
    side: int,
    weight: float,
    processes: Sequence[int] | None = None,
) -> ShapeSamples:
    """Collect one side's pairs over blocks; `processes` names the process of each block."""
    rows = [
        (index, left, right)
        for index, block in enumerate(pairs)
        for other, left, right in block
        if other == side
    ]
    return ShapeSamples(
        weight=weight,
        incumbent_us=np.array([row[1] for row in rows]),
        candidate_us=np.array([row[2] for row in rows]),
        block=np.array([row[0] for row in rows], dtype=np.int64),
        process=None if processes is None else np.array(processes, dtype=np.int64),
    )


def units_for(candidate: int, clone: int) -> list[int]:
    """Return the other sides of a block's ABBA units."""
    return [CANDIDATE] * candidate + [CLONE] * clone


def remembers(usual: Sequence[Pair], fresh: Sequence[Pair]) -> str:
    """Say so if a candidate is faster where inputs come again within a call; else empty.

    Parameters
    ----------
    usual
        Pairs whose calls go through the sets of inputs several times.
    fresh
        Pairs whose calls meet every content once.

    Examples
    --------
    >>> honest = [(CANDIDATE, 2.0, 1.0)] * 8
    >>> remembers(honest, honest)
    ''
    >>> remembers(honest, [(CANDIDATE, 2.0, 2.0)] * 8)
    '2.00 times as fast as the incumbent on inputs it has seen, 1.00 times on new ones'
    """
    if not usual or not fresh:
        return ""
    seen, new = (statistics.median(left / right for _, left, right in p) for p in (usual, fresh))
    if seen <= _SEEN_RATIO * new:
        return ""
    return (
        f"{seen:.2f} times as fast as the incumbent on inputs it has seen, "
        f"{new:.2f} times on new ones"
    )

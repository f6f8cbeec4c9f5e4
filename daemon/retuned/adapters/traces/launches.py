"""Launches of a whole trace as columns: a batch of them is not an object each.

A record is made where one is looked at. So 20,000 launches of a hundred kinds take half a megabyte
instead of six, which a sidecar has to share with its server.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import overload

import numpy as np

from retuned.adapters.traces.blocks import LaunchBlock
from retuned.stages.trace import LaunchRecord

_AT_ONCE = 4_096


class Launches(Sequence[LaunchRecord]):
    """Launches in order of start; equal to any sequence of the same records.

    Parameters
    ----------
    block
        The launches as they lie in memory.
    """

    def __init__(self, block: LaunchBlock) -> None:
        self._block = block

    @property
    def span_ns(self) -> int:
        """Latest end minus earliest start; 0 without launches."""
        block = self._block
        if not len(block):
            return 0
        return int((block.start_ns + block.duration_ns).max()) - int(block.start_ns[0])

    def __len__(self) -> int:
        return len(self._block)

    def __iter__(self) -> Iterator[LaunchRecord]:
        for first in range(0, len(self), _AT_ONCE):
            yield from _rows(self._block, slice(first, first + _AT_ONCE)).records()

    @overload
    def __getitem__(self, at: int) -> LaunchRecord: ...
    @overload
    def __getitem__(self, at: slice) -> Launches: ...
    def __getitem__(self, at: int | slice) -> LaunchRecord | Launches:
        if isinstance(at, slice):
            return Launches(_rows(self._block, at))
        row = range(len(self))[at]  # an index error as any sequence's
        return next(_rows(self._block, slice(row, row + 1)).records())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(
            mine == theirs for mine, theirs in zip(self, other, strict=True)
        )

    __hash__ = None  # type: ignore[assignment]  # long, and nobody looks one up


def gather(blocks: Iterable[LaunchBlock], *, most: int | None = None) -> Launches:
    """Return the first launches of all blocks, in order of start.

    Of what was launched only those kinds are held that a kept launch is of: a stranger's file may
    have as many as rows.

    Parameters
    ----------
    blocks
        Blocks of one trace; all are read.
    most
        Launches that are kept; None keeps all.
    """
    kinds: list[LaunchRecord] = []
    places: dict[int, int] = {}
    parts: list[LaunchBlock] = []
    kept = 0
    for block in blocks:
        part = block if most is None else _rows(block, slice(most - kept))
        if len(part):
            kept += len(part)
            parts.append(_among(part, kinds, places))
    if not parts:
        nothing = np.empty(0, dtype=np.int64)
        return Launches(LaunchBlock(kinds, nothing, nothing, nothing))
    start_ns = np.concatenate([part.start_ns for part in parts])
    order = np.argsort(start_ns, kind="stable")
    return Launches(
        LaunchBlock(
            kinds,
            np.concatenate([part.kind for part in parts])[order],
            start_ns[order],
            np.concatenate([part.duration_ns for part in parts])[order],
        )
    )


def _among(part: LaunchBlock, kinds: list[LaunchRecord], places: dict[int, int]) -> LaunchBlock:
    """Return a block over `kinds`; what is not among them yet is added, found by identity."""
    used = sorted(set(part.kind.tolist()))
    place = np.zeros(used[-1] + 1, dtype=np.int64)
    for at in used:
        kind = part.kinds[at]
        place[at] = places.setdefault(id(kind), len(kinds))
        if place[at] == len(kinds):
            kinds.append(kind)  # held, so that its identity stays its own
    return LaunchBlock(kinds, place[part.kind], part.start_ns.copy(), part.duration_ns.copy())


def _rows(block: LaunchBlock, rows: slice) -> LaunchBlock:
    return LaunchBlock(block.kinds, block.kind[rows], block.start_ns[rows], block.duration_ns[rows])

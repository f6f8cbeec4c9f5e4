"""Launches as columns: what differs from launch to launch, and the kinds they share.

A kind is a LaunchRecord whose times do not matter; a launch is (kind, start, duration). A million
launches of a few hundred kinds take 20 MB instead of 300, and rows need no Python object each.

Launches of a whole trace as columns: a batch of them is not an object each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from retuned.stages.trace import LATEST_NS, LONGEST_NS, LaunchRecord, Skip

Ints = NDArray[np.int64]
Key = TypeVar("Key", bound=Hashable)
_KINDS_MAX = 65_536
_SKIPS = tuple(Skip)


@dataclass(frozen=True, slots=True)
class LaunchBlock:
    """Some launches of a trace, in file order."""

    kinds: Sequence[LaunchRecord]
    """What was launched; times in here mean nothing."""
    kind: Ints
    """Index into `kinds`, one per launch."""
    start_ns: Ints
    """Start of each launch."""
    duration_ns: Ints
    """Duration of each launch."""

    def __len__(self) -> int:
        return len(self.kind)

    def kernels(self) -> set[str]:
        """Return the names of the kernels launched."""
        return {self.kinds[kind].kernel for kind in set(self.kind.tolist())}

    def records(self) -> Iterator[LaunchRecord]:
        """Yield each launch as a separate record."""
        rows = zip(
            self.kind.tolist(), self.start_ns.tolist(), self.duration_ns.tolist(), strict=True
        )
        for kind, start_ns, duration_ns in rows:
            yield timed(self.kinds[kind], start_ns, duration_ns)


def timed(kind: LaunchRecord, start_ns: int, duration_ns: int) -> LaunchRecord:
    """Return a launch of this kind; written out as `dataclasses.replace` is slow."""
    return LaunchRecord(
        kernel=kind.kernel,
        start_ns=start_ns,
        duration_ns=duration_ns,
        blocks=kind.blocks,
        threads=kind.threads,
        dims=kind.dims,
        dtypes=kind.dtypes,
        layout=kind.layout,
        shape_source=kind.shape_source,
        shape_confidence=kind.shape_confidence,
        op=kind.op,
        device=kind.device,
        stream=kind.stream,
        lds_bytes=kind.lds_bytes,
        scratch_bytes=kind.scratch_bytes,
        vgprs=kind.vgprs,
    )


class BlockMaker(Generic[Key]):
    """Turns keys and times of rows into blocks; implausible rows are counted.

    Parameters
    ----------
    kind_of
        Meaning of a key: a launch, or why it is not one. Called once per distinct key.
    skipped
        Where rows left out are counted.
    """

    def __init__(
        self, kind_of: Callable[[Key], LaunchRecord | Skip], *, skipped: Counter[str]
    ) -> None:
        self._kind_of = kind_of
        self._skipped = skipped
        self._ids: dict[Key, int] = {}
        self._kinds: list[LaunchRecord] = []

    def block(self, keys: Sequence[Key], start_ns: Ints, end_ns: Ints) -> LaunchBlock:
        """Return the plausible rows; the three arguments are as long as each other.

        Times that were unreadable must come as -1.
        """
        if len(self._ids) > _KINDS_MAX:  # an untrusted file may name every launch differently
            self._ids, self._kinds = {}, []
        ids = list(map(self._ids.get, keys))
        if None in ids:
            ids = [self._id(key) for key in keys]
        kind = np.array(ids, dtype=np.int64)
        duration_ns = end_ns - start_ns
        if _all_good(kind, start_ns, end_ns, duration_ns):
            return LaunchBlock(self._kinds, kind, start_ns, duration_ns)
        good = kind >= 0
        for bad, reason in _unbelievable(start_ns, end_ns):
            wrong = int(np.count_nonzero(bad & good))
            if wrong:
                self._skipped[reason] += wrong
                good &= ~bad
        # not with np.unique: that loads numpy.ma, six megabytes
        for code, count in Counter(kind[kind < 0].tolist()).items():
            self._skipped[_SKIPS[-1 - code]] += count
        return LaunchBlock(self._kinds, kind[good], start_ns[good], duration_ns[good])

    def _id(self, key: Key) -> int:
        known = self._ids.get(key)
        if known is None:
            kind = self._kind_of(key)
            if isinstance(kind, Skip):
                known = -1 - _SKIPS.index(kind)
            else:
                known = len(self._kinds)
                self._kinds.append(kind)
            self._ids[key] = known
        return known


def _all_good(kind: Ints, start_ns: Ints, end_ns: Ints, duration_ns: Ints) -> bool:
    """Whether every row is a plausible launch: nearly always so, and quickly checked."""
    return bool(
        len(kind)
        and kind.min() >= 0
        and start_ns.min() >= 0
        and end_ns.max() <= LATEST_NS
        and duration_ns.min() > 0
        and duration_ns.max() <= LONGEST_NS
    )


def _unbelievable(start_ns: Ints, end_ns: Ints) -> Iterator[tuple[NDArray[np.bool_], Skip]]:
    """`retuned.stages.trace.disbelief` on columns; a test holds the two together."""
    low, high = np.minimum(start_ns, end_ns), np.maximum(start_ns, end_ns)
    yield (low < 0) | (high > LATEST_NS), Skip.BAD_TIMESTAMP
    yield end_ns < start_ns, Skip.ENDS_BEFORE_START
    yield end_ns == start_ns, Skip.ZERO_DURATION
    yield end_ns - start_ns > LONGEST_NS, Skip.TOO_LONG


def blocks_of(records: Iterable[LaunchRecord], *, rows: int) -> Iterator[LaunchBlock]:
    """Yield records that were checked before, as blocks of up to `rows` launches."""
    ids: dict[tuple[object, ...], int] = {}
    kinds: list[LaunchRecord] = []
    columns: list[tuple[int, int, int]] = []
    for record in records:
        key = (
            record.kernel,
            record.blocks,
            record.threads,
            record.dims,
            record.dtypes,
            record.layout,
            record.shape_source,
            record.shape_confidence,
            record.op,
            record.device,
            record.stream,
            record.lds_bytes,
            record.scratch_bytes,
            record.vgprs,
        )
        kind = ids.setdefault(key, len(kinds))
        if kind == len(kinds):
            kinds.append(record)
        columns.append((kind, record.start_ns, record.duration_ns))
        if len(columns) >= rows:
            yield _packed(kinds, columns)
            ids, kinds, columns = {}, [], []
    if columns:
        yield _packed(kinds, columns)


def _packed(kinds: list[LaunchRecord], columns: list[tuple[int, int, int]]) -> LaunchBlock:
    table = np.array(columns, dtype=np.int64)
    return LaunchBlock(kinds, table[:, 0], table[:, 1], table[:, 2])


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

    __hash__ = None  # type: ignore[assignment]  # long, and never used as a key


def gather(blocks: Iterable[LaunchBlock], *, most: int | None = None) -> Launches:
    """Return the first launches of all blocks, in order of start.

    Only the kinds of the returned launches stay in memory: an untrusted file may have as many kinds
    as rows.

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

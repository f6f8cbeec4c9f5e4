"""Kernel tables of rocprofv3 (every header), rocprofv2, rocprof v1 and rocprofiler-compute."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterator, Sequence
from operator import itemgetter

import numpy as np

from retuned.errors import UnreadableInput
from retuned.stages.trace import Skip, parse_ns
from retuned.traces import rocprof_fast
from retuned.traces.blocks import BlockMaker, Ints, LaunchBlock
from retuned.traces.rocprof_columns import KIND_FIELDS, Columns, Row, columns_of, kind_of
from retuned.traces.source import ByteSource, ReadLimits

_STEP = 2**17  # fits the cache beside what is made of it: faster than larger ones, and 5 MiB less
_KERNEL = "KERNEL_DISPATCH"
_MAX = 2**63 - 1


def read(
    source: ByteSource, head: bytes, *, limits: ReadLimits, skipped: Counter[str]
) -> Iterator[LaunchBlock]:
    """Yield the launches of a table that starts with `head`, some hundred kilobytes at a time.

    Raises
    ------
    UnreadableInput
        ``truncated-csv``, ``damaged-csv``, or what the source says.
    """
    table = _Table(source, limits=limits, skipped=skipped)
    for block in table.blocks(head):
        if len(block):
            yield block


class _Table:
    """One pass over a table: cuts it at ends of rows, and reads each part the fastest safe way."""

    def __init__(self, source: ByteSource, *, limits: ReadLimits, skipped: Counter[str]) -> None:
        self._source = source
        self._limits = limits
        self._skipped = skipped
        self._row = 2
        self._columns = Columns(0, {})
        self._kind_at: int | None = None
        self._fast: rocprof_fast.Layout | None = None
        self._slow_maker = BlockMaker(kind_of, skipped=skipped)

    def blocks(self, head: bytes) -> Iterator[LaunchBlock]:
        """Yield the launches, a step of the file at a time."""
        rest = b""
        step = self._after_header(head.removeprefix(b"\xef\xbb\xbf").lstrip())  # as sniffed
        while step:
            cut = step.rfind(b"\n") + 1
            part = b"".join((rest, memoryview(step)[:cut]))  # one copy
            block = self._block(part) if cut else None
            if block is not None:
                yield block
            rest = step[cut:] if block is not None else rest + step
            if len(rest) > self._limits.element_bytes:
                raise self._damaged(f"no end of row within {self._limits.element_bytes} bytes")
            step = self._source.read(_STEP)
        if rest.count(b'"') % 2:
            raise self._truncated()
        yield self._slow(rest)

    def _block(self, part: bytes) -> LaunchBlock | None:
        """Read rows; None if the last of them goes on, since its line ends inside quotes."""
        block = self._fast.block(part) if self._fast else None
        if block is not None:
            self._row += len(block)
            return block
        return None if part.count(b'"') % 2 else self._slow(part)

    def _after_header(self, data: bytes) -> bytes:
        line, _, rest = data.partition(b"\n")
        header = next(self._cells(line))
        self._columns = columns_of(header)
        lower = [cell.strip().lower() for cell in header]
        self._kind_at = lower.index("kind") if "kind" in lower else None
        self._fast = rocprof_fast.layout_of(
            header, self._columns, rest.partition(b"\n")[0], skipped=self._skipped
        )
        return rest

    def _cells(self, part: bytes) -> Iterator[list[str]]:
        text = part.decode("utf-8", "backslashreplace")
        reader = csv.reader(io.StringIO(text, newline=""))
        try:
            yield from reader
        except csv.Error as error:
            raise self._damaged(str(error)) from None

    def _slow(self, part: bytes) -> LaunchBlock:
        if not part.strip(b"\r\n"):  # a bomb of empty lines costs no object each
            self._row += part.count(b"\n")
            part = b""
        at, width = self._columns.at, self._columns.width
        pick = itemgetter(*(at.get(field, width) for field in KIND_FIELDS))
        start_at, end_at = at["start"], at["end"]
        keys: list[Row] = []
        starts: list[str] = []
        ends: list[str] = []
        cells: list[str] = []
        for cells in self._cells(part):
            self._row += 1
            if not self._is_launch(cells):
                continue
            starts.append(cells[start_at])
            ends.append(cells[end_at])
            cells.append("")  # what the table lacks reads as empty
            keys.append(pick(cells))
        if part and not part.endswith(b"\n") and len(cells) < width:
            raise self._truncated()
        return self._slow_maker.block(keys, _times(starts), _times(ends))

    def _is_launch(self, cells: Sequence[str]) -> bool:
        if len(cells) != self._columns.width:
            if cells:  # an empty line is not a row
                self._skipped[Skip.MALFORMED_ROW] += 1
            return False
        if self._kind_at is not None and cells[self._kind_at] != _KERNEL:
            self._skipped[Skip.NOT_A_KERNEL] += 1
            return False
        return True

    def _damaged(self, what: str) -> UnreadableInput:
        return UnreadableInput(
            "damaged-csv",
            where=f"{self._source.where}: near row {self._row}",
            message=f"{what}; the file is damaged or not a trace",
        )

    def _truncated(self) -> UnreadableInput:
        return UnreadableInput(
            "truncated-csv",
            where=f"{self._source.where}: near row {self._row}",
            message="the last row stops early; copy the file again or wait until it is written",
        )


def _times(cells: Sequence[str]) -> Ints:
    """Read times; a cell that is not a plain count of ns becomes -1, and its launch is skipped."""
    values = (parse_ns(cell) for cell in cells)
    return np.array([-1 if value is None else min(value, _MAX) for value in values], dtype=np.int64)

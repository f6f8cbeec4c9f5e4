"""Fast path for tables as rocprofv3 itself writes them; anything unusual goes the careful way.

Stock rows quote texts and leave numbers bare, so splitting at quotes leaves the same number of
pieces per row, and whole columns are slices of the list of pieces. No Python statement runs per row
but the split of the tail. A part of the file that does not look exactly so is refused (None) and
read by the ``csv`` module; a test holds the two ways equal.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from retuned.adapters.traces.blocks import BlockMaker, Ints, LaunchBlock
from retuned.adapters.traces.rocprof_columns import KIND_FIELDS, Columns, kind_of
from retuned.stages.trace import LaunchRecord, Skip

_Key = tuple[bytes, ...]


class _Unusual(Exception):
    """A row that only looked like the others."""


class Layout:
    """Where the pieces of a row lie.

    Parameters
    ----------
    quoted
        Cells in quotes, rising; the first is cell 0.
    columns
        Meaning of the cells; the times are bare cells behind the last quoted one, and every cell
        of the kind behind the times belongs to the key as one piece.
    skipped
        Where rows left out are counted.
    """

    def __init__(self, quoted: Sequence[int], columns: Columns, *, skipped: Counter[str]) -> None:
        self._at = columns.at
        self._width = columns.width
        self._pieces = 2 * len(quoted)
        self._quoted = {cell: 2 * rank + 1 for rank, cell in enumerate(quoted)}
        self._gaps = [
            (2 * rank + 2, after - before) for rank, (before, after) in enumerate(pairwise(quoted))
        ]
        self._last = quoted[-1]
        self._start = columns.at["start"] - self._last
        self._end = columns.at["end"] - self._last
        self._fields = [
            field
            for field in KIND_FIELDS
            if field in columns.at and columns.at[field] < columns.at["start"]
        ]
        self._maker: BlockMaker[_Key] = BlockMaker(self._kind_of, skipped=skipped)

    def block(self, part: bytes) -> LaunchBlock | None:
        """Read whole rows; None if any of them is unusual."""
        pieces = part.split(b'"')
        rows, odd = divmod(len(pieces) - 1, self._pieces)
        if odd or not rows or pieces[0] or part.count(b"\n") != rows:
            return None
        columns = self._columns(pieces, rows)
        tails = [tail.split(b",", self._end + 1) for tail in pieces[self._pieces :: self._pieces]]
        if columns is None or any(len(tail) != self._end + 2 or tail[0] for tail in tails):
            return None
        start_ns = _times([tail[self._start] for tail in tails])
        end_ns = _times([tail[self._end] for tail in tails])
        if start_ns is None or end_ns is None:
            return None
        keys = list(zip(*columns, [tail[-1] for tail in tails], strict=True))
        try:
            return self._maker.block(keys, start_ns, end_ns)
        except _Unusual:
            return None

    def _columns(self, pieces: list[bytes], rows: int) -> list[list[bytes]] | None:
        """Cells of the kind that lie before the times; None if a gap holds what it should not."""
        if pieces[1 :: self._pieces].count(b"KERNEL_DISPATCH") != rows:
            return None
        bare: dict[int, list[bytes]] = {}
        for place, width in self._gaps:
            gap = pieces[place :: self._pieces]
            if width == 1:
                if gap.count(b",") != rows:
                    return None
                continue
            cells = b"".join(gap).split(b",")
            # an empty cell at each boundary of rows and nowhere else: so all gaps are alike
            if not rows + 1 == cells.count(b"") == cells[::width].count(b""):
                return None
            if len(cells) != rows * width + 1:
                return None
            for offset in range(1, width):
                bare[self._cell(place) + offset] = cells[offset::width]
        return [
            pieces[self._quoted[cell] :: self._pieces] if cell in self._quoted else bare[cell]
            for cell in (self._at[field] for field in self._fields)
        ]

    def _cell(self, place: int) -> int:
        """Quoted cell just before a gap."""
        return next(cell for cell, piece in self._quoted.items() if piece == place - 1)

    def _kind_of(self, key: _Key) -> LaunchRecord | Skip:
        texts = [piece.decode("utf-8", "backslashreplace") for piece in key]
        line, end, more = texts[-1].partition("\n")
        rest = line.split(",")
        first = self._at["end"] + 1
        if first + len(rest) != self._width or not end or more or "\r" in line:
            raise _Unusual
        cells = dict(zip(self._fields, texts, strict=False))
        for field in KIND_FIELDS:
            at = self._at.get(field, -1)
            if at >= first:
                cells[field] = rest[at - first]
        return kind_of(tuple(cells.get(field, "") for field in KIND_FIELDS))


def layout_of(
    header: Sequence[str], columns: Columns, first_row: bytes, *, skipped: Counter[str]
) -> Layout | None:
    """Return the layout if `first_row` looks as rocprofv3 writes rows, else None."""
    at = columns.at
    try:
        cells = next(csv.reader([first_row.decode("utf-8", "replace")]), [])
    except csv.Error:
        return None
    if len(cells) != columns.width or not header or header[0].strip().lower() != "kind":
        return None
    quoted = _quoted_cells(first_row.rstrip(b"\r"), cells)
    if (
        quoted is None
        or quoted[:1] != [0]
        or at["name"] not in quoted
        or '""' in first_row.decode("latin-1")
    ):
        return None
    if not max(quoted) < at["start"] < at["end"]:
        return None
    between = [at[f] for f in KIND_FIELDS if f in at and at["start"] < at[f] < at["end"]]
    tail_start = [at[f] for f in KIND_FIELDS if f in at and max(quoted) < at[f] < at["start"]]
    return None if between or tail_start else Layout(quoted, columns, skipped=skipped)


def _quoted_cells(row: bytes, cells: Sequence[str]) -> list[int] | None:
    """Which cells a row has in quotes; None if they cannot be told apart."""
    quoted: list[int] = []
    position = 0
    for index, cell in enumerate(cells):
        text = cell.encode()
        if row.startswith(b'"' + text + b'"', position):
            quoted.append(index)
            position += len(text) + 3
        elif row.startswith(text, position):
            position += len(text) + 1
        else:
            return None
    return quoted


def _times(cells: list[bytes]) -> Ints | None:
    """Whole numbers; None if one is anything else, which the careful way will judge."""
    if not b"".join(cells).isdigit() or min(map(len, cells)) < 1 or max(map(len, cells)) > 18:
        return None
    return np.array(list(map(int, cells)), dtype=np.int64)

"""Fast path for tables as rocprofv3 itself writes them; anything unusual goes the careful way.

Stock rows quote texts and leave numbers bare, so splitting at quotes leaves the same number of
pieces per row, and whole columns are slices of the list of pieces. No Python statement runs per
row but the cut of one text. A part of the file that does not look exactly so is refused (None) and
read by the ``csv`` module; a test holds the two ways equal.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from retuned.adapters.traces.blocks import BlockMaker, Ints, LaunchBlock
from retuned.adapters.traces.rocprof_columns import KIND_FIELDS, Columns, kind_of
from retuned.stages.trace import LaunchRecord, Skip

_Key = tuple[bytes, ...]
_NAMES_MAX = 65_536
_COMMA, _NEWLINE, _ZERO = b",\n0"
_DIGITS = 18
_POWERS = 10 ** np.arange(_DIGITS, dtype=np.int64)


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
    kernel_id
        Cell of the number that goes with one kernel name throughout the file.
    skipped
        Where rows left out are counted.
    """

    def __init__(
        self, quoted: Sequence[int], columns: Columns, *, kernel_id: int, skipped: Counter[str]
    ) -> None:
        self._at = columns.at
        self._width = columns.width
        self._pieces = 2 * len(quoted)
        self._quoted = {cell: 2 * rank + 1 for rank, cell in enumerate(quoted)}
        self._gaps = [
            (before, 2 * rank + 2, after - before)
            for rank, (before, after) in enumerate(pairwise(quoted))
        ]
        self._tail_cells = columns.width - 1 - quoted[-1]
        self._start = columns.at["start"] - quoted[-1]
        self._end = columns.at["end"] - quoted[-1]
        self._name_at = columns.at["name"]
        self._id_at = kernel_id
        self._fields = [
            field
            for field in KIND_FIELDS
            if field in columns.at and field != "name" and columns.at[field] < columns.at["start"]
        ]
        self._keyed = [kernel_id, *(columns.at[field] for field in self._fields)]
        self._names: dict[bytes, bytes] = {}
        self._maker: BlockMaker[_Key] = BlockMaker(self._kind_of, skipped=skipped)

    def block(self, part: bytes) -> LaunchBlock | None:
        """Read whole rows; None if any of them is unusual, or the last goes on."""
        pieces = part.split(b'"')
        rows, odd = divmod(len(pieces) - 1, self._pieces)
        if odd or not rows or pieces[0]:
            return None
        behind = self._behind(pieces[self._pieces :: self._pieces], rows)
        columns = self._columns(pieces, rows) if behind else None
        if behind is None or columns is None:
            return None
        start_ns, end_ns, rest = behind
        try:
            return self._maker.block(list(zip(*columns, rest, strict=True)), start_ns, end_ns)
        except _Unusual:
            return None

    def _behind(self, tails: list[bytes], rows: int) -> tuple[Ints, Ints, list[bytes]] | None:
        """Read what follows the last quoted cell: times, and the cells behind them as one text."""
        text = b"".join(tails)
        raw = np.frombuffer(text, dtype=np.uint8)
        found = np.flatnonzero(raw == _COMMA)
        line_ends = np.cumsum(list(map(len, tails))) - 1
        if len(found) != rows * self._tail_cells or not (raw[line_ends] == _NEWLINE).all():
            return None
        commas: Ints = found.reshape(rows, self._tail_cells)
        # the first comma of each row opens its tail: so no tail has a comma of another's
        if commas[0, 0] or not np.array_equal(commas[1:, 0], line_ends[:-1] + 1):
            return None
        start_ns = _numbers(raw, commas[:, self._start - 1] + 1, commas[:, self._start])
        end_ns = _numbers(raw, commas[:, self._end - 1] + 1, commas[:, self._end])
        if start_ns is None or end_ns is None:
            return None
        first = (commas[:, self._end] + 1).tolist()
        return (
            start_ns,
            end_ns,
            [text[low:high] for low, high in zip(first, line_ends.tolist(), strict=True)],
        )

    def _columns(self, pieces: list[bytes], rows: int) -> list[list[bytes]] | None:
        """Cells of the kind that lie before the times; None if a gap holds what it should not."""
        if pieces[1 :: self._pieces].count(b"KERNEL_DISPATCH") != rows:
            return None
        cells: dict[int, list[bytes]] = {
            cell: pieces[place :: self._pieces] for cell, place in self._quoted.items()
        }
        for first, place, width in self._gaps:
            gap = b"".join(pieces[place :: self._pieces])
            found = gap.split(b",")
            # an empty cell at each boundary of rows and nowhere else: so all gaps are alike
            if len(found) != rows * width + 1 or b"\n" in gap:
                return None
            if not rows + 1 == found.count(b"") == found[::width].count(b""):
                return None
            for offset in range(1, width):
                cells[first + offset] = found[offset::width]
        if not self._same_names(cells):
            return None
        return [cells[cell] for cell in self._keyed]

    def _same_names(self, cells: dict[int, list[bytes]]) -> bool:
        """Whether each kernel id goes with one name, so that keys need not hold the long names."""
        names, ids = cells[self._name_at], cells[self._id_at]
        if list(map(self._names.get, ids)) == names:
            return True
        if len(self._names) > _NAMES_MAX:
            return False
        for number, name in zip(ids, names, strict=True):
            if self._names.setdefault(number, name) != name:
                return False
        return True

    def _kind_of(self, key: _Key) -> LaunchRecord | Skip:
        number, *others = key
        texts = [piece.decode("utf-8", "backslashreplace") for piece in others]
        rest = texts[-1].split(",")
        first = self._at["end"] + 1
        if "\n" in texts[-1] or "\r" in texts[-1]:
            raise _Unusual
        cells = dict(zip(self._fields, texts, strict=False))
        cells["name"] = self._names[number].decode("utf-8", "backslashreplace")
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
    lower = [cell.strip().lower() for cell in header]
    kernel_id = lower.index("kernel_id") if "kernel_id" in lower else max(quoted)
    if between or tail_start or kernel_id >= max(quoted) or at["end"] + 1 >= columns.width:
        return None
    return Layout(quoted, columns, kernel_id=kernel_id, skipped=skipped)


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


def _numbers(raw: NDArray[np.uint8], low: Ints, high: Ints) -> Ints | None:
    """Whole numbers in raw[low:high]; None if one is anything else: the careful way will judge."""
    sizes = high - low
    longest = int(sizes.max())
    if int(sizes.min()) < 1 or longest > _DIGITS:
        return None
    back = np.arange(longest)
    at = high[:, None] - 1 - back  # units first; never below 0, for a comma precedes the number
    digits = raw[np.maximum(at, 0)].astype(np.int64) - _ZERO
    digits[back >= sizes[:, None]] = 0
    if digits.min() < 0 or digits.max() > 9:
        return None
    numbers: Ints = digits @ _POWERS[:longest]
    return numbers

"""Fast path for tables as rocprofv3 itself writes them; anything unusual goes the careful way.

Stock rows begin with quoted texts (kind, agent), and of the rest only the name is quoted. So a part
of the file becomes a plain table of numbers in three steps over all rows at once: the texts at the
start are replaced by a number, the names are split off at their quotes, and what is left is joined.
Columns are then read by their commas with numpy. A part that does not look exactly so is refused
(None) and read by the ``csv`` module; a test holds the two ways equal.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from retuned.stages.trace import LaunchRecord, Skip
from retuned.traces.blocks import BlockMaker, Ints, LaunchBlock
from retuned.traces.rocprof_columns import KIND_FIELDS, Columns, kind_of

_Head = int | tuple[int, ...]
_Key = tuple[_Head, bytes]
_ZERO, _NINE = b"09"
_KIND = b"KERNEL_DISPATCH"
_DIGITS = 18
_PAD = b"0" * _DIGITS
_CUT = b"/"
"""Marks where a name was; like comma and line end it sorts before the digits."""
_POWERS = 10 ** np.arange(_DIGITS, dtype=np.int64)[::-1]
_WORD = 8
_ZEROS = np.uint64(0x3030_3030_3030_3030)
_NAMES_MAX = 65_536
_TEXTS_MAX = 64
_BITS = 15
"""Numbers below 2^15 that make a kind, up to four of them, are packed into one: fewer objects."""


class Layout:
    """Where the cells of a row lie.

    Parameters
    ----------
    leading
        How many cells are quoted at the start of a row; the only other one in quotes is the name.
    columns
        Meaning of the cells; the times are behind the name, and of what makes a kind the rest is
        behind the times.
    kernel_id
        Cell of the number that goes with one kernel name throughout the file.
    skipped
        Where rows left out are counted.
    """

    def __init__(
        self, leading: int, columns: Columns, *, kernel_id: int, skipped: Counter[str]
    ) -> None:
        self._at = columns.at
        self._leading = leading
        # the leading cells become an empty one, and a cut stands where the name was
        self._marks = columns.width - leading + 2
        self._cut = columns.at["name"] - leading + 1
        self._start = columns.at["start"] - leading + 2
        self._end = columns.at["end"] - leading + 2
        self._fields = [
            field
            for field in KIND_FIELDS
            if leading <= columns.at.get(field, -1) < columns.at["start"] and field != "name"
        ]
        self._numbers = [kernel_id - leading + 1]
        self._numbers += [columns.at[field] - leading + 1 for field in self._fields]
        self._texts: dict[tuple[bytes, ...], int] = {}
        self._names: dict[int, bytes] = {}
        self._maker: BlockMaker[_Key] = BlockMaker(self._kind_of, skipped=skipped)

    def block(self, part: bytes) -> LaunchBlock | None:
        """Read whole rows; None if any of them is unusual, or the last goes on."""
        pieces = part.split(b'"')
        per_row = 2 * self._leading + 2
        rows, odd = divmod(len(pieces) - 1, per_row)
        texts = self._leading_texts(pieces, per_row) if rows and not odd else None
        if texts is None:
            return None
        heads, names, tails = (pieces[at::per_row] for at in range(per_row - 2, per_row + 1))
        table = _Table.of(heads, tails, marks=self._marks, cut=self._cut)
        times = table.columns(self._start, self._end) if table else None
        numbers = table.columns(*self._numbers) if table else None
        if table is None or times is None or numbers is None:
            return None
        if not self._same_names(numbers[0].tolist(), names):
            return None
        keys = list(zip(_heads([texts, *numbers]), table.rest(tails, self._end + 1), strict=True))
        return self._maker.block(keys, times[0], times[1])

    def _leading_texts(self, pieces: list[bytes], per_row: int) -> Ints | None:
        """Give numbers to the texts at the start of each row; None if there is anything else."""
        rows = len(pieces) // per_row
        if pieces[0] or pieces[1::per_row].count(_KIND) != rows:
            return None
        if any(pieces[at::per_row].count(b",") != rows for at in range(2, per_row - 2, 2)):
            return None
        columns = [pieces[at::per_row] for at in range(3, per_row - 2, 2)]
        one = all(column.count(column[0]) == rows for column in columns)  # device: most files
        texts = [next(zip(*columns, strict=True), ())] if one else list(zip(*columns, strict=True))
        for text in dict.fromkeys(texts):
            self._texts.setdefault(text, len(self._texts))
        if len(self._texts) > _TEXTS_MAX:
            return None
        numbers = [self._texts[text] for text in texts]
        return np.full(rows, numbers[0]) if one else np.array(numbers, dtype=np.int64)

    def _same_names(self, numbers: list[int], names: list[bytes]) -> bool:
        """Whether each kernel id goes with one name, so that keys need not hold the long names."""
        if list(map(self._names.get, numbers)) == names:
            return True
        if len(self._names) > _NAMES_MAX:
            return False
        pairs = zip(numbers, names, strict=True)
        return all(self._names.setdefault(number, name) == name for number, name in pairs)

    def _kind_of(self, key: _Key) -> LaunchRecord | Skip:
        head, last = key
        if isinstance(head, int):
            head = tuple(head >> _BITS * at & 2**_BITS - 1 for at in range(len(self._numbers) + 1))
        text, kernel, *numbers = head
        rest = _text(last).rstrip("\n").split(",")
        leading = ["", *map(_text, list(self._texts)[text])]
        cells = {field: str(number) for field, number in zip(self._fields, numbers, strict=True)}
        cells["name"] = _text(self._names[kernel])
        for field in KIND_FIELDS:
            at = self._at.get(field, self._at["start"])
            if at < self._leading:
                cells[field] = leading[at]
            elif at > self._at["end"]:
                cells[field] = rest[at - self._at["end"] - 1]
        return kind_of(tuple(cells.get(field, "") for field in KIND_FIELDS))


class _Table:
    """Rows of bare cells, one text.

    Parameters
    ----------
    text
        The rows; before the first are as many zeros as the longest number has digits.
    ends
        Offset of what ends each cell, one row per row: commas, the cut, and the line end.
    """

    def __init__(self, text: bytes, ends: Ints) -> None:
        self._text = text
        self._ends = ends

    @classmethod
    def of(cls, heads: list[bytes], tails: list[bytes], *, marks: int, cut: int) -> _Table | None:
        """Join what lies around the names; None unless every row has its cells and its name."""
        rows = len(heads)
        pieces = [_CUT] * (3 * rows + 1)
        pieces[0], pieces[1::3], pieces[3::3] = _PAD, heads, tails
        text = b"".join(pieces)
        raw = np.frombuffer(text, dtype=np.uint8)
        ends = np.flatnonzero(raw < _ZERO)
        row = b"," * cut + _CUT + b"," * (marks - cut - 2) + b"\n"
        if raw.max() > _NINE or raw[ends].tobytes() != row * rows:
            return None
        table = ends.reshape(rows, marks)
        alone = (table[:, cut + 1] - table[:, cut - 1] == 2).all()  # the name had its own cell
        return cls(text, table) if alone and table[-1, -1] == len(text) - 1 else None

    def columns(self, *cells: int) -> Sequence[Ints] | None:
        """Numbers of columns; None if one is empty or too long: the careful way will judge."""
        at = np.array(cells)
        high = self._ends[:, at].T
        sizes = high - self._ends[:, at - 1].T - 1
        shortest, longest = int(sizes.min()), int(sizes.max())
        if shortest < 1 or longest > _DIGITS:
            return None
        if longest <= _WORD:
            return list(self._short(high, sizes))
        digits = self._bytes(high, longest) - np.uint8(_ZERO)
        if shortest < longest:
            digits[np.arange(longest, 0, -1) > sizes[:, :, None]] = 0
        return list(digits @ _POWERS[-longest:])

    def _short(self, high: Ints, sizes: Ints) -> Ints:
        """Numbers that fit a word: what lies before their first digit is shifted out and back."""
        words = self._bytes(high, _WORD).view("<u8")[..., 0]
        out = (8 * (_WORD - sizes)).astype(np.uint64)
        digits = (((words >> out) - (_ZEROS >> out)) << out).astype("<u8", copy=False)
        exact = digits.view(np.uint8).reshape(*high.shape, _WORD).astype(np.float64)
        numbers: Ints = (exact @ _POWERS[-_WORD:].astype(np.float64)).astype(np.int64)
        return numbers

    def _bytes(self, high: Ints, count: int) -> NDArray[np.uint8]:
        """Return so many bytes before each offset, as one more axis."""
        places = len(self._text) - count + 1
        windows: NDArray[np.void] = np.ndarray(places, f"V{count}", self._text, strides=1)
        return windows[high - count].view(np.uint8).reshape(*high.shape, count)

    def rest(self, tails: list[bytes], cell: int) -> list[bytes]:
        """Text of each row from a cell behind the name to the line's end."""
        ends = self._ends
        starts = (ends[:, cell - 1] - ends[:, -1]).tolist()
        return [tail[at:] for tail, at in zip(tails, starts, strict=True)]


def _heads(columns: Sequence[Ints]) -> Sequence[_Head]:
    """Join the numbers of each row to one that can be parted again, or else to a tuple."""
    if len(columns) > 62 // _BITS or any(column.max() >= 2**_BITS for column in columns):
        return list(zip(*(column.tolist() for column in columns), strict=True))
    packed = columns[0]
    for place, column in enumerate(columns[1:], start=1):
        packed = packed | column << _BITS * place
    heads: list[int] = packed.tolist()
    return heads


def layout_of(
    header: Sequence[str], columns: Columns, first_row: bytes, *, skipped: Counter[str]
) -> Layout | None:
    """Return the layout if `first_row` looks as rocprofv3 writes rows, else None."""
    at = columns.at
    lower = [cell.strip().lower() for cell in header]
    try:
        cells = next(csv.reader([first_row.decode("utf-8", "replace")]), [])
    except csv.Error:
        return None
    if len(cells) != columns.width or lower[0] != "kind" or "kernel_id" not in lower:
        return None
    quoted = _quoted_cells(first_row, cells)
    if not quoted or quoted[-1] != at["name"] or quoted[:-1] != list(range(len(quoted) - 1)):
        return None
    leading, kernel_id = len(quoted) - 1, lower.index("kernel_id")
    of_kind = {at[field] for field in KIND_FIELDS if field in at} - {at["name"]}
    behind_name = {cell for cell in of_kind if at["name"] < cell < at["end"]}
    in_order = leading <= kernel_id < at["name"] < at["start"] < at["end"] < columns.width - 1
    if leading < 1 or behind_name or not in_order:
        return None
    return Layout(leading, columns, kernel_id=kernel_id, skipped=skipped)


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


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "backslashreplace")

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

from retuned.adapters.traces.blocks import BlockMaker, Ints, LaunchBlock
from retuned.adapters.traces.rocprof_columns import KIND_FIELDS, Columns, kind_of
from retuned.stages.trace import LaunchRecord, Skip

_Key = tuple[int | bytes, ...]
_COMMA, _NEWLINE = b",\n"
_ZERO, _TEN = np.uint8(ord("0")), np.uint8(10)
_DIGITS = 18
_POWERS = 10 ** np.arange(_DIGITS, dtype=np.int64)
_NAMES_MAX = 65_536
_AGENTS_MAX = 64


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
        self._cells = columns.width - leading + 1  # the leading ones become one
        self._name = columns.at["name"] - leading + 1
        self._start = columns.at["start"] - leading + 1
        self._end = columns.at["end"] - leading + 1
        self._fields = [
            field
            for field in KIND_FIELDS
            if leading <= columns.at.get(field, -1) < columns.at["start"] and field != "name"
        ]
        self._numbers = [kernel_id - leading + 1, 0]
        self._numbers += [columns.at[field] - leading + 1 for field in self._fields]
        self._agents: dict[bytes, int] = {}
        self._names: dict[int, bytes] = {}
        self._maker: BlockMaker[_Key] = BlockMaker(self._kind_of, skipped=skipped)

    def block(self, part: bytes) -> LaunchBlock | None:
        """Read whole rows, each with the line end before it and all with one behind the last.

        None if any of them is unusual, or the last goes on.
        """
        split = self._split(part)
        if split is None and self._learn(part):
            split = self._split(part)
        if split is None:
            return None
        table, names = split
        numbers = [table.column(cell) for cell in (self._start, self._end, *self._numbers)]
        lists = [column.tolist() for column in numbers[2:] if column is not None]
        if len(lists) < len(numbers) - 2 or numbers[0] is None or numbers[1] is None:
            return None
        if max(lists[1]) >= len(self._agents) or not self._same_names(lists[0], names):
            return None
        keys = list(zip(*lists, table.rest(self._end + 1), strict=True))
        return self._maker.block(keys, numbers[0], numbers[1])

    def _split(self, part: bytes) -> tuple[_Table, list[bytes]] | None:
        """Part the names from the numbers; None if a row is not as the others."""
        text = part
        for agent, number in self._agents.items():
            text = text.replace(agent, b"\n%d," % number)
        pieces = text.split(b'"')
        pieces[0] = pieces[0][1:]
        rows, odd = divmod(len(pieces) - 1, 2)
        if odd or not rows:
            return None
        table = _Table.of(pieces[::2], rows=rows, cells=self._cells, name=self._name)
        return None if table is None else (table, pieces[1::2])

    def _learn(self, part: bytes) -> bool:
        """Note the texts at the starts of rows that are not known yet; True if there were any."""
        known = len(self._agents)
        for line in part.split(b"\n"):
            agent = b"\n" + b",".join(line[:256].split(b",")[: self._leading]) + b","
            usual = agent.startswith(b'\n"KERNEL_DISPATCH",')
            if usual and agent.count(b'"') == 2 * self._leading and known < _AGENTS_MAX:
                self._agents.setdefault(agent, len(self._agents))
        return len(self._agents) > known

    def _same_names(self, numbers: list[int], names: list[bytes]) -> bool:
        """Whether each kernel id goes with one name, so that keys need not hold the long names."""
        if list(map(self._names.get, numbers)) == names:
            return True
        if len(self._names) > _NAMES_MAX:
            return False
        pairs = zip(numbers, names, strict=True)
        return all(self._names.setdefault(number, name) == name for number, name in pairs)

    def _kind_of(self, key: _Key) -> LaunchRecord | Skip:
        kernel, agent, *numbers, last = key
        rest = _text(last).split(",")
        leading = next(csv.reader([_text(list(self._agents)[int(agent)][1:])]))
        cells = {field: str(number) for field, number in zip(self._fields, numbers, strict=True)}
        cells["name"] = _text(self._names[int(kernel)])
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
        The rows.
    commas
        Offset of each comma, one row per row.
    line_ends
        Offset of each line end.
    """

    def __init__(self, text: bytes, commas: Ints, line_ends: Ints) -> None:
        self._text = text
        self._raw = np.frombuffer(text, dtype=np.uint8)
        self._bounds = np.column_stack((np.concatenate(([-1], line_ends[:-1])), commas, line_ends))

    @classmethod
    def of(cls, pieces: list[bytes], *, rows: int, cells: int, name: int) -> _Table | None:
        """Join what lies around the names; None unless every row has its cells and its name."""
        text = b"".join(pieces)
        raw = np.frombuffer(text, dtype=np.uint8)
        commas = np.flatnonzero(raw == _COMMA)
        line_ends = np.flatnonzero(raw == _NEWLINE)
        if len(commas) != rows * (cells - 1) or len(line_ends) != rows:
            return None
        digits = np.count_nonzero(raw - _ZERO < _TEN)
        if digits + len(commas) + rows != len(text) or line_ends[-1] != len(text) - 1:
            return None
        commas = commas.reshape(rows, cells - 1)  # type: ignore[assignment]
        names = np.cumsum(list(map(len, pieces)))[:-1]
        between = (commas[:, -1] < line_ends).all() and (line_ends[:-1] < commas[1:, 0]).all()
        # the name's cell is empty now, and each name was cut out of just there
        empty = (commas[:, name] == names).all() and (commas[:, name - 1] == names - 1).all()
        return cls(text, commas, line_ends) if between and empty else None

    def column(self, cell: int) -> Ints | None:
        """Numbers of a column; None if one is empty or too long: the careful way will judge."""
        low, high = self._bounds[:, cell] + 1, self._bounds[:, cell + 1]
        sizes = high - low
        shortest, longest = int(sizes.min()), int(sizes.max())
        if shortest < 1 or longest > _DIGITS:
            return None
        back = np.arange(longest)
        at = high[:, None] - 1 - back  # units first
        if shortest == longest:
            digits = self._raw[at] - _ZERO
        else:
            digits = np.where(back < sizes[:, None], self._raw[np.maximum(at, 0)] - _ZERO, 0)
        numbers: Ints = digits @ _POWERS[:longest]
        return numbers

    def rest(self, cell: int) -> list[bytes]:
        """Text of each row from a cell to its end."""
        low, high = (self._bounds[:, cell] + 1).tolist(), self._bounds[:, -1].tolist()
        return [self._text[a:b] for a, b in zip(low, high, strict=True)]


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


def _text(raw: int | bytes) -> str:
    return raw.decode("utf-8", "backslashreplace") if isinstance(raw, bytes) else str(raw)

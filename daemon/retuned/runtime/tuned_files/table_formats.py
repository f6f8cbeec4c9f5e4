"""Table formats: AITER's tuned tables and PyTorch's TunableOp results.

AITER's tables are CSV with a header, one row a shape; columns differ between tables. pandas reads
them and guesses the type of a whole column: one cell of another kind changes the type of all rows.
So a new cell must be of its column's kind. A second row for one shape stops the server at its
start; it is refused here. Unchanged lines keep their bytes, including unknown columns.

TunableOp results are ``Validator`` lines, then operator, parameters, solution, time.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from retuned.runtime.schema import Refused
from retuned.runtime.tuned_files.strict import MAX_CELL, MAX_M, MAX_ROWS, invalid, text_of

MAX_COLUMNS = 64
GEMM_KEY = (
    *("gfx", "cu_num", "B", "M", "N", "K", "bias", "dtype", "outdtype", "scaleAB"),
    *("bpreshuffle", "q_dtype_w", "_tag"),
)
"""Columns that identify the matrices of a row, if a table has them."""
MOE_KEY = (
    *("gfx", "cu_num", "token", "model_dim", "inter_dim", "expert", "topk", "act_type", "dtype"),
    *("q_dtype_a", "q_dtype_w", "q_type", "use_g1u1", "doweight_stage1", "_tag"),
)
"""The same for mixtures of experts."""
_COLUMN = re.compile(r"[A-Za-z_][A-Za-z0-9_ ./%-]{0,63}\Z")
_WHOLE = re.compile(r"-?(?:0|[1-9][0-9]{0,17})\Z")
_REAL = re.compile(r"-?[0-9]{1,18}(?:\.[0-9]{1,24})?(?:[eE][+-]?[0-9]{1,3})?\Z")
_ODD = re.compile(r"[^ -~]|[\"']")
_MISSING = frozenset(("", "nan", "NaN", "NA", "N/A", "null", "NULL", "None", "n/a", "<NA>"))


@dataclass(frozen=True, slots=True)
class Table:
    name: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    """Cells as they are spelled."""
    lines: tuple[str, ...]
    """Header and rows with their line ends."""
    key: tuple[int, ...]
    """Positions of the columns of the key, without that of M."""
    m: int

    def shape_of(self, row: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(row[index] for index in self.key)

    @property
    def shape_columns(self) -> tuple[str, ...]:
        return tuple(self.header[index] for index in self.key)


def read_table(name: str, data: bytes) -> Table:
    """Read a table.

    Raises
    ------
    Refused
        ``tuned-invalid``.
    """
    text = text_of(name, data)
    lines = tuple(re.findall(r"[^\n]*\n|[^\n]+\Z", text))
    if not lines or len(lines) > MAX_ROWS:
        raise invalid(name, "the whole", f"has {len(lines)} lines, not 1 to {MAX_ROWS}")
    header = _cells(name, 1, lines[0])
    if len(set(header)) != len(header) or not 1 < len(header) <= MAX_COLUMNS:
        raise invalid(name, "line 1", f"is not a header of 2 to {MAX_COLUMNS} different columns")
    if not all(_COLUMN.match(column) for column in header):
        raise invalid(name, "line 1", "has something that is not a name of a column")
    rows = []
    for number, line in enumerate(lines[1:], start=2):
        cells = _cells(name, number, line)
        if len(cells) != len(header):
            problem = f"has {len(cells)} cells under {len(header)} columns; cut off?"
            raise invalid(name, f"line {number}", problem)
        rows.append(cells)
    key, m = _keyed(name, header)
    table = Table(name, header, tuple(rows), lines, key, m)
    _check_rows(table)
    return table


def write_table(table: Table, changed: Mapping[int, tuple[str, ...]], added: list[Row]) -> bytes:
    """Return the bytes with rows replaced (by position) and appended."""
    lines = list(table.lines)
    end = "\r\n" if lines[0].endswith("\r\n") else "\n"
    for index, cells in changed.items():
        if cells != table.rows[index]:
            old = lines[index + 1]
            lines[index + 1] = ",".join(cells) + old[len(old.rstrip("\r\n")) :]
    if added and not lines[-1].endswith("\n"):
        lines[-1] += end
    lines += [",".join(cells) + end for cells in added]
    return "".join(lines).encode("ascii")


Row = tuple[str, ...]


def new_row(table: Table, cells: Mapping[str, str]) -> Row:
    """Check a new row against the columns of its table.

    Raises
    ------
    Refused
        ``row-invalid``: a missing or unknown column, or a cell of another kind than its column.
    """
    if set(cells) != set(table.header):
        missing = sorted(set(table.header) - set(cells))
        unknown = sorted(set(cells) - set(table.header))
        raise _bad_row(f"{missing} are missing and {unknown} are not columns of {table.name}")
    row = tuple(cells[column] for column in table.header)
    for index, cell in enumerate(row):
        column = table.header[index]
        if not isinstance(cell, str) or not _plain(cell):
            raise _bad_row(f"{column} is not text without commas, quotes and line ends")
        kinds = {kind_of(other[index]) for other in table.rows}
        if kinds and kind_of(cell) not in kinds:
            problem = f"{column} has {cell!r:.80}, where all rows have {sorted(kinds)}"
            raise _bad_row(problem + "; pandas would read the whole column as another type")
    if not _is_m(row[table.m]):
        raise _bad_row(f"{table.header[table.m]} is not a batch size from 1 to {MAX_M}")
    return row


def kind_of(cell: str) -> str:
    """Return how pandas classifies a cell: whole, real, bool, missing or text."""
    if cell in _MISSING:
        return "missing"
    if _WHOLE.match(cell):
        return "whole"
    if _REAL.match(cell):
        return "real"
    return "bool" if cell in ("True", "False") else "text"


def _cells(name: str, number: int, line: str) -> Row:
    body = line.rstrip("\n").removesuffix("\r")
    if not body:
        raise invalid(name, f"line {number}", "is empty")
    cells = tuple(body.split(","))
    if _ODD.search(body) or max(map(len, cells)) > MAX_CELL:
        problem = f"has a quote, a control character or a cell above {MAX_CELL} characters"
        raise invalid(name, f"line {number}", problem)
    return cells


def _plain(cell: str) -> bool:
    return len(cell) <= MAX_CELL and "," not in cell and not _ODD.search(cell)


def _keyed(name: str, header: Row) -> tuple[tuple[int, ...], int]:
    for m, needed, known in (
        ("token", {"model_dim", "inter_dim", "expert", "topk"}, MOE_KEY),
        ("M", {"N", "K"}, GEMM_KEY),
    ):
        if {m, *needed} <= set(header):
            key = tuple(i for i, column in enumerate(header) if column in known and column != m)
            return key, header.index(m)
    problem = "has neither M, N, K nor token, model_dim, inter_dim, expert, topk"
    raise invalid(name, "line 1", problem)


def _check_rows(table: Table) -> None:
    seen: dict[tuple[str, ...], int] = {}
    for number, row in enumerate(table.rows, start=2):
        if not _is_m(row[table.m]):
            raise invalid(table.name, f"line {number}", f"{row[table.m]!r:.40} is not a batch size")
        key = (*table.shape_of(row), row[table.m])
        first = seen.setdefault(key, number)
        if first != number and row != table.rows[first - 2]:
            raise invalid(
                table.name,
                f"line {number}",
                f"is for the same shape as line {first}; the server refuses to start with both",
            )


def _is_m(cell: str) -> bool:
    return bool(_WHOLE.match(cell)) and 1 <= int(cell) <= MAX_M


def _bad_row(problem: str) -> Refused:
    return Refused("row-invalid", detail=problem[:600])


Key = tuple[str, str]
"""Operator and parameters."""
_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:+*-]*\Z")
_TIME = re.compile(r"[0-9]{1,12}(?:\.[0-9]{1,24})?(?:[eE][+-]?[0-9]{1,3})?\Z")
_VALIDATOR = "Validator"


@dataclass(frozen=True, slots=True)
class Results:
    name: str
    validators: tuple[tuple[str, str], ...]
    """Conditions under which the results are valid."""
    rows: tuple[tuple[str, ...], ...]
    """Operator, parameters, solution and further cells."""
    lines: tuple[str, ...]
    """All lines with their line ends; the validators come first."""

    def solutions(self) -> dict[Key, str]:
        return {(row[0], row[1]): row[2] for row in self.rows}


def read_results(name: str, data: bytes) -> Results:
    """Read a file.

    Raises
    ------
    Refused
        ``tuned-invalid``.
    """
    lines = tuple(re.findall(r"[^\n]*\n|[^\n]+\Z", text_of(name, data)))
    if len(lines) > MAX_ROWS:
        raise invalid(name, "the whole", f"has more than {MAX_ROWS} lines")
    validators: dict[str, str] = {}
    rows: dict[Key, tuple[str, ...]] = {}
    for number, line in enumerate(lines, start=1):
        place = f"line {number}"
        cells = tuple(line.rstrip("\n").removesuffix("\r").split(","))
        if not cells[0]:
            raise invalid(name, place, "is empty; PyTorch ends the process that reads it")
        if "\r" in line:
            raise invalid(name, place, "ends with a carriage return, which PyTorch reads as text")
        if any(len(cell) > MAX_CELL or not cell.isprintable() for cell in cells):
            raise invalid(name, place, "has a control character, or a cell that is too long")
        if cells[0] == _VALIDATOR:
            if rows or len(cells) < 3 or cells[1] in validators:
                problem = "is not a validator with a value, is repeated, or follows a result"
                raise invalid(name, place, problem)
            validators[cells[1]] = ",".join(cells[2:])
            continue
        _check_row(name, place, cells)
        if (cells[0], cells[1]) in rows:
            raise invalid(name, place, "is for the same operator and parameters as an earlier one")
        rows[cells[0], cells[1]] = cells
    if "PT_VERSION" not in validators:
        raise invalid(
            name, "the beginning", "has no PT_VERSION validator; PyTorch ignores the file"
        )
    if lines and not lines[-1].endswith("\n"):
        raise invalid(name, f"line {len(lines)}", "has no end; the file was cut off")
    return Results(name, tuple(validators.items()), tuple(rows.values()), lines)


def plan_results(file: Results, new: Sequence[tuple[str, ...]]) -> bytes:
    """Return the bytes with new results, in place of old ones or at the end.

    Raises
    ------
    Refused
        ``row-invalid``.
    """
    wanted: dict[Key, tuple[str, ...]] = {}
    for row in new:
        try:
            _check_row(file.name, "new row", row)
        except Refused as error:
            raise Refused("row-invalid", detail=error.detail) from error
        if "*" in row[0] + row[1] or (row[0], row[1]) in wanted or len(row) > 4:
            detail = f"{row[0]:.80},{row[1]:.80} is a wildcard, is repeated or is too long"
            raise Refused("row-invalid", detail=detail)
        wanted[row[0], row[1]] = row
    lines = []
    for line in file.lines:
        cells = line.rstrip("\n").split(",")
        fresh = wanted.pop((cells[0], cells[1]), ()) if cells[0] != _VALIDATOR else ()
        lines.append(",".join(fresh) + "\n" if fresh and tuple(cells) != fresh else line)
    lines += [",".join(row) + "\n" for row in wanted.values()]
    return "".join(lines).encode("ascii")


def _check_row(name: str, place: str, cells: Sequence[str]) -> None:
    if len(cells) < 3:
        raise invalid(name, place, f"has {len(cells)} cells, not operator, parameters, solution")
    if not all(_WORD.match(cell) for cell in cells[:3]):
        raise invalid(name, place, "has an operator, parameters or a solution that is not a word")
    if len(cells) > 3 and not _TIME.match(cells[3]):
        raise invalid(name, place, f"{cells[3]!r:.40} is not a time in milliseconds")

"""PyTorch's TunableOp results: ``Validator`` lines, then operator, parameters, solution, time.

The first row of an operator and its parameters counts; PyTorch ignores later ones, and every one
of a file whose validators do not all fit. It reads an empty line as no line of anything and ends
the process, so there must be none. Parameters are matched exactly: a row draws nobody in.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from retuned.runtime.spec import Refused
from retuned.runtime.tuned.strict import MAX_CELL, MAX_ROWS, invalid, text_of

Key = tuple[str, str]
"""Operator and parameters."""
_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:+*-]*\Z")
_TIME = re.compile(r"[0-9]{1,12}(?:\.[0-9]{1,24})?(?:[eE][+-]?[0-9]{1,3})?\Z")
_VALIDATOR = "Validator"


@dataclass(frozen=True, slots=True)
class Results:
    """A file that was read."""

    name: str
    """For messages."""
    validators: tuple[tuple[str, str], ...]
    """What the results hold for."""
    rows: tuple[tuple[str, ...], ...]
    """Operator, parameters, solution and what follows."""
    lines: tuple[str, ...]
    """All lines with what ends them; the validators come first."""

    def solutions(self) -> dict[Key, str]:
        """Return the solution by operator and parameters."""
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
                problem = "is no validator with a value, comes twice, or follows a result"
                raise invalid(name, place, problem)
            validators[cells[1]] = ",".join(cells[2:])
            continue
        _check_row(name, place, cells)
        if (cells[0], cells[1]) in rows:
            raise invalid(name, place, "is for the same operator and parameters as an earlier one")
        rows[cells[0], cells[1]] = cells
    if "PT_VERSION" not in validators:
        raise invalid(name, "the beginning", "has no PT_VERSION validator; PyTorch ignores it all")
    if lines and not lines[-1].endswith("\n"):
        raise invalid(name, f"line {len(lines)}", "has no end; the file was cut off")
    return Results(name, tuple(validators.items()), tuple(rows.values()), lines)


def plan_results(file: Results, new: Sequence[tuple[str, ...]]) -> bytes:
    """Return the bytes with new results, in the place of old ones or at the end.

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
            detail = f"{row[0]:.80},{row[1]:.80} stands for many, comes twice or is too long"
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
        raise invalid(name, place, "has an operator, parameters or a solution that is no word")
    if len(cells) > 3 and not _TIME.match(cells[3]):
        raise invalid(name, place, f"{cells[3]!r:.40} is no time in milliseconds")

"""Tables and fields as lines: names, ids and digests stay whole however narrow the terminal is.

Where no terminal is (a pipe, a file) a row is one line of any length, and so can be searched.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from retuned.terminal.output import safe, stdout

_GAP = "  "
_INDENT = "  "
"""So narrow that a digest with its name, ``digest=sha256:...``, still fits 80 columns."""
_DETAIL = "detail"
"""The column that says by itself what it holds."""
_LONGEST_CELL = 4_000
"""Longest cell, characters; as long as the longest comment."""


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows under their header; text from outside is made harmless."""
    out = stdout()
    clean = [[safe(value, limit=_LONGEST_CELL) for value in row] for row in rows]
    for number, line in enumerate(table_lines(header, clean, width=width_of(out))):
        out.print(Text(line, style="" if number else "bold"), soft_wrap=True)


def print_fields(fields: Sequence[tuple[str, str]]) -> None:
    """Print one field a line; text from outside is made harmless."""
    out = stdout()
    clean = [(safe(name), safe(value, limit=_LONGEST_CELL)) for name, value in fields]
    for line in field_lines(clean, width=width_of(out)):
        out.print(Text(line), soft_wrap=True)


def width_of(console: Console) -> int | None:
    """Return the columns of a terminal; None where there is none."""
    return console.width if console.is_terminal else None


def table_lines(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, width: int | None
) -> Iterator[str]:
    """Yield the header and the rows; what does not fit beside is set in below, with its name.

    Examples
    --------
    >>> rows = [("ab12", "linear_w8", "looks right")]
    >>> list(table_lines(("id", "kernel", "detail"), rows, width=None))
    ['id    kernel     detail', 'ab12  linear_w8  looks right']
    >>> list(table_lines(("id", "kernel", "detail"), rows, width=20))
    ['id    kernel', 'ab12  linear_w8', '  looks right']
    >>> list(table_lines(("id", "kernel", "detail"), rows, width=14))
    ['id', 'ab12', '  kernel', '  linear_w8', '  looks right']
    >>> list(table_lines(("id", "waits for"), [("ab12", "two people")], width=14))
    ['id', 'ab12', '  waits for', '  two people']
    """
    sizes = [max(map(cell_len, column)) for column in zip(header, *rows, strict=True)]
    beside = _beside(sizes, width=width)
    yield _joined(header[:beside], sizes)
    for row in rows:
        whole = _joined(row, sizes)
        if beside == len(header) or (beside == len(header) - 1 and _fits(whole, width)):
            yield whole
            continue
        yield _joined(row[:beside], sizes)
        named = [
            value if name == _DETAIL else f"{name} {value}"
            for name, value in zip(header[beside:], row[beside:], strict=True)
            if value
        ]
        yield from _packed(named[:-1] if row[-1] else named, width=width or 0)
        if row[-1]:
            yield from _wrapped(named[-1], width=width, indent=_INDENT)


def field_lines(fields: Sequence[tuple[str, str]], *, width: int | None) -> Iterator[str]:
    """Yield fields by name; a value whose longest word does not fit beside is set in below.

    Examples
    --------
    >>> list(field_lines([("artifact", "sha256:cdcdcd"), ("risk", "low; small")], width=20))
    ['artifact', '  sha256:cdcdcd', 'risk      low; small']
    """
    size = max((cell_len(name) for name, _ in fields), default=0)
    for name, value in fields:
        beside = _padded(name, size) + _GAP
        words = value.split() or [""]
        if width is None or cell_len(beside) + max(map(cell_len, words)) <= width:
            first, *more = list(_wrapped(value, width=width, indent=" " * cell_len(beside))) or [""]
            yield (beside + first.strip()).rstrip()
            yield from more
        else:
            yield name
            yield from _wrapped(value, width=width, indent=_INDENT)


def _beside(sizes: Sequence[int], *, width: int | None) -> int:
    """Return how many columns fit beside each other; the last one is free to be longer."""
    if width is None:
        return len(sizes)
    for count in range(len(sizes) - 1, 1, -1):
        if sum(sizes[:count]) + len(_GAP) * (count - 1) <= width:
            return count
    return 1


def _joined(row: Sequence[str], sizes: Sequence[int]) -> str:
    cells = [_padded(value, size) for value, size in zip(row, sizes, strict=False)]
    return _GAP.join(cells).rstrip()


def _packed(parts: Sequence[str], *, width: int) -> Iterator[str]:
    """Yield lines of whole parts; only a part longer than a line is parted, between its words."""
    line = ""
    for part in parts:
        longer = f"{line}{_GAP}{part}" if line else _INDENT + part
        if line and cell_len(longer) > width:
            yield from _wrapped(line, width=width, indent=_INDENT)
            longer = _INDENT + part
        line = longer
    if line:
        yield from _wrapped(line, width=width, indent=_INDENT)


def _wrapped(text: str, *, width: int | None, indent: str) -> Iterator[str]:
    """Yield lines that are parted between words only."""
    if not text.strip():
        return
    if width is None or _fits(indent + text.strip(), width):
        yield indent + text.strip()
        return
    for line in textwrap.wrap(
        text.strip(),
        width,
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    ):
        yield line if _fits(line, width) else line.rstrip(",")  # the line's end parts as well


def _fits(line: str, width: int | None) -> bool:
    return width is None or cell_len(line) <= width


def _padded(text: str, size: int) -> str:
    return text + " " * (size - cell_len(text))

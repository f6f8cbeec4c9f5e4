"""What commands print: one JSON object on stdout where asked, else text; messages on stderr.

Paths, names and comments are untrusted text: use `safe` and `cell` for output on stdout, and `say`
for messages. Reports use the same rule, `clean`.

Moments, spans and ids as people write and read them.

Tables and fields as lines: names, ids and digests stay whole however narrow the terminal is.

How values read: numbers with units, names cut to size, untrusted text made safe to show.
"""

from __future__ import annotations

import json
import math
import re
import sys
import textwrap
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from retuned.errors import RetunedError, UsageError
from retuned.stages.gate.values import parse_duration

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

NOTHING = "\N{EN DASH}"
TIMES = "\N{MULTIPLICATION SIGN}"
MINUS = "\N{MINUS SIGN}"
ELLIPSIS = "\N{HORIZONTAL ELLIPSIS}"
_BAD = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Unicode categories that steer a terminal or a reader, or show as nothing."""
_TENSILE = re.compile(
    r"(Cijk_[A-Z][a-z]+_[A-Z][a-z]+_[A-Z0-9]{1,12})(?=_).{0,2000}?(MT\d+x\d+x\d+)"
    r"(?:.{0,4000}_(WG\d+_\d+_\d+))?"
)
_TIME_UNITS = ((1e9, "s"), (1e6, "ms"), (1e3, "\N{MICRO SIGN}s"), (1.0, "ns"))


def clean(text: str) -> str:
    r"""Fold white space; replace control, bidirectional, invisible and illegal characters.

    Examples
    --------
    >>> clean("a\tb\x1b[31m") == "a b\ufffd[31m"
    True
    """
    folded = re.sub(r"[\t\n\r]+", " ", text)
    if folded.isprintable():
        return folded
    return "".join(
        "\N{REPLACEMENT CHARACTER}" if unicodedata.category(char) in _BAD else char
        for char in folded
    )


def short(text: object, limit: int = 64) -> str:
    """Cut in the middle: both ends of a kernel's name tell variants apart.

    Examples
    --------
    >>> short("abcdefghij", 5) == "ab" + ELLIPSIS + "ij"
    True
    """
    cut = clean(text) if isinstance(text, str) else label(text)
    if len(cut) <= limit:
        return cut
    head = limit // 2
    tail = limit - head - 1
    return cut[:head] + ELLIPSIS + (cut[-tail:] if tail else "")


def kernel(name: str, limit: int = 64) -> str:
    """Shorten a kernel's name to what tells it from others.

    Tensile and hipBLASLt names keep problem, macro tile and work-group; C++ names lose the return
    type and, where they are too long, the argument list.

    Examples
    --------
    >>> long = "Cijk_Alik_Bljk_BBS_BH_Bias_MT256x192x64_MI16x16x1" + 40 * "_X1" + "_WG32_8_1"
    >>> kernel(long).split(ELLIPSIS)
    ['Cijk_Alik_Bljk_BBS', 'MT256x192x64', 'WG32_8_1']
    """
    text = clean(name)
    if len(text) <= limit:
        return text
    tensile = _TENSILE.match(text)
    if tensile:
        return short(ELLIPSIS.join(part for part in tensile.groups() if part), limit)
    text = text.removeprefix("void ")
    if text.endswith(")") and len(text) > limit:
        text = _without_arguments(text)
    return short(text, limit)


def kernels(names: Iterable[str], limit: int = 64) -> dict[str, str]:
    """Shorten several names, each only as far as it stays another than the others.

    Examples
    --------
    >>> one, two = (f"gemm<{60 * 'a'}{middle}{60 * 'a'}>" for middle in "bc")
    >>> [len(text) for text in kernels([one, two, "copy"], 20).values()]
    [127, 127, 4]
    """
    found = {name: kernel(name, limit) for name in names}
    while limit < max((len(name) for name in found), default=0):
        limit *= 2
        seen = Counter(found.values())
        found = {n: kernel(n, limit) if seen[text] > 1 else text for n, text in found.items()}
    return found


def _without_arguments(text: str) -> str:
    """Drop the last balanced pair of parentheses."""
    depth = 0
    for at in range(len(text) - 1, 0, -1):
        depth += {")": 1, "(": -1}.get(text[at], 0)
        if depth == 0:
            return text[:at]
    return text


def finite(value: object) -> float | None:
    """Return the number, or None for what is absent, no number or not finite."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def significant(value: object, digits: int = 3) -> str:
    """`digits` significant digits or all of the integer's, thousands with commas."""
    number = finite(value)
    if number is None:
        return NOTHING
    if number == 0:
        return "0"
    if not 1e-4 <= abs(number) < 1e15:
        return f"{number:.{digits - 1}e}".replace("-", MINUS)
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(number))))
    return f"{number:,.{decimals}f}".replace("-", MINUS)


def count(value: object) -> str:
    """Whole number with thousands separators."""
    number = finite(value)
    if number is None:
        return NOTHING
    return f"{number:,.0f}".replace("-", MINUS) if abs(number) < 1e15 else significant(number)


def share(value: object) -> str:
    """Fraction as per cent with one decimal; what is small but not nothing says so."""
    number = finite(value)
    if number is None:
        return NOTHING
    if number == 0:
        return "0 %"
    if 0 < number < 0.0005:
        return "<0.1 %"
    return significant(100 * number) + " %" if abs(number) > 10 else f"{100 * number:.1f} %"


def percent(value: object) -> str:
    """Fraction as per cent without needless digits, for confidences."""
    number = finite(value)
    return NOTHING if number is None else f"{100 * number:.4g} %"


def duration(ns: object) -> str:
    """Nanoseconds in the unit that reads best."""
    number = finite(ns)
    if number is None:
        return NOTHING
    for scale, unit in _TIME_UNITS:
        if abs(number) >= scale:
            return f"{significant(number / scale)} {unit}"
    return f"{significant(number)} ns"


def seconds(value: object) -> str:
    """Seconds; minutes where there are some."""
    number = finite(value)
    if number is None:
        return NOTHING
    if 60 <= number < 1e9:
        whole = round(number)
        return f"{whole // 60:,} min {whole % 60:02d} s"
    return duration(number * 1e9)


def micros(value: object) -> str:
    """Microseconds in the unit that reads best."""
    number = finite(value)
    return NOTHING if number is None else duration(number * 1e3)


def times(value: object) -> str:
    """Return a ratio of times; three decimals near 1, so that 1.013 differs from 1."""
    number = finite(value)
    if number is None:
        return NOTHING
    digits = f"{number:.3f}" if 0.1 <= number < 2 else significant(number)
    return digits + TIMES


def guard(value: object) -> str:
    """Shapes a variant is for; takes a guard as data or as text.

    Examples
    --------
    >>> guard({"bounds": {"M": [129, 512]}})
    '129 <= M <= 512'
    """
    bounds = value.get("bounds") if isinstance(value, Mapping) else None
    if not isinstance(bounds, Mapping):
        return label(value)
    parts = [
        f"{label(b[0])} <= {clean(str(axis))} <= {label(b[1])}"
        for axis, b in bounds.items()
        if isinstance(b, Sequence) and len(b) == 2
    ]
    return ", ".join(parts) or "all shapes"


def belief(value: object) -> str:
    """Return a ratio that is a guess: two digits, so that it does not look measured."""
    number = finite(value)
    return NOTHING if number is None else f"about {significant(number, 2)}{TIMES}"


def plural(number: float, noun: str) -> str:
    """Count and noun.

    Examples
    --------
    >>> plural(1, "launch"), plural(1200, "launch"), plural(2, "signature")
    ('1 launch', '1,200 launches', '2 signatures')
    """
    ending = "" if number == 1 else "es" if noun.endswith(("ch", "s")) else "s"
    return f"{count(number)} {noun}{ending}"


def counted(number: object, noun: str) -> str:
    """Count and noun, of a number that may not be there.

    Examples
    --------
    >>> counted(1, "candidate"), counted(None, "candidate") == f"{NOTHING} candidates"
    ('1 candidate', True)
    """
    known = finite(number)
    return f"{NOTHING} {noun}s" if known is None else plural(known, noun)


def digest(value: object) -> str:
    """First 12 hex digits of a digest."""
    text = clean(value) if isinstance(value, str) else ""
    return text.removeprefix("sha256:")[:12] or NOTHING


def shape(value: object) -> str:
    """Dims such as ``[[16, 1024], [1024]]`` as ``16x1024, 1024`` with proper signs."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        return short(value, 120) if value else ""
    if all(isinstance(part, Sequence) and not isinstance(part, str) for part in value):
        return ", ".join(shape(part) or "scalar" for part in value)
    return TIMES.join(label(part) for part in value)


def label(value: object) -> str:
    """Any JSON value as one short line of text.

    Examples
    --------
    >>> label({"tile": 32, "unroll": 4})
    'tile 32, unroll 4'
    """
    if value is None or value == "":
        return NOTHING
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return significant(value)
    if isinstance(value, Mapping):
        return ", ".join(f"{clean(str(k))} {label(v)}" for k, v in value.items()) or NOTHING
    if isinstance(value, Sequence):
        return ", ".join(label(part) for part in value) or NOTHING
    return clean(str(value))


_LONGEST = 8_000
"""Longest message that is printed, characters."""
_UNWRAPPED = 100_000
"""Columns of a pipe or file, where none is too narrow."""


def emit_json(body: Any) -> None:  # noqa: ANN401 - any JSON-able object
    """Print one object on stdout and nothing else; ASCII, so that no name reaches a terminal."""
    json.dump(body, sys.stdout, ensure_ascii=True, indent=2, allow_nan=False)
    sys.stdout.write("\n")


def emit_yaml(body: Any) -> None:  # noqa: ANN401 - any JSON-able object
    """Print one object as YAML on stdout and nothing else; ASCII as well."""
    import yaml

    yaml.safe_dump(body, sys.stdout, allow_unicode=False, sort_keys=False, width=1000)


def stdout() -> Console:
    """Console for the answer. Names from traces are data, never markup: pass them as ``Text``.

    Where no terminal reads it nothing is wrapped or cut: lines are as long as what they say.
    """
    from rich.console import Console

    console = Console(markup=False, highlight=False, soft_wrap=False)
    if not console.is_terminal:
        console.width = _UNWRAPPED
    return console


def say(text: object, *, limit: int = _LONGEST) -> None:
    """Print a message or a line of progress on stderr; the only way there."""
    shown = lines(str(text)[:limit])
    sys.stderr.write(f"{shown}\n")


def say_error(error: RetunedError, *, as_json: bool, program: str = "retuned") -> int:
    """Print an error as one message, with `as_json` on stdout too; return the exit code."""
    if as_json:
        emit_json({"error": error_body(error)})
    say(f"{program}: {error}")
    return error.exit_code


def error_body(error: RetunedError) -> dict[str, str]:
    """Return the stable JSON of an error."""
    return {"code": error.code, "where": error.where, "message": error.message}


def lines(text: str) -> str:
    r"""Make several lines harmless; what follows the first is set in, so none looks a message.

    Examples
    --------
    >>> lines("no file\nretuned: all is well")
    'no file\n  retuned: all is well'
    """
    return "\n  ".join(clean(line) for line in text.rstrip("\n").split("\n"))


def safe(text: object, *, limit: int = 200) -> str:
    """Make text from outside harmless to a terminal, on one line of at most `limit` characters."""
    text = clean(str(text))
    return text if len(text) <= limit else text[: limit - 1] + ELLIPSIS


def cell(text: object) -> Text:
    """Return text from outside as a table cell, never read as markup."""
    from rich.text import Text

    return Text(safe(text))


_UNITS = (("d", timedelta(days=1)), ("h", timedelta(hours=1)), ("min", timedelta(minutes=1)))


def short_id(digest: str, *, length: int = 12) -> str:
    """Return the beginning of an id, enough to name it by hand.

    Examples
    --------
    >>> short_id("sha256:" + "ab12" * 16)
    'ab12ab12ab12'
    """
    return digest.removeprefix("sha256:")[:length]


def until(text: str, *, now: datetime) -> datetime:
    """Read a moment: ``2h`` from now, or a date and time (local where it names no zone).

    Raises
    ------
    UsageError
        If it is neither, or in the past.
    """
    try:
        moment = now + parse_duration(text)
    except ValueError:
        try:
            moment = datetime.fromisoformat(text).astimezone(UTC)
        except ValueError:
            raise UsageError(
                f"--until {text!r:.60}: write a span like 2h, or a time like 2026-12-24T18:00+01:00"
            ) from None
    if moment <= now:
        raise UsageError(f"--until {text!r:.60} is already past")
    return moment


def ago(moment: datetime, *, now: datetime) -> str:
    """Say how far away a moment is, in one unit.

    Examples
    --------
    >>> noon = datetime(2026, 3, 2, 12, tzinfo=UTC)
    >>> ago(noon - timedelta(hours=3), now=noon), ago(noon + timedelta(minutes=5), now=noon)
    ('3h ago', 'in 5min')
    >>> ago(noon - timedelta(seconds=40), now=noon)
    '40s ago'
    """
    span = moment - now
    size = abs(span)
    for unit, length in _UNITS:
        if size >= 2 * length:
            text = f"{size // length}{unit}"
            break
    else:
        text = f"{int(size.total_seconds())}s"
    return f"in {text}" if span > timedelta(0) else f"{text} ago"


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

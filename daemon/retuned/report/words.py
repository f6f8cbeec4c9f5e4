"""How values read: numbers with units, names cut to size, strangers' text made safe to show.

Every formatter takes anything and answers ``NOTHING`` for what is absent, no number or not finite,
so that a report with gaps shows gaps and never an invented zero.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

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
    """Return a ratio of times; three decimals near 1, so that 1.013 is told apart."""
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


def change(before: object, after: object) -> str:
    """Relative change in per cent, signed."""
    low, high = finite(before), finite(after)
    if low is None or high is None or low <= 0:
        return NOTHING
    percent = 100 * (high / low - 1)
    if abs(percent) >= 1000:
        return f"{significant(high / low)}{TIMES}"
    return f"{percent:+.1f} %".replace("-", MINUS)


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

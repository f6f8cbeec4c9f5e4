"""What a raw row means: names, units, sanity."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

from retuned.stages.trace.records import Skip

NAME_CHARS = 1024
"""Longest normalised name; a longer one is cut and ends in a digest, so that names stay apart."""
LONGEST_NS = 24 * 3600 * 10**9
"""No kernel of a server runs for a day."""
LATEST_NS = 2**62
"""Later timestamps would overflow; the year 2116 on a clock that starts at 1970."""
_AXIS = 2**32
_CLONE = re.compile(r"\s*(?:\[clone \.kd\]|\(\.kd\)|\.kd)$")
_SPACES = re.compile(r"\s+")
_CLOSING = re.compile(r"> (?=>)")


def normalise_kernel_name(raw: str) -> str:
    r"""Return one spelling for a kernel, whichever profiler named it, safe to print.

    Clone suffixes and quotes that older profilers leave are stripped, white space is folded,
    ``> >`` closes as ``>>``; what a terminal would act on (control and format characters, lone
    surrogates) is escaped. Mangled names stay mangled. An empty result means no name.

    Examples
    --------
    >>> normalise_kernel_name('"void f<g<2> >(int)  [clone .kd]"')
    'void f<g<2>>(int)'
    >>> normalise_kernel_name("copy.kd"), normalise_kernel_name("vecCopy(double*) (.kd)")
    ('copy', 'vecCopy(double*)')
    >>> normalise_kernel_name("red" + chr(27) + "[31m")
    'red\\x1b[31m'
    >>> len(normalise_kernel_name("x" * 10**6)) == NAME_CHARS
    True
    """
    name = raw[1:-1] if len(raw) > 1 and raw[0] == raw[-1] == '"' else raw
    name = _CLONE.sub("", _SPACES.sub(" ", name[: 4 * NAME_CHARS]).strip())
    name = _CLOSING.sub(">", name)
    if not name.isprintable():
        name = "".join(
            char if char.isprintable() else char.encode("unicode_escape").decode() for char in name
        )
    if len(name) <= NAME_CHARS and len(raw) <= 4 * NAME_CHARS:
        return name
    mark = "~" + hashlib.sha256(raw.encode("utf-8", "backslashreplace")).hexdigest()[:12]
    return name[: NAME_CHARS - len(mark)] + mark


def blocks_from_work_items(
    items: tuple[int, int, int], threads: tuple[int, int, int]
) -> tuple[int, int, int]:
    """Return the grid in blocks; the last block of an axis may be partly full.

    Parameters
    ----------
    items
        Grid in work-items, as rocprof and ``hipExt*`` launches count.
    threads
        Work-group size; zeros mean unknown.

    Examples
    --------
    >>> blocks_from_work_items((1000, 8, 1), (256, 4, 1))
    (4, 2, 1)
    """
    if 0 in threads:
        return (0, 0, 0)
    x, y, z = (-(-axis // size) for axis, size in zip(items, threads, strict=True))
    return (x, y, z)


def geometry(axes: Sequence[int]) -> tuple[int, int, int] | None:
    """Return a grid or work-group as three axes; None where no device could run it.

    Examples
    --------
    >>> geometry((256,)), geometry((4, 2, 1)), geometry((-1, 1, 1)), geometry((1, 1, 1, 1))
    ((256, 1, 1), (4, 2, 1), None, None)
    """
    if not 1 <= len(axes) <= 3 or any(not 0 <= axis < _AXIS for axis in axes):
        return None
    x, y, z = (*axes, 1, 1)[:3]
    return (x, y, z)


def parse_ns(text: str) -> int | None:
    """Read a count of ns; anything but plain digits is None, never rounded.

    Examples
    --------
    >>> parse_ns("1550151853029637"), parse_ns("8.1097E+14"), parse_ns("-5"), parse_ns("1_0")
    (1550151853029637, None, None, None)
    """
    return int(text) if 0 < len(text) < 20 and text.isascii() and text.isdigit() else None


def us_to_ns(value_us: float) -> int:
    """Return whole ns of the fractional µs that Kineto writes.

    Examples
    --------
    >>> us_to_ns(2.239), us_to_ns(10)
    (2239, 10000)
    """
    return round(value_us * 1000)


def disbelief(start_ns: int, end_ns: int) -> Skip | None:
    """Say why a launch with these times cannot be believed; None where it can.

    Examples
    --------
    >>> disbelief(10, 20), disbelief(20, 10).value, disbelief(10, 10).value
    (None, 'ends-before-start', 'zero-duration')
    """
    if not (0 <= start_ns <= LATEST_NS and 0 <= end_ns <= LATEST_NS):
        return Skip.BAD_TIMESTAMP
    if end_ns < start_ns:
        return Skip.ENDS_BEFORE_START
    if end_ns == start_ns:
        return Skip.ZERO_DURATION
    return Skip.TOO_LONG if end_ns - start_ns > LONGEST_NS else None


def is_contiguous(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether a tensor is packed row-major; axes of length 1 may have any stride.

    Examples
    --------
    >>> is_contiguous((4, 8), (8, 1)), is_contiguous((4, 8), (1, 4)), is_contiguous((1, 8), (99, 1))
    (True, False, True)
    """
    if 0 in shape:
        return True
    expected = 1
    for length, stride in zip(reversed(shape), reversed(strides), strict=True):
        if length != 1 and stride != expected:
            return False
        expected *= length
    return True

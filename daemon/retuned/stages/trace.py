"""Stage 1, trace: the launches of a window. Pure.

A reader yields LaunchRecords. This stage defines what a raw row means (names, units, sanity), why a
row is skipped, and how launches replayed from a graph get the shapes known from its capture.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from enum import StrEnum

__all__ = [
    "LATEST_NS",
    "LONGEST_NS",
    "NAME_CHARS",
    "CapturedLaunch",
    "LaunchRecord",
    "ShapeSource",
    "Skip",
    "align_capture",
    "blocks_from_work_items",
    "disbelief",
    "geometry",
    "is_contiguous",
    "normalise_kernel_name",
    "parse_ns",
    "us_to_ns",
]


class ShapeSource(StrEnum):
    """Where the dims of a launch come from, best first."""

    CAPTURE = "capture"
    OP = "op"
    COUNTER = "counter"
    MARKER = "marker"
    INFERRED = "inferred"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRecord:
    kernel: str
    """Normalised name: demangled where possible, clone suffixes stripped, white space folded."""
    start_ns: int
    """Start on the trace's own clock; only differences have a meaning."""
    duration_ns: int
    """Time on the device, > 0."""
    blocks: tuple[int, int, int] = (0, 0, 0)
    """Grid in blocks (never work-items); zeros if the trace does not record it."""
    threads: tuple[int, int, int] = (0, 0, 0)
    """Work-group size; zeros if the trace does not record it."""
    dims: tuple[tuple[int, ...], ...] = ()
    """Shape of each tensor input of the operator that launched it; empty where unknown."""
    dtypes: tuple[str, ...] = ()
    """Element type of each input, as the trace spells it; empty where unknown."""
    layout: str = ""
    """``contiguous``, ``strided`` or empty where unknown."""
    shape_source: ShapeSource = ShapeSource.NONE
    """Where `dims` come from."""
    shape_confidence: float = 0.0
    """0 to 1: probability that the dims belong to this kernel, not only to an enclosing operator.
    """
    op: str = ""
    """Operator that launched it, such as ``aten::mm``; empty where unknown."""
    device: str = ""
    """Device as the trace names it."""
    stream: str = ""
    """Queue or stream as the trace names it."""
    lds_bytes: int = 0
    """Shared memory per block."""
    scratch_bytes: int = 0
    """Private memory per work-item."""
    vgprs: int = 0
    """Vector registers per work-item (registers per thread on NVIDIA)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedLaunch:
    """One kernel recorded into a graph: it did not run, but its operator was known."""

    kernel: str
    blocks: tuple[int, int, int] = (0, 0, 0)
    threads: tuple[int, int, int] = (0, 0, 0)
    dims: tuple[tuple[int, ...], ...] = ()
    """Shape of each tensor input of the operator; empty where unknown."""
    dtypes: tuple[str, ...] = ()
    layout: str = ""
    """``contiguous``, ``strided`` or empty."""
    op: str = ""
    shape_confidence: float = 0.0
    """As in LaunchRecord."""
    lds_bytes: int = 0


class Skip(StrEnum):
    """Why a row of a trace was left out; stable codes."""

    NOT_A_KERNEL = "not-a-kernel"
    """A copy, a barrier or a host call: valid, but not a launch."""
    NO_NAME = "no-name"
    """A dispatch whose kernel the file does not name."""
    BAD_TIMESTAMP = "bad-timestamp"
    """Not a plain count of ns, such as ``8.1097E+14`` after a round trip through a spreadsheet."""
    ENDS_BEFORE_START = "ends-before-start"
    """Clocks or columns are confused."""
    ZERO_DURATION = "zero-duration"
    """Never finished, never ran, or the clock was too coarse."""
    TOO_LONG = "too-long"
    """Longer than `LONGEST_NS`: clocks were mixed."""
    BAD_GEOMETRY = "bad-geometry"
    """Grid or work-group that no device can have."""
    MALFORMED_ROW = "malformed-row"
    """Too few or too many fields, or a field of another type."""
    OVER_LIMIT = "over-limit"
    """Valid, but the caller limited the number of launches."""


def align_capture(
    capture: Sequence[CapturedLaunch], replay: Sequence[LaunchRecord]
) -> tuple[LaunchRecord, ...]:
    """Give launches replayed from a graph the geometry and shapes known from its capture.

    Launches without dims are matched in order of start by kernel name. A sequence that repeats (one
    graph replayed many times) is matched once per period. A launch whose geometry contradicts the
    capture stays unchanged. The confidence is multiplied by the part of the replay that the capture
    explains, because a capture of another graph explains little.

    Examples
    --------
    >>> capture = [CapturedLaunch(kernel="mm", dims=((8, 4), (4, 2)), shape_confidence=1.0)]
    >>> replay = [LaunchRecord(kernel="mm", start_ns=n, duration_ns=5) for n in (0, 10)]
    >>> [(r.dims, r.shape_source.value, r.shape_confidence) for r in align_capture(capture, replay)]
    [(((8, 4), (4, 2)), 'capture', 1.0), (((8, 4), (4, 2)), 'capture', 1.0)]
    """
    ordered = sorted(replay, key=lambda launch: launch.start_ns)
    bare = [index for index, launch in enumerate(ordered) if not launch.dims]
    names = [ordered[index].kernel for index in bare]
    period = _period(names)
    once = _match([row.kernel for row in capture], names[:period])
    found = {
        bare[at]: capture[once[at % period]]
        for at in range(len(bare))
        if at % period in once and _compatible(capture[once[at % period]], ordered[bare[at]])
    }
    trust = len(found) / len(bare) if bare else 0.0
    return tuple(
        _with_shape(launch, found[index], trust) if index in found else launch
        for index, launch in enumerate(ordered)
    )


def _period(names: Sequence[str]) -> int:
    """Smallest p with names[i] == names[i + p] throughout, by Morris and Pratt."""
    fail = [0] * len(names)
    length = 0
    for index in range(1, len(names)):
        while length and names[index] != names[length]:
            length = fail[length - 1]
        length += names[index] == names[length]
        fail[index] = length
    return len(names) - fail[-1] if names else 1


_ROUNDS = 64
_WORK = 50_000_000


def _match(capture: Sequence[str], replay: Sequence[str]) -> dict[int, int]:
    """Map replay index to capture index.

    Unmatched launches are tried again, because a trace may start in the middle of a graph.
    """
    found: dict[int, int] = {}
    runs, work = [(0, len(replay))], 0
    for _ in range(_ROUNDS):
        left: list[tuple[int, int]] = []
        for low, high in runs:
            work += (high - low) * len(capture)
            if work > _WORK:
                return found
            matcher = SequenceMatcher(None, capture, replay[low:high], autojunk=False)
            done = low
            for a, b, size in matcher.get_matching_blocks():
                found.update((low + b + n, a + n) for n in range(size))
                if done < low + b and (done, low + b) != (low, high):
                    left.append((done, low + b))
                done = low + b + size
        if not left:
            break
        runs = left
    return found


def _compatible(row: CapturedLaunch, launch: LaunchRecord) -> bool:
    known = any(launch.blocks) and any(row.blocks)
    return not known or (launch.blocks, launch.threads) == (row.blocks, row.threads)


def _with_shape(launch: LaunchRecord, row: CapturedLaunch, trust: float) -> LaunchRecord:
    return replace(
        launch,
        blocks=launch.blocks if any(launch.blocks) else row.blocks,
        threads=launch.threads if any(launch.threads) else row.threads,
        dims=row.dims,
        dtypes=row.dtypes,
        layout=row.layout,
        op=row.op,
        shape_source=ShapeSource.CAPTURE if row.dims else ShapeSource.NONE,
        shape_confidence=row.shape_confidence * trust if row.dims else 0.0,
        lds_bytes=launch.lds_bytes or row.lds_bytes,
    )


NAME_CHARS = 1024
"""Longest normalised name; a longer one is cut and ends in a digest, so that names stay apart."""
LONGEST_NS = 24 * 3600 * 10**9
"""A kernel of a server never runs for a day."""
LATEST_NS = 2**62
"""Later timestamps would overflow; the year 2116 on a clock that starts at 1970."""
_AXIS = 2**32
_CLONE = re.compile(r"\s*(?:\[clone \.kd\]|\(\.kd\)|\.kd)$")
_SPACES = re.compile(r"\s+")
_CLOSING = re.compile(r"> (?=>)")


def normalise_kernel_name(raw: str) -> str:
    r"""Return one spelling of a kernel's name for all profilers, safe to print.

    Clone suffixes and quotes that older profilers leave are stripped, white space is folded, ``>
    >`` closes as ``>>``. Control and format characters and lone surrogates, which a terminal
    interprets, are escaped. Mangled names stay mangled. An empty result means that there was no
    name.

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
    """Parse a count of ns; anything but plain digits gives None, never a rounded number.

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
    """Return why a launch with these times is invalid, or None.

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

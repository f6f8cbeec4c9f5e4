"""What was launched, and why a row of a trace is no launch."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


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
    """One kernel launch."""

    kernel: str
    """Normalised name: demangled where possible, clone suffixes stripped, white space folded."""
    start_ns: int
    """Start on the trace's own clock; only differences mean anything."""
    duration_ns: int
    """Time on the device, > 0."""
    blocks: tuple[int, int, int] = (0, 0, 0)
    """Grid in blocks (never work-items); zeros where the trace does not say."""
    threads: tuple[int, int, int] = (0, 0, 0)
    """Work-group size; zeros where the trace does not say."""
    dims: tuple[tuple[int, ...], ...] = ()
    """Shape of each tensor input of the operator that launched it; empty where unknown."""
    dtypes: tuple[str, ...] = ()
    """Element type of each input, as the trace spells it; empty where unknown."""
    layout: str = ""
    """``contiguous``, ``strided`` or empty where unknown."""
    shape_source: ShapeSource = ShapeSource.NONE
    """Where `dims` come from."""
    shape_confidence: float = 0.0
    """0 to 1: how sure the dims are those of this kernel, not only of an enclosing operator."""
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
    """One kernel as it was recorded into a graph: nothing ran, but its operator was known."""

    kernel: str
    """Normalised name."""
    blocks: tuple[int, int, int] = (0, 0, 0)
    """Grid in blocks."""
    threads: tuple[int, int, int] = (0, 0, 0)
    """Work-group size."""
    dims: tuple[tuple[int, ...], ...] = ()
    """Shape of each tensor input of the operator; empty where unknown."""
    dtypes: tuple[str, ...] = ()
    """Element type of each input."""
    layout: str = ""
    """``contiguous``, ``strided`` or empty."""
    op: str = ""
    """Operator that launched it."""
    shape_confidence: float = 0.0
    """As in LaunchRecord."""
    lds_bytes: int = 0
    """Shared memory per block."""


class Skip(StrEnum):
    """Why a row of a trace was left out; stable codes."""

    NOT_A_KERNEL = "not-a-kernel"
    """A copy, a barrier, a host call: believed, but no launch."""
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
    """Believed, but the caller asked for fewer launches."""

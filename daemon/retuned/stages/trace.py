"""Stage 1, trace: what was launched.

A reader yields LaunchRecords; this file decides what a raw row means (names, units, sanity). Pure.
"""

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

"""Stage 2, profile: the workload as a GPU-time-weighted histogram over signatures.

Reads stage 1's launches, feeds drift. Pure: windows are given, never read off a clock.
"""

from __future__ import annotations

from pydantic import Field

from retuned.contract import Record
from retuned.stages.trace import ShapeSource


class Signature(Record):
    """The drift key. Geometry alone is no shape: without dims, the duration mode is part of the key."""

    kernel: str
    """Normalised kernel name."""
    dtypes: tuple[str, ...] = ()
    """Element types of the inputs; empty where unknown."""
    layout: str = ""
    """``contiguous``, ``strided`` or empty where unknown."""
    dims: tuple[tuple[int, ...], ...] = ()
    """Input shapes with dynamic dims rounded up to their bucket; empty where unknown."""
    blocks: tuple[int, int, int] = (0, 0, 0)
    """Grid in blocks; zeros where dims are known."""
    threads: tuple[int, int, int] = (0, 0, 0)
    """Work-group size; zeros where dims are known."""
    mode: int = 0
    """Which cluster of durations at this geometry, from 0 for the shortest; 0 where dims are known."""


class SignatureStat(Record):
    """What a window saw of one signature."""

    signature: Signature
    """The key."""
    launches: int = Field(ge=0)
    """Number of launches; estimated where the source sampled."""
    gpu_time_ns: int = Field(ge=0)
    """Sum of durations."""
    median_ns: int = Field(ge=0)
    """Median duration of one launch."""
    shape_source: ShapeSource = ShapeSource.NONE
    """Worst source among the launches."""
    shape_confidence: float = Field(default=0.0, ge=0.0, le=1.0)
    """Lowest confidence among the launches."""


class WorkloadProfile(Record):
    """One window of the workload."""

    window_start_ns: int
    """Start of the window; clock of the observer."""
    window_ns: int = Field(ge=0)
    """Length of the window."""
    observed_ns: int = Field(ge=0)
    """Time inside the window that was really traced; launches per second divide by this."""
    stats: tuple[SignatureStat, ...]
    """By falling GPU time; the tail beyond the cap is folded into kernel ``(other)``."""
    environment: str = ""
    """Digest of the Environment, empty where unknown."""

    @property
    def gpu_time_ns(self) -> int:
        """Sum over all signatures."""
        return sum(stat.gpu_time_ns for stat in self.stats)

    @property
    def launches(self) -> int:
        """Sum over all signatures."""
        return sum(stat.launches for stat in self.stats)

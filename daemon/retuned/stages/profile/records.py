"""Profiles and their signatures, and how a dim becomes a bucket."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

from pydantic import Field

from retuned.contract import Record
from retuned.stages.trace import ShapeSource

OTHER = "(other)"
"""Kernel name of the folded tail."""


class ProfileSettings(Record):
    """How launches become signatures, and how much is kept."""

    ladder: tuple[int, ...] = (1, 2, 4, *range(8, 257, 8))
    """Buckets of small dims, elements, rising: the sizes for which servers capture graphs."""
    step: int = Field(default=128, ge=1)
    """Above the ladder dims round up to a multiple of this, elements; so usual weight dims stay."""
    max_signatures: int = Field(default=4096, ge=1)
    """Signatures kept exactly; every one above 1/max_signatures of the GPU time is among them."""
    mode_gap_ratio: float = Field(default=1.4, gt=1.0)
    """Durations at one geometry are two modes if none lies between for this factor.

    On MI300X traces two K at one geometry left gaps of 2.1 and 3.0; 1.4 is a choice below them, not
    a measured bound."""
    mode_launches: int = Field(default=8, ge=1)
    """Fewest launches of a mode; fewer are outliers of the next one."""
    modes_max: int = Field(default=4, ge=1)
    """Most modes at one geometry."""


class Signature(Record):
    """Key of launches that count as one. Without dims, geometry and duration mode identify it."""

    kernel: str
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
    """Number of the duration cluster at this geometry; 0 where dims are known.

    In one window it counts from the shortest; across windows a cluster keeps its first number."""


class SignatureStat(Record):
    """Launches and times of one signature in a window."""

    signature: Signature
    launches: int = Field(ge=0)
    """Estimated if the source sampled."""
    gpu_time_ns: int = Field(ge=0)
    median_ns: int = Field(ge=0)
    """Median duration of one launch."""
    shape_source: ShapeSource = ShapeSource.NONE
    """Worst source among the launches."""
    shape_confidence: float = Field(default=0.0, ge=0.0, le=1.0)
    """Lowest confidence among the launches."""


class WorkloadProfile(Record):
    window_start_ns: int
    """Clock of the observer."""
    window_ns: int = Field(ge=0)
    """Length of the window."""
    observed_ns: int = Field(ge=0)
    """Traced time inside the window; launches per second divide by this."""
    stats: tuple[SignatureStat, ...]
    """By falling GPU time; the tail beyond the cap is folded into kernel ``(other)``."""
    environment: str = ""
    """Digest of the Environment, empty where unknown."""
    counted: bool = False
    """Whether launches were counted over the whole window, see `recount`, and not only sampled."""

    @property
    def gpu_time_ns(self) -> int:
        return sum(stat.gpu_time_ns for stat in self.stats)

    @property
    def launches(self) -> int:
        return sum(stat.launches for stat in self.stats)


def bucket(length: int, settings: ProfileSettings) -> int:
    """Round a dim up to its bucket; buckets map to themselves.

    Examples
    --------
    >>> [bucket(n, ProfileSettings()) for n in (0, 3, 9, 256, 257, 1000, 4096, 14336)]
    [0, 4, 16, 256, 384, 1024, 4096, 14336]
    """
    ladder = settings.ladder
    if length <= 0 or not ladder:
        return max(length, 0)
    if length <= ladder[-1]:
        return ladder[bisect_left(ladder, length)]
    return -(-length // settings.step) * settings.step


def bucket_low(length: int, settings: ProfileSettings) -> int:
    """Return the least dim of the same bucket; a dim that is not a bucket returns itself.

    Examples
    --------
    >>> [bucket_low(n, ProfileSettings()) for n in (1, 4, 256, 384, 300)]
    [1, 3, 249, 257, 300]
    """
    if length <= 1 or bucket(length, settings) != length:
        return length  # an exact length, not a bucket's upper edge
    ladder = settings.ladder
    if not ladder:
        return length
    if length <= ladder[-1]:
        place = bisect_left(ladder, length)
        return (ladder[place - 1] if place else 0) + 1
    return max(ladder[-1], length - settings.step) + 1


def bucket_middle(length: int, settings: ProfileSettings) -> int:
    """Return the middle of the dims that fall into this bucket, rounded up.

    Examples
    --------
    >>> [bucket_middle(n, ProfileSettings()) for n in (1, 4, 256, 384)]
    [1, 4, 253, 321]
    """
    return (bucket_low(length, settings) + length + 1) // 2


def capped(stats: Iterable[SignatureStat], limit: int) -> tuple[SignatureStat, ...]:
    """Order by falling GPU time and fold what is beyond `limit` signatures into ``(other)``."""
    ranked = sorted(stats, key=lambda s: (-s.gpu_time_ns, s.signature.kernel, s.signature.dims))
    named = [stat for stat in ranked if stat.signature.kernel != OTHER]
    tail = named[limit:] + [stat for stat in ranked if stat.signature.kernel == OTHER]
    if not tail:
        return tuple(named)
    other = SignatureStat(
        signature=Signature(kernel=OTHER),
        launches=sum(stat.launches for stat in tail),
        gpu_time_ns=sum(stat.gpu_time_ns for stat in tail),
        median_ns=max(tail, key=lambda stat: stat.launches).median_ns,
    )
    return tuple(sorted([*named[:limit], other], key=lambda s: -s.gpu_time_ns))

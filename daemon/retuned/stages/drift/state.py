"""What the detector remembers between windows: frozen, JSON-able, bounded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from pydantic import Field

from retuned.contract import Record
from retuned.stages.profile import OTHER, Signature, SignatureStat, WorkloadProfile, aligned
from retuned.stats import Floats, jensen_shannon


class LibraryProfile(Record):
    """One remembered profile, sparse."""

    indexes: tuple[int, ...]
    """Places in the library's `keys`."""
    shares: tuple[float, ...]
    """Share of GPU time of each."""
    tuned: bool
    """True where kernels were tuned for it; False where it was only adopted."""


def dense(profiles: Sequence[LibraryProfile], keys: int) -> Floats:
    """Shares, shape (profiles, keys + 1); the last column is 0."""
    rows = np.zeros((len(profiles), keys + 1))
    for row, profile in zip(rows, profiles, strict=True):
        row[list(profile.indexes)] = profile.shares
    return rows


class Library(Record):
    """Profiles the server is known to run."""

    keys: tuple[Signature, ...] = ()
    """Every signature seen."""
    medians_ns: tuple[float, ...] = ()
    """Median duration of each key when it was first seen, ns; tells duration modes apart."""
    tuned_share: tuple[float, ...] = ()
    """Largest share of GPU time of each key in any tuned window; 0 where never tuned for."""
    profiles: tuple[LibraryProfile, ...] = ()
    """Medoids of the baseline and what was adopted since, oldest first."""

    @cached_property
    def index(self) -> dict[Signature, int]:
        """Place of each key."""
        return {key: place for place, key in enumerate(self.keys)}

    @cached_property
    def modes(self) -> dict[Signature, float]:
        """Median duration of each key that is known by its duration only, ns."""
        return {
            key: median
            for key, median in zip(self.keys, self.medians_ns, strict=True)
            if not key.dims
        }

    @cached_property
    def matrix(self) -> Floats:
        """Shares, shape (profiles, keys + 1); the last column stands for unknown keys, all 0."""
        return dense(self.profiles, len(self.keys))

    @cached_property
    def envelope(self) -> Floats:
        """`tuned_share`, shape (keys + 1,); 0 for unknown keys."""
        return np.array([*self.tuned_share, 0.0])


class SizeClass(Record):
    """Baseline of the distance for roll-ups of at least this many launches."""

    launches: int = Field(ge=0)
    """Fewest launches of the class."""
    location: float = Field(ge=0.0)
    """Median distance of a baseline roll-up to the nearest profile of other days."""
    scale: float = Field(gt=0.0)
    """Robust standard deviation of that distance."""
    threshold: float = Field(gt=0.0)
    """CUSUM threshold (h)."""
    pair: float
    """Score that two roll-ups in a row must both exceed to be news by themselves."""


class Latency(Record):
    """Watch over one hot signature."""

    signature: Signature
    """Which."""
    log_ns: float
    """Baseline: median over windows of the log of the median latency in ns."""
    scale: float = Field(gt=0.0)
    """Robust standard deviation of that log."""
    slower: float = Field(default=0.0, ge=0.0)
    """CUSUM upwards."""
    faster: float = Field(default=0.0, ge=0.0)
    """CUSUM downwards."""


class DetectorState(Record):
    """All that `detect` carries from window to window. Baselines are frozen after `learn`."""

    library: Library
    """Known profiles."""
    classes: tuple[SizeClass, ...] = Field(min_length=1)
    """By rising launches."""
    new_share: float = Field(gt=0.0)
    """Share of GPU time in new signatures that is news."""
    rate_low: float = Field(ge=0.0)
    """Fewest launches per observed second in the baseline."""
    rate_high: float = Field(ge=0.0)
    """Most launches per observed second in the baseline."""
    baseline_windows: int = Field(ge=1)
    """Roll-ups that were learned from."""
    latencies: tuple[Latency, ...] = ()
    """Hot signatures."""
    environment: str = ""
    """Digest of the Environment the kernels were tuned in; empty where unknown."""
    flagged: tuple[str, ...] = ()
    """Other environments already reported, newest last, at most 8."""
    pending: tuple[WorkloadProfile, ...] = ()
    """Windows of the roll-up that is not yet complete."""
    cusum: float = Field(default=0.0, ge=0.0)
    """Accumulated excess of the distance's score."""
    score: float = 0.0
    """Score of the last roll-up."""
    new_windows: int = Field(default=0, ge=0)
    """Consecutive windows with too much GPU time in new signatures."""
    uncovered: tuple[float, ...] = ()
    """Uncovered share of the last roll-ups, newest last."""
    novel: bool = False
    """Whether anything novel came since the last tuning."""
    retunes_ns: tuple[int, ...] = ()
    """Ends of the windows that asked for a retune, newest last, at most 8."""
    alarm_ns: int | None = None
    """End of the window of the last alarm; None where there was none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A profile seen against the library."""

    profile: WorkloadProfile
    """What was read."""
    stats: tuple[SignatureStat, ...]
    """Its signatures, duration modes numbered as the library does."""
    shares: Floats
    """Shape (keys + 1,): share of GPU time of each known key; the last of all unknown ones."""
    nearest: int
    """Place of the nearest library profile."""
    distance: float
    """Divergence to it."""
    uncovered: float
    """Share of GPU time beyond what was tuned for."""

    @property
    def new_share(self) -> float:
        """Share of GPU time in unknown signatures."""
        return float(self.shares[-1])


def read(profile: WorkloadProfile, library: Library, *, gap_ratio: float, growth: float) -> Reading:
    """Place a profile with GPU time in the library."""
    stats = aligned(profile.stats, library.modes, gap_ratio=gap_ratio)
    shares = shares_of(stats, library)
    distances = jensen_shannon(shares, library.matrix)
    nearest = int(np.argmin(distances))
    excess = np.maximum(0.0, shares - growth * library.envelope)
    return Reading(
        profile=profile,
        stats=tuple(stats),
        shares=shares,
        nearest=nearest,
        distance=float(distances[nearest]),
        uncovered=min(1.0, float(excess.sum())),
    )


def shares_of(stats: Sequence[SignatureStat], library: Library) -> Floats:
    """Share of GPU time of each known key, and of all unknown ones in the last place.

    An unknown folded tail does not count: what it holds was too small to name.
    """
    shares = np.zeros(len(library.keys) + 1)
    index = library.index
    for stat in stats:
        place = index.get(stat.signature)
        if place is not None:
            shares[place] += stat.gpu_time_ns
        elif stat.signature.kernel != OTHER:
            shares[-1] += stat.gpu_time_ns
    total = float(shares.sum())
    return shares / total if total > 0 else shares

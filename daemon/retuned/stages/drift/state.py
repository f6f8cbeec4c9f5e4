"""The detector's state between windows: frozen, JSON-able, bounded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from pydantic import Field, model_validator

from retuned.contract import Record
from retuned.stages.drift.settings import DriftSettings
from retuned.stages.profile import OTHER, Signature, SignatureStat, WorkloadProfile, aligned
from retuned.stats import Floats, jensen_shannon

_OLDER = frozenset({"cusum", "score", "new_windows"})


class LibraryProfile(Record):
    """One remembered profile, sparse."""

    indexes: tuple[int, ...]
    """Places in the library's `keys`."""
    shares: tuple[float, ...]
    """Share of kernel time of each."""
    weights: tuple[float, ...]
    """Weight of each in the distance, summing to one; see ``DriftSettings.time_power``."""
    tuned: bool
    """Whether kernels were tuned for it; False if it was only adopted."""


def dense(profiles: Sequence[LibraryProfile], keys: int) -> tuple[Floats, Floats]:
    """Shares of kernel time and weights, each of shape (profiles, keys + 1), the last column 0."""
    shares, weights = (np.zeros((len(profiles), keys + 1)) for _ in range(2))
    for row, profile in enumerate(profiles):
        shares[row, list(profile.indexes)] = profile.shares
        weights[row, list(profile.indexes)] = profile.weights
    return shares, weights


def sparse(shares: Floats, weights: Floats, *, tuned: bool) -> LibraryProfile:
    """Make a library profile of two dense rows of shape (keys + 1,); unknown keys are left out."""
    places = np.flatnonzero(weights[:-1])
    known = weights[places].sum()
    return LibraryProfile(
        indexes=tuple(places.tolist()),
        shares=tuple(shares[places].tolist()),
        weights=tuple((weights[places] / known).tolist()),
        tuned=tuned,
    )


class Library(Record):
    """Profiles that the server is known to run."""

    keys: tuple[Signature, ...] = ()
    medians_ns: tuple[float, ...] = ()
    """Median duration of each key when it was first seen, ns; separates duration modes."""
    tuned_share: tuple[float, ...] = ()
    """Largest share of kernel time of each key in any tuned window; 0 where never tuned for."""
    profiles: tuple[LibraryProfile, ...] = ()
    """Medoids of the baseline and later adopted profiles, oldest first."""

    @cached_property
    def _derived(self) -> _Derived:
        shares, weights = dense(self.profiles, len(self.keys))
        return _Derived(
            index={key: place for place, key in enumerate(self.keys)},
            modes={
                key: median
                for key, median in zip(self.keys, self.medians_ns, strict=True)
                if not key.dims
            },
            shares=shares,
            weights=weights,
            envelope=np.array([*self.tuned_share, 0.0]),
        )

    @property
    def index(self) -> dict[Signature, int]:
        return self._derived.index

    @property
    def modes(self) -> dict[Signature, float]:
        """Median duration of each key that only its duration distinguishes, ns."""
        return self._derived.modes

    @property
    def shares(self) -> Floats:
        """Shares of kernel time, shape (profiles, keys + 1); the last, unknown keys, is 0."""
        return self._derived.shares

    @property
    def weights(self) -> Floats:
        """Weights in the distance, shape (profiles, keys + 1); the last column is 0."""
        return self._derived.weights

    @property
    def envelope(self) -> Floats:
        """`tuned_share`, shape (keys + 1,); 0 for unknown keys."""
        return self._derived.envelope


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Derived:
    """Values that a library computes once; compared by identity: libraries compare by field."""

    index: dict[Signature, int]
    modes: dict[Signature, float]
    shares: Floats
    weights: Floats
    envelope: Floats


class SizeClass(Record):
    """Baseline of the distance for roll-ups of at least this many launches."""

    launches: int = Field(ge=0)
    location: float = Field(ge=0.0)
    """Median distance of a baseline roll-up to the nearest profile of other days."""
    scale: float = Field(gt=0.0)
    """Robust standard deviation of that distance."""
    threshold: float = Field(gt=0.0)
    """CUSUM threshold (h)."""
    pair: float
    """Score that two roll-ups in a row must both exceed to count as drift."""


class Latency(Record):
    """Watch over one hot signature."""

    signature: Signature
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
    classes: tuple[SizeClass, ...] = Field(min_length=1)
    """By rising launches."""
    new_share: float = Field(gt=0.0)
    """Share of kernel time in new signatures that counts as drift."""
    rate_low: float = Field(ge=0.0)
    """Fewest launches per observed second in the baseline."""
    rate_high: float = Field(ge=0.0)
    """Most launches per observed second in the baseline."""
    baseline_windows: int = Field(ge=1)
    """Roll-ups that were learned from."""
    latencies: tuple[Latency, ...] = ()
    environment: str = ""
    """Digest of the Environment the kernels were tuned in; empty where unknown."""
    counted: bool = False
    """Whether the baseline windows had counted launches."""
    uncounted: int = Field(default=0, ge=0)
    """Windows in a row without counts; after a few, `detect` accepts sampled windows."""
    flagged: tuple[str, ...] = ()
    """Other environments already reported, newest last, at most 8."""
    pending: tuple[WorkloadProfile, ...] = ()
    """Windows of the roll-up that is not yet complete."""
    rolled: tuple[WorkloadProfile, ...] = ()
    """Windows of the last complete roll-up; with `pending` they make the trailing one."""
    cusums: tuple[float, ...] = ()
    """Accumulated excess of the distance's score, of the roll-ups that end now and 1, 2 ... windows
    later, next to be updated first; empty for zeros."""
    scores: tuple[float, ...] = ()
    """Scores of as many last roll-ups, one ending at each window, oldest first; empty where none
    was judged."""
    new_recent: tuple[bool, ...] = ()
    """Which of the last windows had too much kernel time in new signatures, newest last."""
    uncovered: tuple[float, ...] = ()
    """Uncovered share of the last roll-ups, newest last."""
    novel: bool = False
    """Whether anything novel came since the last tuning."""
    retunes_ns: tuple[int, ...] = ()
    """Ends of the windows that caused a retune, newest last, at most 8."""
    alarm_ns: int | None = None
    """End of the window of the last alarm."""

    @model_validator(mode="before")
    @classmethod
    def _of_an_older_version(cls, data: object) -> object:
        """Load a state with one sum, score and streak: those restart, all else stays."""
        if isinstance(data, Mapping) and data.keys() >= _OLDER:
            return {key: value for key, value in data.items() if key not in _OLDER}
        return data


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A profile expressed in the keys of the library."""

    profile: WorkloadProfile
    stats: tuple[SignatureStat, ...]
    """Its signatures, duration modes numbered as the library does."""
    shares: Floats
    """Shape (keys + 1,): share of kernel time of each known key; the last of all unknown ones."""
    weights: Floats
    """Shape (keys + 1,): weight in the distance."""
    nearest: int
    """Place of the nearest library profile."""
    distance: float
    """Divergence to it."""
    uncovered: float
    """Share of kernel time beyond the tuned shares."""

    @property
    def new_share(self) -> float:
        """Share of kernel time in unknown signatures."""
        return float(self.shares[-1])


def read(profile: WorkloadProfile, library: Library, settings: DriftSettings) -> Reading:
    """Express a profile with kernel time in the keys of the library."""
    stats = aligned(profile.stats, library.modes, gap_ratio=settings.mode_gap_ratio)
    shares, weights = tally(stats, library, power=settings.time_power)
    distances = jensen_shannon(weights, library.weights)
    nearest = int(np.argmin(distances))
    excess = np.maximum(0.0, shares - settings.covered_growth * library.envelope)
    return Reading(
        profile=profile,
        stats=tuple(stats),
        shares=shares,
        weights=weights,
        nearest=nearest,
        distance=float(distances[nearest]),
        uncovered=min(1.0, float(excess.sum())),
    )


def tally(
    stats: Sequence[SignatureStat], library: Library, *, power: float
) -> tuple[Floats, Floats]:
    """Shares of kernel time and weights of each known key, in the last place of all unknown ones.

    A signature weighs ``launches^(1 - power) * gpu_time^power``; both arrays have shape (keys + 1,)
    and sum to one. An unknown folded tail does not count: its signatures were too small to name.
    """
    shares, weights = (np.zeros(len(library.keys) + 1) for _ in range(2))
    index = library.index
    for stat in stats:
        place = index.get(stat.signature, -1)
        if place < 0 and stat.signature.kernel == OTHER:
            continue
        shares[place] += stat.gpu_time_ns
        weights[place] += stat.launches ** (1.0 - power) * stat.gpu_time_ns**power
    if shares.sum() > 0:
        shares /= shares.sum()
        weights /= weights.sum()
    return shares, weights

"""The baseline: which profiles the server runs, and how far an ordinary window is from them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from retuned.stages.drift.calibration import (
    SCALE_FLOOR,
    mean_durations,
    pairwise,
    size_classes,
    thinned,
)
from retuned.stages.drift.settings import DriftSettings
from retuned.stages.drift.state import (
    DetectorState,
    Latency,
    Library,
    SizeClass,
    sparse,
    tally,
)
from retuned.stages.profile import OTHER, Signature, WorkloadProfile, aligned, merge
from retuned.stats import Floats, cusum_threshold, medoids, robust_centre

PARTS = 3
_STEP = 0.5


def trailing(windows: Sequence[WorkloadProfile], *, size: int, step: int) -> list[WorkloadProfile]:
    """Merge `size` consecutive windows at every `step`-th start."""
    return [merge(windows[at : at + size]) for at in range(0, len(windows) - size + 1, step)]


def repeat_classes(
    windows: Sequence[WorkloadProfile],
    *,
    library: Library,
    settings: DriftSettings,
    generator: np.random.Generator,
) -> tuple[SizeClass, ...]:
    """Location, scale and threshold of the distance of an hour that was seen before.

    The baseline contains each hour once, at distance 0 from itself. A third of its windows
    estimates the distance of a fresh repeat. The mean of n/3 of n windows differs from the mean of
    all n by a variance of (3/n - 1/n) s^2, and so do two independent means of n windows. What
    differs between the windows of an hour counts as chance here, so a true repeat is rather nearer.

    Parameters
    ----------
    windows
        The baseline in order, at least ``few_windows`` roll-ups of at least three windows.
    library
        Learned from the same windows.
    """
    per_launch = mean_durations(windows, library) ** settings.time_power
    size = settings.rollup_windows
    used = size // PARTS
    launches, times = _tables(windows, library, settings)
    count = len(windows) - size + 1
    parts = []
    for part in range(PARTS):
        starts = [slice(part + PARTS * i, part + PARTS * i + count) for i in range(used)]
        held, took = (np.sum([table[at] for at in starts], axis=0) for table in (launches, times))
        parts.append((held.sum(axis=1), _weights(held, took, settings.time_power)))
    nearest = _Nearest(library.weights)
    classes = []
    for floor in settings.size_classes:
        distances = []
        for totals, weights in parts:
            # a part represents a roll-up with as many times its launches
            seen = [
                thinned(row, per_launch, floor, generator) if total * size > floor * used else row
                for total, row in zip(totals, weights, strict=True)
            ]
            distances.append(np.array([nearest.distance(row) for row in seen]))
        classes.append(_class(floor, distances, settings, generator))
    return tuple(classes)


def _tables(
    windows: Sequence[WorkloadProfile], library: Library, settings: DriftSettings
) -> tuple[Floats, Floats]:
    """Count launches and kernel time in ns of each window by key, shapes (windows, keys + 1)."""
    launches, times = (np.zeros((len(windows), len(library.keys) + 1)) for _ in range(2))
    for row, window in enumerate(windows):
        for stat in aligned(window.stats, library.modes, gap_ratio=settings.mode_gap_ratio):
            place = library.index.get(stat.signature, -1)
            if place >= 0 or stat.signature.kernel != OTHER:
                launches[row, place] += stat.launches
                times[row, place] += stat.gpu_time_ns
    return launches, times


def _weights(launches: Floats, times: Floats, power: float) -> Floats:
    weights: Floats = launches ** (1.0 - power) * times**power
    weights /= weights.sum(axis=1, keepdims=True)
    return weights


class _Nearest:
    """Distance to the nearest of many rows; their entropy is computed once."""

    def __init__(self, rows: Floats) -> None:
        self._rows = rows
        self._entropies = _entropy(rows)

    def distance(self, weights: Floats) -> float:
        mixed = _entropy((self._rows + weights) / 2)
        divergences = mixed - (self._entropies + _entropy(weights)) / 2
        return float(np.clip(divergences, 0.0, 1.0).min())


def _entropy(rows: Floats) -> Floats:
    """Shannon entropy over the last axis, bits."""
    held: Floats = -np.sum(rows * np.log2(np.maximum(rows, 1e-300)), axis=-1)
    return held


def _class(
    launches: int,
    distances: Sequence[Floats],
    settings: DriftSettings,
    generator: np.random.Generator,
) -> SizeClass:
    """Fit one class to the distances of each part at every start."""
    location, scale = robust_centre(np.concatenate(distances))
    scale = max(scale, settings.scale_ratio_min * location, SCALE_FLOOR)
    blocks = []
    for each in distances:
        scores = np.clip((each - location) / scale, settings.score_low, settings.score_high)
        for phase in range(settings.rollup_windows):
            hours = scores[phase :: settings.rollup_windows]
            length = max(1, min(settings.block_windows, len(hours)))
            blocks += [hours[at : at + length] for at in range(0, len(hours), length)]
    longest = max(len(block) for block in blocks)
    threshold = cusum_threshold(
        [block for block in blocks if len(block) == longest],
        slack=settings.slack,
        run_length=settings.run_length,
        grid=np.arange(settings.threshold_min, settings.threshold_max + _STEP / 2, _STEP),
        generator=generator,
    )
    return SizeClass(
        launches=launches,
        location=location,
        scale=scale,
        threshold=threshold,
        pair=settings.pair_min,
    )


_WINDOWS_MAX = 1024


def learn(
    profiles: Sequence[WorkloadProfile],
    *,
    settings: DriftSettings | None = None,
    seed: int = 0,
) -> DetectorState:
    """Learn a baseline from consecutive windows of traffic that the kernels are tuned for.

    The library holds the medoids of the roll-ups, including those that begin halfway. Traffic is in
    control if the hours of the baseline repeat. Thirds of the roll-ups estimate how far such a
    repeat is from the library: median and MAD are location and scale of the distance. The CUSUM
    threshold is the smallest at which days of them, drawn with replacement, alarm once in
    ``run_length`` roll-ups. With fewer than ``few_windows`` roll-ups, each meets only those of
    other blocks, the scale is at least the sampling noise at the windows' own overdispersion, and
    the threshold is fixed. The baseline does not change afterwards: a reference that follows the
    traffic would hide the shift that it should detect.

    Parameters
    ----------
    profiles
        At least two windows, any order; only those that `comparable` keeps count.
    settings
        As given to `detect`.
    seed
        Of the bootstrap and of the thinning to smaller sample sizes.

    Raises
    ------
    ValueError
        If fewer than two windows hold kernel time.

    Examples
    --------
    >>> from retuned.stages.profile import Signature, SignatureStat
    >>> def window(start, small, large):
    ...     return WorkloadProfile(window_start_ns=start, window_ns=5, observed_ns=5, stats=tuple(
    ...         SignatureStat(signature=Signature(kernel="gemm", dims=((m, 64),)), launches=n,
    ...                       gpu_time_ns=n * m, median_ns=m)
    ...         for m, n in ((8, small), (256, large))))
    >>> from retuned.stages.drift.settings import DEMO_SETTINGS
    >>> state = learn([window(i, 900 + 9 * i, 9 + i % 2) for i in range(6)], settings=DEMO_SETTINGS)
    >>> len(state.library.profiles), state.baseline_windows, state.classes[-1].threshold
    (6, 6, 4.0)
    """
    settings = settings or DriftSettings()
    filled = sorted(comparable(profiles), key=lambda profile: profile.window_start_ns)
    rolled = _rolled(filled, settings.rollup_windows)
    if len(rolled) < 2:
        raise ValueError(f"a baseline needs two roll-ups with kernel time, got {len(rolled)}")
    generator = np.random.default_rng(seed)
    library, classes = _calibrated(filled, rolled, settings, generator)
    return DetectorState(
        library=library,
        classes=classes,
        new_share=_new_share(filled, settings),
        rate_low=min(_rates(rolled), default=0.0),
        rate_high=max(_rates(rolled), default=0.0),
        baseline_windows=len(rolled),
        counted=all(profile.counted for profile in filled),
        latencies=_latencies(rolled, library, settings),
        environment=rolled[-1].environment,
    )


def comparable(profiles: Sequence[WorkloadProfile]) -> tuple[WorkloadProfile, ...]:
    """Return the windows that a baseline may be learned from together, in the given order.

    Windows without kernel time are dropped. For the same traffic, a window that traces only sampled
    has another mix than one whose launches were counted. If at least half were counted, only those
    are kept. The first window after a start is never counted.

    Examples
    --------
    >>> from retuned.stages.profile import Signature, SignatureStat
    >>> gemm = SignatureStat(
    ...     signature=Signature(kernel="gemm"), launches=1, gpu_time_ns=1, median_ns=1
    ... )
    >>> sampled = WorkloadProfile(window_start_ns=0, window_ns=9, observed_ns=9, stats=(gemm,))
    >>> counted = sampled.model_copy(update={"counted": True})
    >>> [len(comparable(windows)) for windows in ([sampled] * 3, [sampled, counted, counted])]
    [3, 2]
    """
    filled = tuple(profile for profile in profiles if profile.gpu_time_ns > 0)
    counted = tuple(profile for profile in filled if profile.counted)
    return counted if 2 * len(counted) >= len(filled) else filled


def _calibrated(
    windows: Sequence[WorkloadProfile],
    rolled: Sequence[WorkloadProfile],
    settings: DriftSettings,
    generator: np.random.Generator,
) -> tuple[Library, tuple[SizeClass, ...]]:
    """Return the library and the ordinary distances, from repeats if the baseline is long."""
    size = settings.rollup_windows
    if size < PARTS or len(rolled) < settings.few_windows:
        library, rows = _catalogue(rolled, settings)
        classes = size_classes(
            rolled, rows, library=library, settings=settings, generator=generator
        )
        return library, classes
    windows = windows[-size * _WINDOWS_MAX :]
    # mixes change between roll-ups too: those that begin halfway are known as well
    step = max(max(1, size // 2), -(-len(windows) // _WINDOWS_MAX))
    library, _ = _catalogue(trailing(windows, size=size, step=step), settings)
    classes = repeat_classes(windows, library=library, settings=settings, generator=generator)
    return library, classes


def _rolled(profiles: Sequence[WorkloadProfile], size: int) -> list[WorkloadProfile]:
    """Merge each `size` consecutive windows; leave them single if fewer than two would remain."""
    if len(profiles) >= 2 * size and size > 1:
        profiles = [
            merge(profiles[at : at + size]) for at in range(0, len(profiles) - size + 1, size)
        ]
    stride = -(-len(profiles) // _WINDOWS_MAX)
    return list(profiles[:: max(1, stride)])


def _rates(profiles: Sequence[WorkloadProfile]) -> list[float]:
    return [p.launches / (p.observed_ns / 1e9) for p in profiles if p.observed_ns > 0]


def _catalogue(
    profiles: Sequence[WorkloadProfile], settings: DriftSettings
) -> tuple[Library, Floats]:
    """Library of medoids, and the weights of every profile, shape (profiles, keys + 1)."""
    medians: dict[Signature, float] = {}
    totals: dict[Signature, int] = {}
    for profile in profiles:
        for stat in aligned(profile.stats, medians, gap_ratio=settings.mode_gap_ratio):
            medians.setdefault(stat.signature, float(stat.median_ns))
            totals[stat.signature] = totals.get(stat.signature, 0) + stat.gpu_time_ns
    keys = tuple(sorted(totals, key=lambda key: -totals[key])[: settings.keys_max])
    bare = Library(
        keys=keys,
        medians_ns=tuple(medians[key] for key in keys),
        tuned_share=(0.0,) * len(keys),
    )
    tallies = [
        tally(
            aligned(p.stats, bare.modes, gap_ratio=settings.mode_gap_ratio),
            bare,
            power=settings.time_power,
        )
        for p in profiles
    ]
    shares, rows = (np.stack(side) for side in zip(*tallies, strict=True))
    kept = medoids(pairwise(rows), settings.medoids)
    library = bare.model_copy(
        update={
            "tuned_share": tuple(shares[:, :-1].max(axis=0).tolist()),
            "profiles": tuple(sparse(shares[i], rows[i], tuned=True) for i in kept),
        }
    )
    return Library.model_validate(library.model_dump()), rows


def _new_share(profiles: Sequence[WorkloadProfile], settings: DriftSettings) -> float:
    """Share in new signatures that counts as drift: over 1.5 times what the baseline brought.

    The second half of the baseline is compared with the keys of the first; its 99th percentile
    counts.
    """
    half = len(profiles) // 2
    known = {stat.signature for profile in profiles[:half] for stat in profile.stats}
    if len(profiles) < settings.few_windows:
        return settings.new_share
    shares = [
        sum(
            s.gpu_time_ns
            for s in p.stats
            if s.signature not in known and s.signature.kernel != OTHER
        )
        / p.gpu_time_ns
        for p in profiles[half:]
    ]
    return min(0.5, max(settings.new_share, 1.5 * float(np.quantile(shares, 0.99))))


def _latencies(
    profiles: Sequence[WorkloadProfile], library: Library, settings: DriftSettings
) -> tuple[Latency, ...]:
    """Select the hottest signatures that most windows contain."""
    logs: dict[Signature, list[float]] = {}
    for profile in profiles:
        for stat in aligned(profile.stats, library.modes, gap_ratio=settings.mode_gap_ratio):
            if stat.gpu_time_ns >= settings.hot_share * profile.gpu_time_ns and stat.median_ns > 0:
                logs.setdefault(stat.signature, []).append(float(np.log(stat.median_ns)))
    watched = []
    for key in library.keys:
        seen = logs.get(key, [])
        if key.kernel == OTHER or 2 * len(seen) < len(profiles):
            continue
        centre, scale = robust_centre(np.array(seen))
        scale = max(scale, settings.latency_scale_min)
        watched.append(Latency(signature=key, log_ns=centre, scale=scale))
    return tuple(watched[: settings.hot_signatures])

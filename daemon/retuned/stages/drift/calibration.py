"""The ordinary distance of a window from the library: location, scale and threshold."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from retuned.stages.drift.settings import DriftSettings
from retuned.stages.drift.state import Library, SizeClass
from retuned.stages.profile import WorkloadProfile
from retuned.stats import Floats, cusum_threshold, jensen_shannon, median, medoids, robust_centre

SCALE_FLOOR = 1e-4
"""Smallest scale of a distance, bits."""
_Ints = npt.NDArray[np.int64]


def pairwise(rows: Floats) -> Floats:
    """Divergence between all rows, shape (profiles, profiles)."""
    distances = np.stack([jensen_shannon(row, rows) for row in rows])
    np.fill_diagonal(distances, 0.0)
    return (distances + distances.T) / 2


def mean_durations(profiles: Sequence[WorkloadProfile], library: Library) -> Floats:
    """Mean duration of one launch of each key, ns, shape (keys + 1,)."""
    time = np.zeros(len(library.keys) + 1)
    launches = np.zeros(len(library.keys) + 1)
    for profile in profiles:
        for stat in profile.stats:
            place = library.index.get(stat.signature, -1)
            time[place] += stat.gpu_time_ns
            launches[place] += stat.launches
    means: Floats = time / np.maximum(launches, 1.0)
    return np.maximum(means, 1.0)


def size_classes(
    profiles: Sequence[WorkloadProfile],
    rows: Floats,
    *,
    library: Library,
    settings: DriftSettings,
    generator: np.random.Generator,
) -> tuple[SizeClass, ...]:
    """Location, scale and threshold of the distance at each sample size, for a short baseline.

    Blocks are left out in turn: a roll-up is compared only with those of other blocks. `rows` are
    the profiles' weights, shape (profiles, keys + 1).
    """
    per_launch = mean_durations(profiles, library) ** settings.time_power
    count = len(rows)
    size = min(settings.block_windows, max(1, count // 4))
    blocks = [np.arange(at, min(at + size, count)) for at in range(0, count, size)]
    launches = np.array([profile.launches for profile in profiles])
    references = _references(rows, blocks, settings.medoids)
    classes = []
    for floor in settings.size_classes:
        seen = np.stack(
            [
                thinned(row, per_launch, floor, generator) if have > floor else row
                for row, have in zip(rows, launches, strict=True)
            ]
        )
        distances = [
            np.array([jensen_shannon(seen[i], reference).min() for i in block])
            for block, reference in zip(blocks, references, strict=True)
        ]
        noise = None
        few = count < settings.few_windows
        if few and settings.noise_floor:
            noise = _sampling_noise(seen, per_launch, np.minimum(launches, floor), generator)
        classes.append(_size_class(floor, distances, few, noise, settings, generator))
    return tuple(classes)


def _size_class(
    launches: int,
    distances: Sequence[Floats],
    few: bool,
    noise: tuple[float, float] | None,
    settings: DriftSettings,
    generator: np.random.Generator,
) -> SizeClass:
    """Fit one class to the baseline distances by block; `noise` is set if the baseline is short."""
    location, scale = robust_centre(np.concatenate(distances))
    if noise:
        location, scale = max(location, noise[0]), max(scale, noise[1])
    scale = max(scale, settings.scale_ratio_min * location, SCALE_FLOOR)
    threshold, pair = settings.threshold_few, settings.score_high
    if not few:
        scores = [
            np.clip((d - location) / scale, settings.score_low, settings.score_high)
            for d in distances
        ]
        pair = _pair(scores, settings)
        threshold = cusum_threshold(
            scores,
            slack=settings.slack,
            run_length=settings.run_length,
            grid=np.arange(settings.threshold_min, settings.threshold_max + 0.5),
            generator=generator,
        )
    return SizeClass(
        launches=launches, location=location, scale=scale, threshold=threshold, pair=pair
    )


def _references(rows: Floats, blocks: Sequence[_Ints], count: int) -> list[Floats]:
    """For each block the medoids of all other blocks."""
    between = pairwise(rows)
    references = []
    for block in blocks:
        others = np.full(len(rows), True)
        others[block] = False
        rest = np.flatnonzero(others)  # np.setdiff1d would load numpy.ma, six megabytes
        references.append(rows[rest[medoids(between[np.ix_(rest, rest)], count)]])
    return references


def thinned(
    weights: Floats, per_launch: Floats, launches: int, generator: np.random.Generator
) -> Floats:
    """Weights as if only `launches` launches had been sampled from the window.

    `per_launch` is what one launch of each key adds to its weight.
    """
    counts = weights / per_launch
    drawn = generator.multinomial(launches, counts / counts.sum()) * per_launch
    thinned: Floats = drawn / drawn.sum()
    return thinned


def _sampling_noise(
    rows: Floats, per_launch: Floats, launches: _Ints, generator: np.random.Generator
) -> tuple[float, float]:
    """Median and deviation of the nearest distance between samples of the pooled mix.

    The number of independent draws in a window is its launches, discounted for the overdispersion
    that the windows show: Pearson's X² over its degrees of freedom (McCullagh & Nelder 1989), since
    launches of one engine step share their shape.
    """
    counts = rows / per_launch
    counts = counts / counts.sum(axis=1, keepdims=True)
    pooled = counts.mean(axis=0)
    used = pooled > 0
    typical = median(launches)
    excess = (counts[:, used] - pooled[used]) ** 2 / pooled[used] * typical
    freedom = max(1, (len(rows) - 1) * (int(used.sum()) - 1))
    dispersion = max(1.0, float(excess.sum()) / freedom)
    draws = max(2, round(typical / dispersion))
    nearest = []
    for _ in range(200):
        sample = generator.multinomial(draws, pooled / pooled.sum(), size=len(rows)) * per_launch
        sample = sample / sample.sum(axis=1, keepdims=True)
        nearest.append(float(jensen_shannon(sample[0], sample[1:]).min()))
    return median(nearest), float(np.std(nearest))


def _pair(scores: Sequence[Floats], settings: DriftSettings) -> float:
    """Score that no two consecutive baseline roll-ups both passed, by a margin.

    A baseline is about as long as the wanted run between false alarms or shorter. Its largest pair
    is therefore the only estimate of the tail; half a deviation is added to it.
    """
    pairs = [float(np.minimum(block[:-1], block[1:]).max()) for block in scores if len(block) > 1]
    largest = max(pairs, default=settings.score_high)
    return min(settings.score_high - 0.5, max(settings.pair_min, largest + 0.5))

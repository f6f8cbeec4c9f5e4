"""How far ordinary traffic lies from the library when the same hours come again."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from retuned.stages.drift.calibration import SCALE_FLOOR, mean_durations, thinned
from retuned.stages.drift.settings import DriftSettings
from retuned.stages.drift.state import Library, SizeClass, tally
from retuned.stages.profile import WorkloadProfile, aligned, merge
from retuned.stats import Floats, cusum_threshold, jensen_shannon, robust_centre

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

    The baseline holds each hour once, and is at distance 0 from itself. What a fresh repeat of it
    would show is had from a third of its windows: the mean of n/3 of n windows differs from the
    mean of all n by a variance of (3/n - 1/n) s^2, and so do two independent means of n windows.
    What differs between the windows of an hour counts as chance here, so that a true repeat lies
    rather nearer.

    Parameters
    ----------
    windows
        The baseline in order, at least ``few_windows`` roll-ups of at least three windows.
    library
        What was learned from the same windows.
    """
    per_launch = mean_durations(windows, library) ** settings.time_power
    size = settings.rollup_windows
    used = size // PARTS
    parts = [
        [
            merge([windows[start + part + PARTS * i] for i in range(used)])
            for start in range(len(windows) - size + 1)
        ]
        for part in range(PARTS)
    ]
    rows = [np.stack([_weights(p, library, settings) for p in part]) for part in parts]
    classes = []
    for floor in settings.size_classes:
        distances = []
        for part, weights in zip(parts, rows, strict=True):
            # a part stands for a roll-up with as many times its launches
            seen = [
                thinned(row, per_launch, floor, generator)
                if p.launches * size > floor * used
                else row
                for p, row in zip(part, weights, strict=True)
            ]
            nearest = [jensen_shannon(row, library.weights).min() for row in seen]
            distances.append(np.array(nearest))
        classes.append(_class(floor, distances, settings, generator))
    return tuple(classes)


def _weights(profile: WorkloadProfile, library: Library, settings: DriftSettings) -> Floats:
    stats = aligned(profile.stats, library.modes, gap_ratio=settings.mode_gap_ratio)
    return tally(stats, library, power=settings.time_power)[1]


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

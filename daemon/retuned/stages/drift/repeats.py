"""How far ordinary traffic lies from the library when the same hours come again."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from retuned.stages.drift.calibration import SCALE_FLOOR, mean_durations, thinned
from retuned.stages.drift.settings import DriftSettings
from retuned.stages.drift.state import Library, SizeClass
from retuned.stages.profile import OTHER, WorkloadProfile, aligned, merge
from retuned.stats import Floats, cusum_threshold, robust_centre

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
            # a part stands for a roll-up with as many times its launches
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
    """Distance to the nearest of many rows; their own entropy is taken once."""

    def __init__(self, rows: Floats) -> None:
        self._rows = rows
        self._entropies = _entropy(rows)

    def distance(self, weights: Floats) -> float:
        """Jensen-Shannon divergence to the nearest row, bits."""
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

"""What each value of each parameter did so far, and steps around the best points by it.

Narrower than the surrogate, and surer where the hill is already found: a step changes one value, or
one up and another down, and is ranked by an additive model.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence

from retuned.lab.generators.spaces import Grid, Point

PATIENCE = 3
"""Points of a structure that are tried before it competes: a first guess alone may be unlucky."""
CENTRES = 3
"""Steps are taken around so many of the best points at a time."""
CENTRE_RATIO = 0.85
"""And only around points at least this good, relative to the best."""
CURIOSITY = 0.05
"""Added to a step's predicted log ratio where its value was never tried; falls with the tries."""


def next_step(
    grid: Grid,
    known: Mapping[Point, float],
    taken: Collection[Point],
    *,
    allowed: Callable[[Point], bool],
) -> Point | None:
    """Return the most promising untried neighbour of the best points; None if there is none.

    Parameters
    ----------
    grid
        All points.
    known
        Log ratio of each tried point.
    taken
        Points that were tried or chosen.
    allowed
        Whether nothing speaks against a point.
    """
    effects = Effects(known)
    best: tuple[float, Point] | None = None
    for centre in _centres(grid, known, taken):
        for point in grid.neighbours(centre):
            if point in taken or not allowed(point):
                continue
            promise = known[centre] + effects.change(centre, point)
            if best is None or (promise, best[1]) > (best[0], point):
                best = (promise, point)
    return best[1] if best is not None else None


def _centres(grid: Grid, known: Mapping[Point, float], taken: Collection[Point]) -> list[Point]:
    """Points to step from: of a structure that was hardly tried, then the best of all."""
    ranked = sorted(known, key=lambda point: (-known[point], point))
    for structure in grid.spaces:
        own = [point for point in ranked if point.structure == structure]
        if own and sum(point.structure == structure for point in taken) < PATIENCE:
            return own[:1]
    return [
        point
        for point in ranked[:CENTRES]
        if known[point] >= known[ranked[0]] + math.log(CENTRE_RATIO)
    ]


class Effects:
    """What each value of each parameter did to the log ratio: an additive model per structure.

    Formula: an effect is the mean residual of the n points with that value, times n / (n + 1),
    fitted in a few rounds of backfitting.
    """

    def __init__(self, known: Mapping[Point, float]) -> None:
        self._effects: dict[tuple[str, int, int], float] = defaultdict(float)
        self._tries: dict[tuple[str, int, int], int] = defaultdict(int)
        by_structure: dict[str, list[tuple[Point, float]]] = defaultdict(list)
        for point, ratio in known.items():
            by_structure[point.structure].append((point, ratio))
            for axis, place in enumerate(point.places):
                self._tries[point.structure, axis, place] += 1
        for points in by_structure.values():
            self._fit(points)

    def change(self, centre: Point, point: Point) -> float:
        """Return the predicted difference of a step, plus a little for what it would teach."""
        total = 0.0
        for axis, (old, new) in enumerate(zip(centre.places, point.places, strict=True)):
            if old != new:
                key = (point.structure, axis, new)
                total += self._effects[key] - self._effects[point.structure, axis, old]
                total += CURIOSITY / (1 + self._tries[key])
        return total

    def _fit(self, points: Sequence[tuple[Point, float]]) -> None:
        mean = sum(ratio for _, ratio in points) / len(points)
        axes = range(len(points[0][0].places))
        for _ in range(5):
            for axis in axes:
                residuals: dict[tuple[str, int, int], list[float]] = defaultdict(list)
                for point, ratio in points:
                    others = sum(
                        self._effects[point.structure, other, point.places[other]]
                        for other in axes
                        if other != axis
                    )
                    key = (point.structure, axis, point.places[axis])
                    residuals[key].append(ratio - mean - others)
                for key, values in residuals.items():
                    self._effects[key] = sum(values) / (len(values) + 1)

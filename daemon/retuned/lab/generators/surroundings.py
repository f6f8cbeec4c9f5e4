"""The surroundings of the best points: where a hill that was found is climbed."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping

from retuned.lab.generators.spaces import Grid, Point

PATIENCE = 3
"""Points of a structure that are tried before it competes: a first guess alone may be unlucky."""
CENTRES = 3
"""Steps are taken around so many of the best points at a time."""
CENTRE_RATIO = 0.85
"""And only around points at least this good, relative to the best."""


def around(
    grid: Grid,
    known: Mapping[Point, float],
    taken: Collection[Point],
    *,
    allowed: Callable[[Point], bool],
) -> list[Point]:
    """Return the untried neighbours of the best points, sorted.

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
    found = {
        point
        for centre in _centres(grid, known, taken)
        for point in grid.neighbours(centre)
        if point not in taken and allowed(point)
    }
    return sorted(found)


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

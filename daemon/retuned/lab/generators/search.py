"""Search over parameters: first guesses per structure, then steps around the best, then restarts.

Tens of evaluations decide over hundreds of points, so nothing here is wasted on points that cannot
be built or that use more threads than there are cores, and each evaluation teaches something about
its neighbours: steps are ranked by an additive model of what each parameter's value did so far.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence

from retuned.contract import Definition, Solution, Workload
from retuned.lab.generators.spaces import (
    Grid,
    Point,
    Tunable,
    dominant_axes,
    merit,
    require_definition,
)
from retuned.ports import Finding

HOPELESS_RATIO = 0.8
"""A structure whose best stays below this share of the overall best gets no second guess."""
PATIENCE = 3
"""Points of a structure that are tried before it competes: a first guess alone may be unlucky."""
CENTRES = 3
"""Steps are taken around so many of the best points at a time."""
CENTRE_RATIO = 0.85
"""And only around points at least this good, relative to the best."""
CURIOSITY = 0.05
"""Added to a step's predicted log ratio where its value was never tried; falls with the tries."""
FAILED = -0.7
"""Log ratio that stands for a candidate that was never timed: its neighbours are likely as bad."""
RESTART_EVERY = 10
"""Once every so many proposals a random point is tried, in case the hill is the wrong one."""


class SearchGenerator:
    """Local search with restarts; deterministic for a seed and a history.

    Parameters
    ----------
    tunable
        Kernel to propose variants of.
    cores
        Cores a launch may use.
    seed
        Decides restarts only.
    structures
        Only these; empty means all.
    """

    name = "search"

    def __init__(
        self, tunable: Tunable, *, cores: int, seed: int, structures: Sequence[str] = ()
    ) -> None:
        self._grid = Grid(tunable, cores=cores, structures=structures)
        self._seed = seed

    def propose(
        self,
        definition: Definition,
        workloads: Sequence[Workload],
        *,
        history: Sequence[Finding],
        count: int,
    ) -> Sequence[Solution]:
        """Return up to `count` variants not in `history`; empty means the space is exhausted.

        Raises
        ------
        UsageError
            If this generator was made for another definition, or there is no workload of it.
        """
        require_definition(definition, self._grid.tunable)
        axes = dominant_axes(definition, workloads)
        known = self._known(history)
        taken = set(known)
        chosen: list[Point] = []
        while len(chosen) < count:
            point = self._next(known, taken, axes=axes)
            if point is None:
                break
            taken.add(point)
            chosen.append(point)
        return [self._grid.solution(point) for point in chosen]

    def _known(self, history: Sequence[Finding]) -> dict[Point, float]:
        """Log ratio of every point tried; the incumbent's is 0 by definition."""
        known: dict[Point, float] = {}
        incumbent = self._grid.tunable.incumbent
        point = self._grid.point(incumbent.structure, incumbent.params)
        if point is not None:
            known[point] = 0.0
        for finding in history:
            point = self._grid.point(finding.solution.structure, finding.solution.params)
            ratio = merit(finding)
            if point is not None:
                known[point] = FAILED if ratio is None else math.log(ratio)
        return known

    def _next(
        self, known: Mapping[Point, float], taken: set[Point], *, axes: Mapping[str, int]
    ) -> Point | None:
        guess = self._guess(known, taken, axes=axes)
        if guess is not None:
            return guess
        if len(taken) % RESTART_EVERY:
            step = self._step(known, taken)
            if step is not None:
                return step
        return self._restart(taken)

    def _guess(
        self, known: Mapping[Point, float], taken: set[Point], *, axes: Mapping[str, int]
    ) -> Point | None:
        """First guess of each structure, then further guesses of those that are not hopeless."""
        starts = self._grid.starts(axes)
        for place in range(max((len(s) for s in starts), default=0)):
            for guesses in starts:
                if place >= len(guesses) or guesses[place] in taken:
                    continue
                if place == 0 or not self._hopeless(guesses[place].structure, known):
                    return guesses[place]
        return None

    def _hopeless(self, structure: str, known: Mapping[Point, float]) -> bool:
        own = [ratio for point, ratio in known.items() if point.structure == structure]
        return bool(own) and max(own) < max(known.values()) + math.log(HOPELESS_RATIO)

    def _step(self, known: Mapping[Point, float], taken: set[Point]) -> Point | None:
        """Return the most promising untried neighbour of the best points."""
        effects = Effects(known)
        best: tuple[float, Point] | None = None
        for centre in self._centres(known, taken):
            for point in self._grid.neighbours(centre):
                if point in taken:
                    continue
                promise = known[centre] + effects.change(centre, point)
                if best is None or (promise, best[1]) > (best[0], point):
                    best = (promise, point)
        return best[1] if best is not None else None

    def _centres(self, known: Mapping[Point, float], taken: set[Point]) -> list[Point]:
        """Points to step from: of a structure that was hardly tried, then the best of all."""
        ranked = sorted(known, key=lambda point: (-known[point], point))
        for structure in self._grid.spaces:
            own = [point for point in ranked if point.structure == structure]
            if own and sum(point.structure == structure for point in taken) < PATIENCE:
                return own[:1]
        return [
            point
            for point in ranked[:CENTRES]
            if known[point] >= known[ranked[0]] + math.log(CENTRE_RATIO)
        ]

    def _restart(self, taken: set[Point]) -> Point | None:
        fresh = sorted(self._grid.points - taken)
        if not fresh:
            return None
        # A string seeds the same way in every process; hash() would not.
        return random.Random(f"{self._seed}:{len(taken)}").choice(fresh)


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

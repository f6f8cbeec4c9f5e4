"""Search over parameters: first guesses per structure, then where most improvement is expected.

Tens of evaluations decide over hundreds of points, so nothing here is wasted on points that cannot
be built, that use more threads than there are cores, or that earlier failures rule out. Each
evaluation gives information about all others: a surrogate (`surrogate`) of the measurements
estimates how much better each untried point may be, and the most promising one is next. Once in a
while the choice is random, in case the surrogate is wrong.

What earlier experiments learned (`priors`) comes before: a few first guesses are theirs, structures
that they call poor are guessed at later, and they are the surrogate's mean for as long as they
explain what is measured better than nothing known does (`guidance`).
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from retuned.contract import Definition, Solution, Workload
from retuned.lab.generators.priors import FAILED, Priors
from retuned.lab.generators.search_heuristics import Guidance, Lessons, around, learn
from retuned.lab.generators.spaces import (
    Grid,
    Point,
    Tunable,
    dominant_axes,
    merit,
    require_definition,
)
from retuned.lab.generators.surrogate import (
    Array,
    Field,
    Prediction,
    coordinates_of,
    expected_improvement,
)
from retuned.ports import Finding

HOPELESS_RATIO = 0.8
"""A structure whose best stays below this share of the overall best gets no second guess."""
WORST = math.log(4.0)
"""Largest distance below the best, in logarithms; worse points count as this."""
RESTART_EVERY = 16
"""Once every so many proposals a random point is tried, in case the surrogate is wrong."""
MOST = 20_000
"""Most points that the search considers; of larger spaces, a random part."""
NEAR_EVERY = 2
"""One of so many proposals is the surrogate's choice around the best, the others are of all."""
AHEAD = 24
"""Most points that are chosen one after the other before any is measured; further points follow in
the order of their expected improvement."""
_REFITS = (4, 6, 9, 13, 18, 25, 35, 50, 70, 100, 150, 220)
"""Numbers of known points at which hyperparameters are chosen again."""


class SearchGenerator:
    """Bayesian search with first guesses; deterministic for a seed and a history.

    Parameters
    ----------
    tunable
        Kernel to propose variants of.
    cores
        Cores a launch may use.
    seed
        Seed of random choices.
    structures
        Only these; empty means all.
    earlier
        Findings of earlier experiments against the same incumbent in the same environment: what is
        known is not tried again.
    priors
        What experiments on other sizes of the operator, or older ones, learned; they only order.
    """

    name = "search"

    def __init__(
        self,
        tunable: Tunable,
        *,
        cores: int,
        seed: int,
        structures: Sequence[str] = (),
        earlier: Sequence[Finding] = (),
        priors: Priors | None = None,
    ) -> None:
        self._grid = Grid(tunable, cores=cores, structures=structures)
        self._priors = priors
        self._seed = seed
        self._earlier = tuple(earlier)
        self._order = self._worth_a_look()
        self._number()

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
            If this generator was made for another definition, or `workloads` has none of it.
        """
        require_definition(definition, self._grid.tunable)
        axes = dominant_axes(definition, workloads)
        findings = (*self._earlier, *history)
        known = self._known(findings)
        self._admit(known)
        lessons = learn(findings, self._grid)
        taken = set(known)
        believed = dict(known)
        chosen: list[Point] = []
        while len(chosen) < count:
            if len(chosen) >= AHEAD:
                chosen += self._rest(believed, taken, known=known, lessons=lessons)
                break
            point = self._next(believed, taken, known=known, lessons=lessons, axes=axes)
            if point is None:
                break
            taken.add(point)
            chosen.append(point)
        return [self._grid.solution(point) for point in chosen[:count]]

    def _known(self, findings: Sequence[Finding]) -> dict[Point, float]:
        """Log ratio of every point tried; the incumbent's is 0 by definition."""
        known: dict[Point, float] = {}
        incumbent = self._grid.tunable.incumbent
        point = self._grid.point(incumbent.structure, incumbent.params)
        if point is not None:
            known[point] = 0.0
        for finding in findings:
            point = self._grid.point(finding.solution.structure, finding.solution.params)
            ratio = merit(finding)
            if point is not None:
                known[point] = FAILED if ratio is None else math.log(ratio)
        return known

    def _next(
        self,
        believed: dict[Point, float],
        taken: set[Point],
        *,
        known: Mapping[Point, float],
        lessons: Lessons,
        axes: Mapping[str, int],
    ) -> Point | None:
        guess = self._guess(known, taken, lessons=lessons, axes=axes)
        if guess is not None:
            return guess
        pool = self._pool(taken, lessons)
        if not pool:
            return None
        if not believed or len(taken) % RESTART_EVERY == 0:
            return self._chance(taken).choice(pool)
        if len(taken) % NEAR_EVERY == 1:
            near = around(self._grid, known, taken, allowed=lessons.allow)
            pool = [point for point in near if point in self._rows] or pool
        return self._promising(believed, pool, known=known)

    def _guess(
        self,
        known: Mapping[Point, float],
        taken: set[Point],
        *,
        lessons: Lessons,
        axes: Mapping[str, int],
    ) -> Point | None:
        """First guess of each structure, then further guesses of those that are not hopeless.

        What the priors expect most of comes first; structures that they call poor, late.
        """
        hinted = self._guidance.guess(taken, allowed=lessons.allow)
        if hinted is not None:
            return hinted
        starts = [
            guesses
            for guesses in self._grid.starts(axes)
            if not guesses or not self._guidance.late(guesses[0].structure, tried=len(taken))
        ]
        for place in range(max((len(s) for s in starts), default=0)):
            for guesses in starts:
                if place >= len(guesses) or guesses[place] in taken:
                    continue
                if not lessons.allow(guesses[place]):
                    continue
                if place == 0 or not self._hopeless(guesses[place].structure, known):
                    return guesses[place]
        return None

    def _hopeless(self, structure: str, known: Mapping[Point, float]) -> bool:
        own = [ratio for point, ratio in known.items() if point.structure == structure]
        return bool(own) and max(own) < max(known.values()) + math.log(HOPELESS_RATIO)

    def _pool(self, taken: set[Point], lessons: Lessons) -> list[Point]:
        """Return untried points that no lesson excludes."""
        return [p for p in self._order if p not in taken and lessons.allow(p)]

    def _worth_a_look(self) -> list[Point]:
        """Return the points that are looked at: all, or of very many a random part."""
        points = sorted(self._grid.points)
        if len(points) > MOST:
            points = sorted(random.Random(str(self._seed)).sample(points, MOST))
        return points

    def _admit(self, known: Collection[Point]) -> None:
        """Add points that were tried, also those that other generators proposed."""
        missing = sorted(set(known) - self._rows.keys())
        if missing:
            self._order = sorted([*self._order, *missing])
            self._number()

    def _number(self) -> None:
        self._rows = {point: row for row, point in enumerate(self._order)}
        self._coordinates = coordinates_of(
            [(point.structure, self._grid.params(point)) for point in self._order],
            {name: space.params for name, space in self._grid.spaces.items()},
        )
        self._guidance = Guidance(
            self._priors,
            self._order,
            [self._grid.params(point) for point in self._order],
            hopeless_ratio=HOPELESS_RATIO,
        )
        self._fields: dict[tuple[int, ...], tuple[Field, float]] = {}

    def _chance(self, taken: set[Point]) -> random.Random:
        # A string seeds the same way in every process; hash() would not.
        return random.Random(f"{self._seed}:{len(taken)}")

    def _promising(
        self, believed: dict[Point, float], pool: Sequence[Point], *, known: Mapping[Point, float]
    ) -> Point:
        """Return the point with most expected improvement; take its expectation as its result.

        Points that were chosen and not yet measured count as measured, with what is expected.
        """
        promise, mean = self._promise(believed, known)
        places = [self._rows[point] for point in pool]
        best = int(np.argmax(promise[places]))
        believed[pool[best]] = float(mean[places[best]])
        return pool[best]

    def _rest(
        self,
        believed: Mapping[Point, float],
        taken: set[Point],
        *,
        known: Mapping[Point, float],
        lessons: Lessons,
    ) -> list[Point]:
        """Return all other points, the most promising first."""
        pool = self._pool(taken, lessons)
        if not believed:
            return pool
        promise, _ = self._promise(believed, known)
        return sorted(pool, key=lambda point: (-float(promise[self._rows[point]]), point))

    def _promise(
        self, believed: Mapping[Point, float], known: Mapping[Point, float]
    ) -> tuple[Array, Array]:
        """Return the expected improvement and the expected value of every point."""
        rows = [self._rows[point] for point in believed]
        values = np.array(list(believed.values()))
        values = np.maximum(values, values.max() - WORST)
        field, trust = self._field(list(known.items()))
        offset = trust * self._guidance.means
        found = field.believe(rows, values - offset[rows])
        belief = Prediction(mean=found.mean + offset, deviation=found.deviation)
        best = float(belief.mean[rows].max())
        return expected_improvement(belief, best=best), belief.mean

    def _field(self, known: Sequence[tuple[Point, float]]) -> tuple[Field, float]:
        """Return the space under hyperparameters that are chosen again after some points only.

        Beside it, how much of the priors holds here.
        """
        count = max((n for n in _REFITS if n <= len(known)), default=len(known))
        rows = tuple(self._rows[point] for point, _ in known[:count])
        if rows not in self._fields:
            values = np.array([value for _, value in known[:count]])
            values = np.maximum(values, values.max() - WORST)
            shape, trust = self._guidance.fit(self._coordinates.take(rows), values, rows=rows)
            self._fields = {rows: (Field(self._coordinates, shape=shape), trust)}
        return self._fields[rows]

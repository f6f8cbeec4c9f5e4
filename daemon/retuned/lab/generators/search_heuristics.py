"""How far a search follows its priors: first guesses, late structures, and the surrogate's mean.

The trust is bounded. A prior chooses at most `GUESSES` points and delays a structure by at most
`LATE` points. Each refit compares the prior as the surrogate's mean with no prior, by marginal
likelihood: a prior that explains the measurements worse is not used until the next refit.

The neighbours of the best points: a local search around them.

Negative results: what failed candidates predict for points that were not tried.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from retuned.lab.generators.priors import Expectation, Params, Priors
from retuned.lab.generators.spaces import Grid, Point
from retuned.lab.generators.surrogate import (
    LEAST,
    Array,
    Coordinates,
    Shape,
    fit_with_likelihood,
)
from retuned.ports import Finding
from retuned.stages.hypothesis import hopeless, tally
from retuned.stages.hypothesis.refine import STARVED

GUESSES = 3
"""Points that are tried because the priors expect most of them."""
LATE = 12
"""Points that are tried before a structure which the priors call poor has its first guess."""
_TRUSTS = (1.0, 0.5, 0.0)
"""How much weight the priors get."""


class Guidance:
    """A prior over the points of one space.

    Parameters
    ----------
    priors
        Priors; None, or an empty one, changes nothing.
    points
        All points, in the search's order.
    params
        Parameters of each.
    hopeless_ratio
        A structure whose best is expected below this share of the best of all is poor.
    """

    def __init__(
        self,
        priors: Priors | None,
        points: Sequence[Point],
        params: Sequence[Params],
        *,
        hopeless_ratio: float,
    ) -> None:
        self.means: Array = np.zeros(len(points))
        """Expected log speedup of each point; only differences mean something."""
        self._poor: frozenset[str] = frozenset()
        self._best: tuple[Point, ...] = ()
        self._active = priors is not None and priors.known
        if priors is None or not priors.known:
            return
        expectation = Expectation(priors)
        named = [(point.structure, own) for point, own in zip(points, params, strict=True)]
        self.means = np.array([expectation.mean(*each) for each in named])
        self._poor = frozenset(
            name
            for name in {point.structure for point in points}
            if expectation.poor(name, ratio=hopeless_ratio)
        )
        tried = [row for row, (name, _) in enumerate(named) if expectation.knows(name)]
        ranked = sorted(tried, key=lambda row: (-float(self.means[row]), row))
        self._best = tuple(points[row] for row in ranked[:GUESSES])

    def guess(self, taken: Collection[Point], *, allowed: Callable[[Point], bool]) -> Point | None:
        """Return the next point to try because of the priors; None where they have had their say.

        Parameters
        ----------
        taken
            Points that were tried or chosen.
        allowed
            Whether no lesson excludes a point.
        """
        return next((p for p in self._best if p not in taken and allowed(p)), None)

    def late(self, structure: str, *, tried: int) -> bool:
        """Whether a structure's first guess can wait, with so many points tried."""
        return tried < LATE and structure in self._poor

    def fit(
        self, points: Coordinates, values: Array, *, rows: Sequence[int]
    ) -> tuple[Shape, float]:
        """Choose the surrogate's hyperparameters, and how much of the priors holds.

        Parameters
        ----------
        points
            Tried points, n rows.
        values
            What was measured, n numbers.
        rows
            Their places among all points.
        """
        if not self._active:
            return fit_with_likelihood(points, values)[0], 0.0
        if len(values) < LEAST:
            return fit_with_likelihood(points, values)[0], _TRUSTS[0]
        own = self.means[np.asarray(rows)]
        fits = [(trust, *fit_with_likelihood(points, values - trust * own)) for trust in _TRUSTS]
        trust, shape, _ = max(fits, key=lambda each: each[2])
        return shape, trust


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
        Whether no lesson excludes a point.
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


_SIZES = re.compile(r"(BLOCK|TILE|CHUNK|ROWS|XROWS|UNROLL|STAGE|STAGES|P|num_stages)(_[A-Z0-9]+)?")
"""Parameters that say how much is held at a time; more of it never needs less."""


@dataclass(frozen=True, slots=True)
class Lessons:
    """What must not be tried."""

    hopeless: frozenset[str] = frozenset()
    """Structures of which nothing worked."""
    ceilings: tuple[Point, ...] = ()
    """Points that wanted more than there is."""
    _sizes: dict[str, tuple[bool, ...]] = field(default_factory=dict)

    def allow(self, point: Point) -> bool:
        """Whether no lesson excludes the point."""
        if point.structure in self.hopeless:
            return False
        return not any(self._above(point, ceiling) for ceiling in self.ceilings)

    def _above(self, point: Point, ceiling: Point) -> bool:
        """Whether a point holds at least as much as one that held too much."""
        if point.structure != ceiling.structure:
            return False
        sizes = self._sizes[point.structure]
        return all(
            mine >= most if size else mine == most
            for mine, most, size in zip(point.places, ceiling.places, sizes, strict=True)
        )


def learn(history: Sequence[Finding], grid: Grid) -> Lessons:
    """Return what the findings teach; the incumbent's structure works and is never hopeless."""
    reasons: dict[str, list[str]] = defaultdict(list)
    ceilings = []
    for finding in history:
        reason = str(finding.verdict.reason)
        reasons[finding.solution.structure].append(reason)
        point = grid.point(finding.solution.structure, finding.solution.params)
        if point is not None and reason in STARVED:
            ceilings.append(point)
    outcomes = {structure: tally(codes) for structure, codes in reasons.items()}
    known = frozenset(hopeless(outcomes)) - {grid.tunable.incumbent.structure}
    sizes = {
        structure: tuple(
            _SIZES.fullmatch(name) is not None and _rising(choices)
            for name, choices in space.params.items()
        )
        for structure, space in grid.spaces.items()
    }
    return Lessons(known, tuple(ceilings), sizes)


def _rising(choices: Sequence[int | str]) -> bool:
    """Whether a later choice is a larger number."""
    numbers = [choice for choice in choices if isinstance(choice, int)]
    return len(numbers) == len(choices) and numbers == sorted(numbers)

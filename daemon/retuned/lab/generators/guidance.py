"""How far a search follows its priors: first guesses, late structures, and the surrogate's mean.

The trust is bounded. A prior has at most `GUESSES` points of its own and puts a structure off by
`LATE` points at most. As the surrogate's mean it is weighed against nothing known at every refit,
by marginal likelihood: one that explains what was measured worse is not used until the next refit.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import numpy as np

from retuned.lab.generators.priors import Expectation, Params, Priors
from retuned.lab.generators.spaces import Point
from retuned.lab.generators.surrogate import (
    LEAST,
    Array,
    Coordinates,
    Shape,
    fit_with_likelihood,
)

GUESSES = 3
"""Points that are tried because the priors expect most of them."""
LATE = 12
"""Points that are tried before a structure which the priors call poor has its first guess."""
_TRUSTS = (1.0, 0.5, 0.0)
"""How much of the priors may be believed."""


class Guidance:
    """A prior over the points of one space.

    Parameters
    ----------
    priors
        What is believed; None, or one that knows nothing, guides nobody.
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
            Whether nothing speaks against a point.
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

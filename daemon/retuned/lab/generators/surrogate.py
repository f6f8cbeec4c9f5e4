"""What the tried points say of the untried: a Gaussian process over a grid of parameters.

Tens of measurements of some hundred points are all there is. Most parameters act on their own, some
only together, and a cliff is a cliff however near its edge is; so covariance falls exponentially
with distance (no smoothness is assumed), and is a mixture of a sum over parameters and a product.

Formula, for points ``a`` and ``b`` of structures ``s`` and ``t`` with coordinates ``x`` and ``y``::

    k_d   = exp(-|x_d - y_d| / l_d)                      one parameter
    k     = [s = t] * (w_s + w_a * mean_d k_d + w_p * prod_d k_d) + w_c * mean_common_d k_d

The weights, the lengths ``l_d`` and the noise are chosen by marginal likelihood, one after another
from short lists; the scale then has a closed form.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

_LENGTHS = (0.4, 1.2, 3.5, 10.0)
"""Choices of a parameter's length: from "each value is its own" to "it hardly matters"."""
_WEIGHTS = (
    (0.3, 0.4, 0.3, 0.0),
    (0.2, 0.7, 0.1, 0.0),
    (0.2, 0.1, 0.7, 0.0),
    (0.2, 0.3, 0.3, 0.2),
    (0.1, 0.1, 0.4, 0.4),
)
"""Choices of the weights: structure, sum, product, common to structures."""
_NOISES = (1e-4, 1e-3, 1e-2, 1e-1)
"""Choices of the noise's variance, relative to the signal's."""
_JITTER = 1e-9
LEAST = 4
"""Fewer points choose no hyperparameters."""
_ERF = np.frompyfunc(math.erf, 1, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The hyperparameters."""

    lengths: tuple[float, ...]
    """Per parameter."""
    weights: tuple[float, float, float, float] = _WEIGHTS[0]
    """Structure, sum, product, common to structures."""
    noise: float = 1e-2
    """Variance of the noise, relative to the signal's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Coordinates:
    """Points as numbers: one row a point."""

    structures: npt.NDArray[np.int64]
    """Number of each point's structure."""
    places: Array
    """Coordinate of each parameter; NaN where the structure does not have it."""
    unordered: npt.NDArray[np.bool_]
    """Per parameter, whether its values are merely different: any two are one apart."""

    def take(self, rows: Sequence[int]) -> Coordinates:
        """Return some of the points."""
        index = np.asarray(rows, dtype=np.int64)
        return Coordinates(
            structures=self.structures[index],
            places=self.places[index],
            unordered=self.unordered,
        )


def coordinates_of(
    points: Sequence[tuple[str, Mapping[str, int | str]]],
    choices: Mapping[str, Mapping[str, tuple[int | str, ...]]],
) -> Coordinates:
    """Return points as numbers: powers of two are one apart, and so are any two words.

    Parameters
    ----------
    points
        Structure and parameters of each.
    choices
        Per structure, the choices of each parameter.
    """
    names = sorted({name for params in choices.values() for name in params})
    numbers = {structure: number for number, structure in enumerate(sorted(choices))}
    places = np.full((len(points), len(names)), np.nan)
    for row, (structure, params) in enumerate(points):
        for column, name in enumerate(names):
            if name in params:
                places[row, column] = _coordinate(params[name], choices[structure][name])
    structures = np.array([numbers[structure] for structure, _ in points], dtype=np.int64)
    unordered = np.array(
        [
            any(is_unordered(params[name]) for params in choices.values() if name in params)
            for name in names
        ],
        dtype=np.bool_,
    )
    return Coordinates(structures=structures, places=places, unordered=unordered)


def is_unordered(choices: Sequence[int | str]) -> bool:
    """Whether nothing says that neighbouring choices behave alike: words, flags, shuffled numbers.

    Examples
    --------
    >>> is_unordered((16, 32, 64)), is_unordered((64, 32, 16)), is_unordered(("a", "b"))
    (False, False, True)
    >>> is_unordered((4, 1, 2)), is_unordered((0, 1)), is_unordered((False, True))
    (True, False, True)
    """
    if any(isinstance(choice, str | bool) or choice < 0 for choice in choices):
        return True
    numbers = [int(choice) for choice in choices]
    return numbers not in (sorted(numbers), sorted(numbers, reverse=True))


def _coordinate(value: int | str, choices: Sequence[int | str]) -> float:
    if isinstance(value, int) and value >= 0:
        return math.log2(1 + value)
    return float(choices.index(value))


def covariance(left: Coordinates, right: Coordinates, shape: Shape) -> Array:
    """Return the covariance without noise, in units of the signal's variance; m by n."""
    gaps = _gaps(left, right)
    both = ~np.isnan(gaps)
    each = np.exp(-np.where(both, gaps, 0.0) / np.asarray(shape.lengths))
    total = np.where(both, each, 0.0).sum(axis=2) / np.maximum(both.sum(axis=2), 1)
    product = np.where(both, each, 1.0).prod(axis=2)
    same = left.structures[:, None] == right.structures[None, :]
    return _mixed(same.astype(np.float64), total, product, shape)


def _gaps(left: Coordinates, right: Coordinates) -> Array:
    """Return how far apart points are in each parameter; NaN where one has none."""
    gaps = np.abs(left.places[:, None, :] - right.places[None, :, :])
    apart: Array = np.where(left.unordered & (gaps > 0.0), 1.0, gaps)
    return apart


def _mixed(same: Array, total: Array, product: Array, shape: Shape) -> Array:
    by_structure, by_sum, by_product, common = shape.weights
    inside = by_structure + by_sum * total + by_product * product
    mixed: Array = same * inside + common * total
    return mixed


class _Tables:
    """Covariances of tried points per parameter and length, so that a fit computes each once."""

    def __init__(self, points: Coordinates) -> None:
        gaps = _gaps(points, points)
        both = ~np.isnan(gaps)
        known = np.where(both, gaps, 0.0)
        self.same = (points.structures[:, None] == points.structures[None, :]).astype(np.float64)
        self._common = np.maximum(both.sum(axis=2), 1)
        self._each: dict[tuple[int, float], tuple[Array, Array]] = {}
        for length in _LENGTHS:
            each = np.exp(-known / length)
            for axis in range(gaps.shape[2]):
                inside = both[:, :, axis]
                self._each[axis, length] = (
                    np.where(inside, each[:, :, axis], 0.0),
                    np.where(inside, each[:, :, axis], 1.0),
                )

    def covariance(self, shape: Shape) -> Array:
        """Return the covariance of the points; see `covariance`."""
        total, product = np.zeros_like(self.same), np.ones_like(self.same)
        for axis, length in enumerate(shape.lengths):
            added, multiplied = self._each[axis, length]
            total = total + added
            product = product * multiplied
        return _mixed(self.same, total / self._common, product, shape)


def fit(points: Coordinates, values: Array) -> Shape:
    """Choose hyperparameters by marginal likelihood, one after another.

    Parameters
    ----------
    points
        Tried points, n rows.
    values
        What was measured, n numbers.
    """
    return fit_with_likelihood(points, values)[0]


def fit_with_likelihood(points: Coordinates, values: Array) -> tuple[Shape, float]:
    """Choose hyperparameters; return them and their log marginal likelihood, up to a constant.

    The constant depends on the points only, so that two sets of values can be compared. Where there
    are too few points to choose by, it is 0.
    """
    count = points.places.shape[1]
    best = Shape(lengths=(_LENGTHS[1],) * count)
    if len(values) < LEAST:
        return best, 0.0
    tables, centred = _Tables(points), values - values.mean()
    top = _likelihood(tables, centred, best)
    columns = (points.places[:, axis] for axis in range(count))
    varied = [
        axis for axis, places in enumerate(columns) if len(np.unique(places[~np.isnan(places)])) > 1
    ]
    for options in (_noises, _weights, *(_lengths_of(axis) for axis in varied), _noises):
        for shape in options(best):
            found = _likelihood(tables, centred, shape)
            if found > top:
                best, top = shape, found
    return best, top


def _noises(now: Shape) -> list[Shape]:
    return [replace(now, noise=noise) for noise in _NOISES]


def _weights(now: Shape) -> list[Shape]:
    return [replace(now, weights=weights) for weights in _WEIGHTS]


def _lengths_of(axis: int) -> Callable[[Shape], list[Shape]]:
    def options(now: Shape) -> list[Shape]:
        return [
            replace(now, lengths=(*now.lengths[:axis], length, *now.lengths[axis + 1 :]))
            for length in _LENGTHS
        ]

    return options


def _likelihood(tables: _Tables, centred: Array, shape: Shape) -> float:
    """Log marginal likelihood with the best scale, up to a constant."""
    noisy = tables.covariance(shape)
    noisy.flat[:: len(centred) + 1] += shape.noise + _JITTER
    try:
        root = np.linalg.cholesky(noisy)
    except np.linalg.LinAlgError:
        return -math.inf
    white = np.linalg.solve(root, centred)
    scale = max(float(white @ white) / len(centred), 1e-12)
    logs = float(np.log(np.diag(root)).sum())
    return -0.5 * len(centred) * math.log(scale) - logs


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Mean and deviation of the points of a field."""

    mean: Array
    """Expected value of each."""
    deviation: Array
    """Standard deviation of each, without the measurement's noise."""


class Field:
    """All points of a space under one set of hyperparameters; columns are computed once.

    Parameters
    ----------
    points
        All points, m rows.
    shape
        Hyperparameters.
    """

    def __init__(self, points: Coordinates, *, shape: Shape) -> None:
        self._points = points
        self._shape = shape
        self._columns: dict[int, Array] = {}

    def believe(self, rows: Sequence[int], values: Array) -> Prediction:
        """Return the posterior of every point, given the measured ones.

        Parameters
        ----------
        rows
            Tried points; at least one.
        values
            What each of them showed.
        """
        columns = np.stack([self._column(row) for row in rows], axis=1)
        noisy = columns[np.asarray(rows)]
        noisy.flat[:: len(rows) + 1] += self._shape.noise + _JITTER
        inverse = np.linalg.inv(noisy)
        mean = float(values.mean())
        centred = values - mean
        # One pseudo-observation of a deviation of 10 %: a few lucky equal numbers prove nothing.
        scale = (float(centred @ inverse @ centred) + 0.01) / (len(rows) + 1)
        known = ((columns @ inverse) * columns).sum(axis=1)
        spread = np.maximum(sum(self._shape.weights) - known, 1e-12)
        return Prediction(
            mean=mean + columns @ (inverse @ centred), deviation=np.sqrt(spread * scale)
        )

    def _column(self, row: int) -> Array:
        if row not in self._columns:
            one = self._points.take([row])
            self._columns[row] = covariance(self._points, one, self._shape)[:, 0]
        return self._columns[row]


def expected_improvement(belief: Prediction, *, best: float) -> Array:
    """Return by how much each point is expected to exceed the best, where it does.

    Formula: ``(m - b) * P(z) + s * p(z)`` with ``z = (m - b) / s``, standard normal ``P`` and
    ``p``.
    """
    above = belief.mean - best
    z = above / belief.deviation
    below = 0.5 * (1.0 + np.asarray(_ERF(z / math.sqrt(2.0)), dtype=np.float64))
    density = np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
    improvement: Array = above * below + belief.deviation * density
    return improvement

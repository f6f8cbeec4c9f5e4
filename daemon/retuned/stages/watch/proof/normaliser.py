"""What a step of a given composition should take: a robust least-squares fit. Pure.

A step's time is linear in its prompt tokens, decoding sequences and context tokens, with bends at
60 and 200 tokens, where a matrix product stops to be bound by memory, and a constant for steps with
a prompt. Steps of each graph size have an intercept. It is the deviation from a common one, with
the weight of one observation towards zero: a size that was not fitted has the common intercept.

The fit weights a step by the inverse of its expected time, so that expected and measured times have
the same sum, and bounds the influence of steps far from their expected time.
"""

from __future__ import annotations

from itertools import chain

import numpy as np
from pydantic import Field

from retuned.contract import Record
from retuned.stages.watch.proof.records import Floats, StepColumns

REFITS = (8, 24, 56, 120)
"""Pairs after which the fit is made again."""
ROWS_PER_BLOCK = 32
"""Steps of a block that are kept for fits, evenly spaced."""
MOST_ROWS = 2048
"""Rows that a fit uses; the latest."""
FEATURES = 6
"""Features of a step, without the intercept."""
_ROUNDS = 6
_CUTOFF = 2.5
_RANK = 1e-9
_FLOOR = 0.1


class FitRows(Record):
    """Steps for the next fit, as rows of prefill, decode, context, graph size and seconds."""

    rows: tuple[tuple[float, float, float, float, float], ...] = ()

    def extend(self, columns: StepColumns) -> FitRows:
        """Return the rows with some of these steps, chosen by position only."""
        count = len(columns)
        if not count:
            return self
        kept = min(count, ROWS_PER_BLOCK)
        at = np.arange(kept) * count // kept
        table = np.column_stack(
            [
                columns.prefill[at],
                columns.decode[at],
                columns.context[at],
                columns.graph[at],
                columns.period_s[at],
            ]
        )
        new = tuple((a, b, c, d, e) for a, b, c, d, e in table.tolist())
        return FitRows.model_construct(rows=(self.rows + new)[-MOST_ROWS:])


class StepFit(Record):
    """Coefficients of the expected time of a step, seconds."""

    common_s: float
    """Intercept of steps whose graph size was not fitted."""
    graphs: tuple[int, ...] = ()
    """Graph sizes with a deviation, ascending; 0 is without a graph."""
    deviations_s: tuple[float, ...] = ()
    """Of the intercept, in the order of `graphs`."""
    slopes: tuple[float, ...] = Field(min_length=FEATURES, max_length=FEATURES)
    """Of the features, in the order of `features`."""
    floor_s: float = Field(gt=0.0)
    """Least expected time of a step."""

    def expected_s(self, columns: StepColumns) -> Floats:
        """Return the expected time of each step, seconds."""
        return self._expected(features(columns), columns.graph)

    def expected_of_sums(self, sums: FeatureSums) -> float:
        """Return the expected time of all steps of a block, seconds."""
        deviation = dict(zip(self.graphs, self.deviations_s, strict=True))
        intercepts = sum(
            count * (self.common_s + deviation.get(graph, 0.0)) for graph, count in sums.graphs
        )
        slopes = sum(a * b for a, b in zip(self.slopes, sums.features, strict=True))
        return max(intercepts + slopes, self.floor_s * sums.steps)

    def _expected(self, table: Floats, graph: np.typing.NDArray[np.int64]) -> Floats:
        expected = self.common_s + table @ np.array(self.slopes)
        if self.graphs:
            known = np.array(self.graphs)
            at = np.minimum(np.searchsorted(known, graph), len(known) - 1)
            expected = expected + np.where(known[at] == graph, np.array(self.deviations_s)[at], 0.0)
        return np.asarray(np.maximum(expected, self.floor_s), dtype=np.float64)


class FeatureSums(Record):
    """Sums over the steps of one block of the pilot, before there is a fit."""

    steps: int
    seconds: float
    """Sum of periods."""
    wall_s: float
    """Length of the block, seconds."""
    features: tuple[float, ...]
    graphs: tuple[tuple[int, int], ...]
    """Graph sizes with their number of steps."""


def sums_of(columns: StepColumns, *, wall_s: float) -> FeatureSums:
    """Sum the features of a block's counted steps."""
    sizes, counts = np.unique(columns.graph, return_counts=True)
    return FeatureSums(
        steps=len(columns),
        seconds=float(columns.period_s.sum()),
        wall_s=wall_s,
        features=tuple(features(columns).sum(axis=0).tolist()),
        graphs=tuple(zip(sizes.tolist(), counts.tolist(), strict=True)),
    )


def features(columns: StepColumns) -> Floats:
    """Return the features of steps, of shape (steps, 6), without the intercept."""
    return _features(columns.prefill, columns.decode, columns.context)


def _features(prefill: Floats, decode: Floats, context: Floats) -> Floats:
    tokens = prefill + decode
    table = np.empty((len(prefill), FEATURES))
    table[:, 0] = prefill
    table[:, 1] = decode
    table[:, 2] = context
    table[:, 3] = prefill > 0
    table[:, 4] = np.maximum(tokens - 60.0, 0.0)
    table[:, 5] = np.maximum(tokens - 200.0, 0.0)
    return table


def fit(rows: FitRows) -> StepFit:
    """Fit the expected time of a step to these rows.

    Columns are scaled, and directions that the rows do not determine get the smallest coefficients.

    Raises
    ------
    ValueError
        If `rows` is empty.
    """
    if not rows.rows:
        raise ValueError("a fit needs at least one step")
    flat = np.fromiter(chain.from_iterable(rows.rows), np.float64, count=5 * len(rows.rows))
    table = flat.reshape(-1, 5)
    period, graph = table[:, 4], table[:, 3].astype(np.int64)
    known, which = np.unique(graph, return_inverse=True)
    if len(known) == 1:
        known, which = known[:0], which  # one size has no deviation from itself
    slopes = _features(table[:, 0], table[:, 1], table[:, 2])
    design = np.zeros((len(period), 1 + len(known) + FEATURES))
    design[:, 0] = 1.0
    if len(known):
        design[np.arange(len(period)), 1 + which] = 1.0
    design[:, 1 + len(known) :] = slopes
    floor = _FLOOR * float(np.sort(period)[len(period) // 2])
    solution = _solve(design, period, deviations=len(known), floor=max(floor, 1e-9))
    return StepFit(
        common_s=float(solution[0]),
        graphs=tuple(known.tolist()),
        deviations_s=tuple(solution[1 : 1 + len(known)].tolist()),
        slopes=tuple(solution[1 + len(known) :].tolist()),
        floor_s=max(floor, 1e-9),
    )


def _solve(design: Floats, period: Floats, *, deviations: int, floor: float) -> Floats:
    scale = np.sqrt((design**2).sum(axis=0) / len(period))
    scale[scale == 0.0] = 1.0
    scale[1 : 1 + deviations] = 1.0
    scaled = design / scale
    towards_zero = np.zeros((deviations, design.shape[1]))
    towards_zero[np.arange(deviations), 1 + np.arange(deviations)] = 1.0
    middle = float(np.sort(period)[len(period) // 2])
    weight = np.full(len(period), 1.0 / max(middle, floor))
    solution = np.zeros(design.shape[1])
    for _ in range(_ROUNDS):
        root = np.sqrt(weight)
        ridge = towards_zero / np.sqrt(max(middle, floor))
        solution = np.linalg.lstsq(
            np.vstack([scaled * root[:, None], ridge]),
            np.concatenate([period * root, np.zeros(deviations)]),
            rcond=_RANK,
        )[0]
        expected = np.maximum(scaled @ solution, floor)
        relative = np.abs(period - expected) / expected
        spread = 1.4826 * float(np.sort(relative)[len(relative) // 2])
        within = np.maximum(relative / max(_CUTOFF * spread, 1e-6), 1.0)
        weight = 1.0 / (expected * within)
    return np.asarray(solution / scale, dtype=np.float64)

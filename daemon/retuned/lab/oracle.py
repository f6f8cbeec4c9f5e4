"""Numerical acceptance: is the candidate as right as the incumbent, measured against float64?

Absolute tolerances forgive: one element 5 % off passes the usual 99 % rule, and positive uniform
inputs hide accumulators of half the precision. So the yardstick is the incumbent's own error
against float64, and no element is forgiven. Two allowances are made, both far below one lost
precision class: the rounding of the output itself, and the random walk of float32 rounding over the
reduced elements, because another order of summation is not an error.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from retuned.contract import Definition
from retuned.lab.subject import Array
from retuned.stages.verdict import Reason

_EPS32 = float(np.finfo(np.float32).eps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """How much worse than the incumbent is still the same answer."""

    rms_ratio: float = 1.5
    """Root mean square of the error, candidate over incumbent."""
    max_ratio: float = 2.0
    """Largest error, candidate over incumbent; also for the 99.9th percentile and for each row."""
    rms_ulps: float = 0.5
    """Added to the rms bound, in units in the last place of the output's own rms."""
    max_ulps: float = 1.0
    """Added to the other bounds, in units in the last place of the output's largest value."""
    walk: float = 1.0
    """Added to the rms bound, times eps(float32) * sqrt(reduced elements) * output's rms; half as
    much again of it to the others, with the peak in place of the rms. A sequential float32 sum errs
    by 0.2 to 0.3 in this unit; a sum shared by a whole row (softmax, norms) errs alike in all of
    the row, so one draw must be allowed its tail. The next lower precision errs by 1000 or more."""
    row_min: int = 32
    """Rows shorter than this are too few numbers for a statistic; the maximum covers them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One output compared."""

    reason: Reason | None
    """None where it is accepted."""
    error_ratio: float
    """Largest error, candidate over incumbent plus one unit in the last place."""
    detail: str = ""
    """One sentence with the numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stats:
    rms: float
    tail: float
    peak: float


def reduced_elements(definition: Definition, lengths: dict[str, int]) -> int:
    """Return how many numbers may flow into one output element, as far as the shapes tell.

    Axes of inputs that no output has are summed over; a definition without such axes (softmax,
    norms) reduces over its innermost axis at most.
    """
    kept = {axis for spec in definition.outputs.values() for axis in spec.shape}
    summed = {axis for spec in definition.inputs.values() for axis in spec.shape} - kept
    if summed:
        return max(1, math.prod(lengths[axis] for axis in summed))
    inner = [spec.shape[-1] for spec in definition.outputs.values() if spec.shape]
    return max([1, *(lengths[axis] for axis in inner)])


def compare(
    candidate: Array,
    incumbent: Array,
    *,
    reference: Array,
    depth: int,
    tolerance: Tolerance | None = None,
) -> Judged:
    """Compare one output of candidate and incumbent against the float64 reference.

    Parameters
    ----------
    candidate, incumbent
        Same shape and dtype.
    reference
        Same shape, float64.
    depth
        Numbers that flow into one element; see `reduced_elements`.
    """
    tolerance = tolerance or Tolerance()
    if candidate.dtype.kind in "iub":
        return _compare_integers(candidate, incumbent, reference)
    parity = _parity(candidate, incumbent, reference)
    if parity is not None:
        return parity
    with np.errstate(invalid="ignore", over="ignore"):
        both = np.isfinite(reference) & np.isfinite(incumbent) & np.isfinite(candidate)
        error_c = np.where(both, np.abs(candidate.astype(np.float64) - reference), 0.0)
        error_i = np.where(both, np.abs(incumbent.astype(np.float64) - reference), 0.0)
    return _accept(
        error_c, error_i, np.where(both, reference, 0.0), candidate.dtype, depth, tolerance
    )


def bit_equal(left: Array, right: Array) -> bool:
    """Whether two arrays hold the same bytes; NaNs with the same payload are equal."""
    return left.dtype == right.dtype and left.tobytes() == right.tobytes()


def exact_mismatch(candidate: Array, incumbent: Array, *, reference: Array) -> Judged | None:
    """Judge a probe whose every intermediate is an integer: no order of summation rounds.

    None where the incumbent itself is not exact, so that the probe says nothing.
    """
    exact = reference.astype(candidate.dtype)
    if not bool((incumbent == exact).all()):
        return None
    wrong = int((candidate != exact).sum())
    if wrong == 0:
        return Judged(reason=None, error_ratio=0.0)
    return Judged(
        reason=Reason.WRONG_OUTPUT,
        error_ratio=math.inf,
        detail=f"exact-integer probe: {wrong} of {exact.size} elements differ",
    )


def _compare_integers(candidate: Array, incumbent: Array, reference: Array) -> Judged:
    del incumbent
    wrong = int((candidate.astype(np.float64) != np.rint(reference)).sum())
    if wrong == 0:
        return Judged(reason=None, error_ratio=0.0)
    detail = f"{wrong} of {candidate.size} integers differ"
    return Judged(reason=Reason.WRONG_OUTPUT, error_ratio=math.inf, detail=detail)


def _parity(candidate: Array, incumbent: Array, reference: Array) -> Judged | None:
    """NaN and signed infinities must lie where the incumbent's, or else the reference's, lie."""
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = reference.astype(candidate.dtype)
    same_as_incumbent = _class_of(candidate) == _class_of(incumbent)
    same_as_reference = _class_of(candidate) == _class_of(rounded)
    odd = ~(same_as_incumbent | same_as_reference)
    wrong = int(odd.sum())
    if wrong == 0:
        return None
    return Judged(
        reason=Reason.NAN_MISMATCH,
        error_ratio=math.inf,
        detail=f"{wrong} of {candidate.size} elements differ in being NaN or infinite",
    )


def _class_of(array: Array) -> Array:
    """0 finite, 1 NaN, 2 plus infinity, 3 minus infinity."""
    return np.where(np.isnan(array), 1, np.where(np.isposinf(array), 2, np.isneginf(array) * 3))


def _accept(
    error_c: Array,
    error_i: Array,
    reference: Array,
    dtype: np.dtype[np.floating[Any]],
    depth: int,
    tolerance: Tolerance,
) -> Judged:
    cand, inc = _stats(error_c), _stats(error_i)
    scale = _rms(reference)
    unit = tolerance.walk * _EPS32 * math.sqrt(depth)
    peak = float(np.abs(reference).max(initial=0.0))
    peak_ulp = _ulp(peak, dtype)
    rms_bound = (
        tolerance.rms_ratio * inc.rms + tolerance.rms_ulps * _ulp(scale, dtype) + unit * scale
    )
    slack = tolerance.max_ulps * peak_ulp + 1.5 * unit * peak
    ratio = cand.peak / (inc.peak + peak_ulp) if inc.peak + peak_ulp > 0.0 else float(cand.peak > 0)
    checks = (
        ("rms error", cand.rms, rms_bound),
        ("99.9th percentile of the error", cand.tail, tolerance.max_ratio * inc.tail + slack),
        ("largest error", cand.peak, tolerance.max_ratio * inc.peak + slack),
    )
    for what, got, bound in checks:
        if not got <= bound:
            detail = f"{what} {got:.3g}, allowed {bound:.3g} (incumbent's rms {inc.rms:.3g})"
            return Judged(reason=Reason.WRONG_OUTPUT, error_ratio=ratio, detail=detail)
    row = _worst_row(error_c, error_i, reference, dtype, depth, tolerance)
    if row:
        return Judged(reason=Reason.WRONG_OUTPUT, error_ratio=ratio, detail=row)
    return Judged(reason=None, error_ratio=ratio)


def _worst_row(
    error_c: Array,
    error_i: Array,
    reference: Array,
    dtype: np.dtype[np.floating[Any]],
    depth: int,
    tolerance: Tolerance,
) -> str:
    """Find a single bad row, which good ones must not average away."""
    if reference.ndim < 2 or reference.shape[-1] < tolerance.row_min or reference.size == 0:
        return ""
    shape = (-1, reference.shape[-1])
    cand = np.sqrt((error_c.reshape(shape) ** 2).mean(axis=1))
    inc = np.sqrt((error_i.reshape(shape) ** 2).mean(axis=1))
    scale = np.sqrt((reference.reshape(shape) ** 2).mean(axis=1))
    largest = np.abs(reference.reshape(shape)).max(axis=1)
    ulp = largest * float(np.finfo(dtype).eps) + float(np.finfo(dtype).smallest_subnormal)
    walk = tolerance.walk * _EPS32 * math.sqrt(depth) * scale
    over = cand - (tolerance.max_ratio * inc + tolerance.max_ulps * ulp + 1.5 * walk)
    worst = int(over.argmax())
    if over[worst] <= 0.0:
        return ""
    return f"rms error {cand[worst]:.3g} in row {worst}, the incumbent's is {inc[worst]:.3g}"


def _stats(error: Array) -> _Stats:
    if error.size == 0:
        return _Stats(rms=0.0, tail=0.0, peak=0.0)
    flat = error.ravel()
    index = min(flat.size - 1, int(0.999 * flat.size))
    return _Stats(
        rms=_rms(flat), tail=float(np.partition(flat, index)[index]), peak=float(flat.max())
    )


def _rms(values: Array) -> float:
    if values.size == 0:
        return 0.0
    peak = float(np.abs(values).max())
    # Squares of denormals vanish and squares of huge values overflow; scale first.
    return peak * math.sqrt(float(np.mean((values / peak) ** 2))) if peak > 0.0 else 0.0


def _ulp(value: float, dtype: np.dtype[np.floating[Any]]) -> float:
    info = np.finfo(dtype)
    return max(abs(value) * float(info.eps), float(info.smallest_subnormal))

"""Numerical oracle: whether a candidate is as accurate as the incumbent, against float64.

Absolute tolerances miss errors: one element 5 % off passes the usual 99 % rule, and positive
uniform inputs hide accumulators of half the precision. So the bound is the incumbent's own error
against float64, and it applies to every element. Two allowances are made, both far below one lost
precision class. One is the rounding of the output in its own type. The other is the random walk of
float32 rounding over the reduced elements, because another order of summation is not an error.

Where a number is too large for an output type without infinities (the 8-bit floats), both
saturation and NaN are common. There the candidate must do what the incumbent does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from retuned.contract import Definition
from retuned.lab.number_formats import Limits, limits_of, rounded, widened
from retuned.lab.subject import Array
from retuned.stages.verdict import Reason

_EPS32 = float(np.finfo(np.float32).eps)
_NEAR_HALF = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """Allowed error relative to the incumbent."""

    rms_ratio: float = 1.5
    """Root mean square of the error, candidate over incumbent."""
    max_ratio: float = 2.0
    """Largest error, candidate over incumbent; also for the 99.9th percentile and for each row."""
    rms_ulps: float = 0.5
    """Added to the rms bound, in units in the last place of the output's own rms."""
    max_ulps: float = 1.0
    """Added to the other bounds, in units in the last place of the output's largest value."""
    walk: float = 1.0
    """Added to the rms bound, times eps(float32) * sqrt(reduced elements) * output's rms.

    The other bounds get half as much again, with the peak in place of the rms. A sequential float32
    sum errs by 0.2 to 0.3 in this unit. A sum shared by a whole row (softmax, norms) errs alike in
    all of the row, so the bound covers the tail of one draw. The next lower precision errs by 1000
    or more.
    """
    degraded_ratio: float = 0.5
    """Maximum of a candidate's rms error, relative to the error of lower-precision inputs.

    It is checked only where the incumbent is clearly below it.
    """
    row_min: int = 32
    """Rows shorter than this are too few numbers for a statistic; the maximum covers them."""
    batch_invariant: bool = True
    """Refuse a variant whose rows depend on the batch size if the incumbent's do not.

    A swap must not remove a property that a server has today, even if the server does not promise
    it.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """Comparison of one output."""

    reason: Reason | None
    error_ratio: float
    """Largest error, candidate over incumbent plus one unit in the last place."""
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stats:
    rms: float
    tail: float
    peak: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Errors:
    candidate: Array
    incumbent: Array
    reference: Array
    limits: Limits
    walk: float


def reduced_elements(definition: Definition, lengths: dict[str, int]) -> int:
    """Return how many numbers may flow into one output element, according to the shapes.

    Axes of inputs that no output has are summed over. A definition without such axes (softmax,
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
    degraded_rms: float = 0.0,
) -> Judged:
    """Compare one output of candidate and incumbent against the float64 reference.

    All three have the same shape. `depth` is the count of numbers that flow into one element; see
    `reduced_elements`. `degraded_rms` is the `rms_error` of the reference on inputs of the next
    lower precision class; 0 where unknown.
    """
    tolerance = tolerance or Tolerance()
    if candidate.dtype.kind in "iub":
        return _compare_integers(candidate, reference)
    ours, theirs = widened(candidate), widened(incumbent)
    nearest = rounded(reference, candidate.dtype)
    beyond = np.isnan(nearest) & ~np.isnan(reference)
    parity = _parity(ours, theirs, nearest, beyond)
    if parity is not None:
        return parity
    with np.errstate(invalid="ignore", over="ignore"):
        both = np.isfinite(reference) & np.isfinite(theirs) & np.isfinite(ours) & ~beyond
        errors = _Errors(
            candidate=np.where(both, np.abs(ours - reference), 0.0),
            incumbent=np.where(both, np.abs(theirs - reference), 0.0),
            reference=np.where(both, reference, 0.0),
            limits=limits_of(candidate.dtype),
            walk=tolerance.walk * _EPS32 * math.sqrt(depth),
        )
    return _accept(errors, tolerance, degraded_rms)


def allowed_difference(
    incumbent: Array, *, reference: Array, depth: int, tolerance: Tolerance
) -> float | None:
    """Return the largest rms difference of an accepted variant from the incumbent.

    It is relative to the output's rms. Both may err, the variant by the tolerance of `compare`.
    None if no bound is useful: integers, outputs that are zero or not finite, and errors as large
    as the output.
    """
    if incumbent.dtype.kind in "iub":
        return None
    both = np.isfinite(reference) & np.isfinite(widened(incumbent))
    scale = _rms(np.where(both, reference, 0.0))
    own = rms_error(incumbent, reference)
    walk = tolerance.walk * _EPS32 * math.sqrt(depth)
    limits = limits_of(incumbent.dtype)
    if scale <= 0.0:
        return None
    bound = _rms_bound(own, scale, limits, walk=walk, tolerance=tolerance)
    share = (own + bound) / scale
    return share if 0.0 < share <= 1.0 else None


def _rms_bound(
    own: float, scale: float, limits: Limits, *, walk: float, tolerance: Tolerance
) -> float:
    rounding = tolerance.rms_ulps * _ulp(scale, limits)
    return tolerance.rms_ratio * own + rounding + walk * scale


def rms_error(answer: Array, reference: Array) -> float:
    """Root mean square of the difference, over the elements that are finite in both."""
    with np.errstate(invalid="ignore", over="ignore"):
        difference = widened(answer) - reference
        return _rms(np.where(np.isfinite(difference), difference, 0.0))


def bit_equal(left: Array, right: Array) -> bool:
    """Whether two arrays hold the same bytes; NaNs with the same payload are equal."""
    return left.dtype == right.dtype and left.tobytes() == right.tobytes()


def exact_mismatch(candidate: Array, incumbent: Array, *, reference: Array) -> Judged | None:
    """Judge a probe whose every intermediate is an integer: no order of summation rounds.

    None if the incumbent itself is not exact, because the probe then proves nothing.
    """
    exact = rounded(reference, candidate.dtype)
    if not bool((widened(incumbent) == exact).all()):
        return None
    wrong = int((widened(candidate) != exact).sum())
    if wrong == 0:
        return Judged(reason=None, error_ratio=0.0)
    return Judged(
        reason=Reason.WRONG_OUTPUT,
        error_ratio=math.inf,
        detail=f"exact-integer probe: {wrong} of {exact.size} elements differ",
    )


def _compare_integers(candidate: Array, reference: Array) -> Judged:
    """Require the rounded reference; near a half, either neighbour is allowed."""
    with np.errstate(invalid="ignore"):
        slack = np.minimum(_NEAR_HALF, 8.0 * _EPS32 * np.abs(reference))
        wrong = int((~(np.abs(widened(candidate) - reference) <= 0.5 + slack)).sum())
    if wrong == 0:
        return Judged(reason=None, error_ratio=0.0)
    detail = f"{wrong} of {candidate.size} integers differ"
    return Judged(reason=Reason.WRONG_OUTPUT, error_ratio=math.inf, detail=detail)


def _parity(ours: Array, theirs: Array, nearest: Array, beyond: Array) -> Judged | None:
    """Require NaN and signed infinities where the incumbent, or else the reference, has them.

    Numbers that the type cannot hold must become what the incumbent made of them.
    """
    kind = _class_of(ours)
    same_as_incumbent = kind == _class_of(theirs)
    same_as_reference = (kind == _class_of(nearest)) & ~beyond
    with np.errstate(invalid="ignore"):
        otherwise_full = beyond & (kind == 0) & (ours != theirs)
    odd = ~(same_as_incumbent | same_as_reference) | otherwise_full
    wrong = int(odd.sum())
    if wrong == 0:
        return None
    return Judged(
        reason=Reason.NAN_MISMATCH,
        error_ratio=math.inf,
        detail=f"{wrong} of {ours.size} elements differ in being NaN, infinite or saturated",
    )


def _class_of(array: Array) -> Array:
    """0 finite, 1 NaN, 2 plus infinity, 3 minus infinity."""
    return np.where(np.isnan(array), 1, np.where(np.isposinf(array), 2, np.isneginf(array) * 3))


def _accept(errors: _Errors, tolerance: Tolerance, degraded_rms: float) -> Judged:
    cand, inc = _stats(errors.candidate), _stats(errors.incumbent)
    scale, walk = _rms(errors.reference), errors.walk
    peak = float(np.abs(errors.reference).max(initial=0.0))
    peak_ulp = _ulp(peak, errors.limits)
    rms_bound = _rms_bound(inc.rms, scale, errors.limits, walk=walk, tolerance=tolerance)
    slack = tolerance.max_ulps * peak_ulp + 1.5 * walk * peak
    ratio = cand.peak / (inc.peak + peak_ulp) if inc.peak + peak_ulp > 0.0 else float(cand.peak > 0)
    checks = [
        ("rms error", cand.rms, rms_bound),
        ("99.9th percentile of the error", cand.tail, tolerance.max_ratio * inc.tail + slack),
        ("largest error", cand.peak, tolerance.max_ratio * inc.peak + slack),
    ]
    least = tolerance.degraded_ratio * degraded_rms
    if tolerance.rms_ratio * inc.rms < least:
        checks.append(("rms error, as if inputs had lost a precision class:", cand.rms, least))
    for what, got, bound in checks:
        if not got <= bound:
            detail = f"{what} {got:.3g}, allowed {bound:.3g} (incumbent's rms {inc.rms:.3g})"
            return Judged(reason=Reason.WRONG_OUTPUT, error_ratio=ratio, detail=detail)
    row = _worst_row(errors, tolerance)
    if row:
        return Judged(reason=Reason.WRONG_OUTPUT, error_ratio=ratio, detail=row)
    return Judged(reason=None, error_ratio=ratio)


def _worst_row(errors: _Errors, tolerance: Tolerance) -> str:
    """Find a single bad row, which an average over good rows would hide."""
    reference = errors.reference
    if reference.ndim < 2 or reference.shape[-1] < tolerance.row_min or reference.size == 0:
        return ""
    shape = (-1, reference.shape[-1])
    cand = np.sqrt((errors.candidate.reshape(shape) ** 2).mean(axis=1))
    inc = np.sqrt((errors.incumbent.reshape(shape) ** 2).mean(axis=1))
    scale = np.sqrt((reference.reshape(shape) ** 2).mean(axis=1))
    largest = np.abs(reference.reshape(shape)).max(axis=1)
    ulp = largest * errors.limits.eps + errors.limits.smallest
    walk = errors.walk * scale
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
    # Squares of denormals underflow to zero and squares of huge values overflow; scale first.
    return peak * math.sqrt(float(np.mean((values / peak) ** 2))) if peak > 0.0 else 0.0


def _ulp(value: float, limits: Limits) -> float:
    return max(abs(value) * limits.eps, limits.smallest)

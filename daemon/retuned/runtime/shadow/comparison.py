"""Comparison of two kernels' outputs on the same inputs, as one number.

Non-finite values must be in the same positions with the same signs. Elsewhere the largest absolute
difference is expressed in units of the allowed one, ``tolerance * rms(incumbent's output)``. In
outputs of 16 and 8 bits two correct kernels may round to neighbours, so one unit in the last place
of the element is subtracted first; with 16 bits, one of the rms if that is more, because such
kernels also round intermediate results. Integers must be equal; of int8, which quantised numbers
are, one in a hundred may differ by one.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from retuned.runtime.schema import Tensor

RATIO_CAP = 1e9
"""Ratio if nothing is allowed and something differs, so that records stay finite."""
_NEIGHBOURS_SHARE = 0.01


@dataclass(frozen=True, slots=True)
class Comparison:
    nonfinite: bool
    ratio: float
    """Largest difference in units of the allowed difference; 0 if `nonfinite`."""
    rms_ratio: float = 0.0
    """RMS of the difference in the same units; 0 if `nonfinite` or unknown."""


Compare = Callable[[Sequence[Tensor], Sequence[Tensor], float], Comparison]
"""(served outputs, the incumbent's outputs, tolerance) -> comparison."""


def as_outputs(value: Any) -> tuple[Tensor, ...]:  # noqa: ANN401 - result of a kernel
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def compare_tensors(
    served: Sequence[Tensor], expected: Sequence[Tensor], tolerance: float
) -> Comparison:
    """Compare PyTorch tensors.

    Raises
    ------
    ValueError
        If the number of outputs, a shape or an element type differs.
    """
    torch = sys.modules["torch"]
    if len(served) != len(expected):
        raise ValueError(f"{len(served)} outputs instead of {len(expected)}")
    worst = worst_rms = 0.0
    with torch.inference_mode():
        for ours, theirs in zip(served, expected, strict=True):
            if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
                raise ValueError(f"output {ours.shape} {ours.dtype}, not {theirs.shape}")
            one = _compare_pair(torch, ours, theirs, tolerance)
            if one.nonfinite:
                return one
            worst, worst_rms = max(worst, one.ratio), max(worst_rms, one.rms_ratio)
    return Comparison(nonfinite=False, ratio=worst, rms_ratio=worst_rms)


@dataclass(frozen=True, slots=True)
class ElementFormat:
    floating: bool
    bits: int
    eps: float = 0.0
    """Distance of 1 to the next number; 0 for integers."""
    least_unit: float = 0.0
    """Distance of the smallest numbers; 0 for integers."""
    neighbours: bool = False
    """Whether integers may differ by one, in few positions."""

    @property
    def narrow(self) -> bool:
        """Whether two correct kernels may round to neighbours."""
        return self.floating and self.bits <= 16


def form_of(torch: Any, tensor: Tensor) -> ElementFormat:  # noqa: ANN401 - the module
    if not tensor.is_floating_point():
        bits = 8 * tensor.element_size()
        return ElementFormat(floating=False, bits=bits, neighbours=tensor.dtype == torch.int8)
    about = torch.finfo(tensor.dtype)
    unit = about.smallest_normal * about.eps
    return ElementFormat(floating=True, bits=about.bits, eps=about.eps, least_unit=unit)


def _compare_pair(torch: Any, ours: Tensor, theirs: Tensor, tolerance: float) -> Comparison:  # noqa: ANN401
    if ours.numel() == 0:
        return Comparison(nonfinite=False, ratio=0.0)
    form = form_of(torch, ours)
    if not form.floating:
        return Comparison(nonfinite=False, ratio=_integer_ratio(torch, ours, theirs, form))
    wide = torch.float64 if ours.dtype == torch.float64 else torch.float32
    ours, theirs = ours.to(wide), theirs.to(wide)
    difference = (ours - theirs).abs_()
    largest = float(difference.max())
    if not math.isfinite(largest):  # only this rare case computes the masks
        finite = theirs.isfinite()
        agree = torch.where(theirs.isnan(), ours.isnan(), ours == theirs) | finite
        if not bool((ours.isfinite() == finite).all()) or not bool(agree.all()):
            return Comparison(nonfinite=True, ratio=0.0)
        difference, ours, theirs = difference[finite], ours[finite], theirs[finite]
        largest = float(difference.max()) if difference.numel() else 0.0
    if largest == 0.0:
        return Comparison(nonfinite=False, ratio=0.0)
    rms = _rms(torch, theirs)
    beyond = largest
    if form.narrow:
        least = rms if form.bits == 16 else 0.0
        unit = torch.maximum(ours.abs(), theirs.abs()).clamp_(min=least).mul_(form.eps)
        unit.clamp_(min=form.least_unit)
        beyond = max(0.0, float((difference - unit).max()))
    return float_comparison(
        largest=largest,
        beyond=beyond,
        rms=rms,
        rms_off=_rms(torch, difference),
        tolerance=tolerance,
    )


def float_comparison(
    *, largest: float, beyond: float, rms: float, rms_off: float, tolerance: float
) -> Comparison:
    """Judge real numbers that are all finite.

    Parameters
    ----------
    beyond
        The same after subtracting what rounding to neighbours allows.
    rms, rms_off
        Of the incumbent's output, and of the difference.
    tolerance
        Allowed difference, as a share of `rms`.
    """
    if largest == 0.0:
        return Comparison(nonfinite=False, ratio=0.0)
    allowed = tolerance * rms
    off = min(RATIO_CAP, rms_off / allowed) if allowed > 0.0 else 0.0
    if allowed > 0.0 or beyond == 0.0:
        ratio = min(RATIO_CAP, beyond / (allowed or 1.0))
        return Comparison(nonfinite=False, ratio=ratio, rms_ratio=off)
    return Comparison(nonfinite=False, ratio=RATIO_CAP)


def integer_ratio(form: ElementFormat, *, unequal: int, largest: float, size: int) -> float:
    """Return 0 if equal, the cap if not; neighbours of int8 count by their share."""
    if unequal == 0:
        return 0.0
    if not form.neighbours or largest > 1:
        return RATIO_CAP
    return unequal / max(1.0, _NEIGHBOURS_SHARE * size)


def _rms(torch: Any, values: Tensor) -> float:  # noqa: ANN401
    return float(torch.linalg.vector_norm(values, dtype=torch.float64)) / math.sqrt(values.numel())


def _integer_ratio(torch: Any, ours: Tensor, theirs: Tensor, form: ElementFormat) -> float:  # noqa: ANN401
    if torch.equal(ours, theirs):
        return 0.0
    if not form.neighbours:
        return RATIO_CAP
    difference = (ours.to(torch.int16) - theirs.to(torch.int16)).abs_()
    size, unequal = int(difference.numel()), int(difference.count_nonzero())
    return integer_ratio(form, unequal=unequal, largest=int(difference.max()), size=size)

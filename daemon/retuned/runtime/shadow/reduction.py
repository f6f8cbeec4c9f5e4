"""Reduction of a comparison to a few numbers, computed on the device and read later.

`measure` only queues work and never reads a number from the device, so that no thread waits.
`judged` judges the numbers later, by the rule of `comparison`. Outputs are processed in parts, so
that the temporary memory is small for outputs of any size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from retuned.runtime.schema import Tensor
from retuned.runtime.shadow.comparison import (
    Comparison,
    ElementFormat,
    float_comparison,
    form_of,
    integer_ratio,
)

NUMBERS = 8
"""Numbers of one output, float64."""
PART = 1 << 22
_FORBIDDEN = "the server's output and the other kernel's differ in number, shape or element type: "


@dataclass(frozen=True, slots=True)
class Measured:
    odd: int
    """Elements where NaN or Inf do not agree."""
    finite: int
    """Elements that are finite on both sides."""
    reference_square: float
    """Sum of the squares of the incumbent's finite elements."""
    difference_square: float
    """Sum of the squares of the differences."""
    largest: float
    """Largest absolute difference."""
    beyond: float
    """The same after subtracting what rounding to neighbours allows; at least 0."""
    mismatched: int
    unequal: int


@dataclass(frozen=True, slots=True)
class Judged:
    comparison: Comparison
    """Same result as `compare_tensors`."""
    mismatched: int
    """Elements over the allowed difference, including NaN and Inf that do not agree."""


def check_alike(served: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    """Verify that outputs can be compared, without using a device.

    Raises
    ------
    ValueError
        If their number, a shape or an element type differs.
    """
    if len(served) != len(expected):
        raise ValueError(f"{_FORBIDDEN}{len(served)} and {len(expected)} outputs")
    for ours, theirs in zip(served, expected, strict=True):
        if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
            raise ValueError(
                f"{_FORBIDDEN}{tuple(ours.shape)} {ours.dtype} and "
                f"{tuple(theirs.shape)} {theirs.dtype}"
            )


def measure(torch: Any, ours: Tensor, theirs: Tensor, tolerance: float) -> Tensor:  # noqa: ANN401
    """Queue the comparison of one output on its device; return `NUMBERS` numbers there.

    Parameters
    ----------
    ours, theirs
        Of one shape and element type; `theirs` is the incumbent's.
    tolerance
        Allowed difference, as a share of the rms of `theirs`.
    """
    with torch.inference_mode():
        numbers = torch.zeros(NUMBERS, dtype=torch.float64, device=ours.device)
        if ours.numel():
            pair = ours.detach().reshape(-1), theirs.detach().reshape(-1)
            if ours.is_floating_point():
                _measure_floats(torch, *pair, numbers, tolerance)
            else:
                _measure_integers(torch, *pair, numbers)
        return numbers


def _measure_floats(
    torch: Any,  # noqa: ANN401 - the module
    ours: Tensor,
    theirs: Tensor,
    numbers: Tensor,
    tolerance: float,
) -> None:
    form = form_of(torch, ours)
    wide = torch.float64 if ours.dtype == torch.float64 else torch.float32
    parts = list(zip(ours.split(PART), theirs.split(PART), strict=True))
    for mine, other in parts:  # first pass for the rms, which the second pass needs
        a, b = mine.to(wide), other.to(wide)
        finite = b.isfinite()
        agree = torch.where(b.isnan(), a.isnan(), a == b) | finite
        both = finite & a.isfinite()
        numbers[0] += ((a.isfinite() != finite) | ~agree).sum()
        numbers[1] += both.sum()
        numbers[2] += torch.where(finite, b, 0).double().square_().sum()
        difference = torch.where(both, (a - b).abs_(), 0)
        numbers[3] += difference.double().square_().sum()
        numbers[4] = torch.maximum(numbers[4], difference.max().double())
        numbers[7] += (difference > 0).sum()
    rms = (numbers[2] / numbers[1].clamp(min=1)).sqrt_()
    for mine, other in parts:
        a, b = mine.to(wide), other.to(wide)
        both = b.isfinite() & a.isfinite()
        beyond = torch.where(both, (a - b).abs_(), 0)
        if form.narrow:
            unit = torch.maximum(a.abs(), b.abs())
            if form.bits == 16:
                unit = torch.maximum(unit, rms.to(wide))
            unit = unit.mul_(form.eps).clamp_(min=form.least_unit)
            beyond = torch.where(both, beyond - unit, 0).clamp_(min=0)
        numbers[5] = torch.maximum(numbers[5], beyond.max().double())
        numbers[6] += (beyond > tolerance * rms).sum()


def _measure_integers(torch: Any, ours: Tensor, theirs: Tensor, numbers: Tensor) -> None:  # noqa: ANN401
    for mine, other in zip(ours.split(PART), theirs.split(PART), strict=True):
        unequal = (mine != other).sum()
        numbers[6] += unequal
        numbers[7] += unequal
        if ours.dtype == torch.int8:
            difference = (mine.to(torch.int16) - other.to(torch.int16)).abs_()
            numbers[4] = torch.maximum(numbers[4], difference.max().double())


def judged(
    forms: Sequence[tuple[ElementFormat, int]], numbers: Sequence[float], tolerance: float
) -> Judged:
    """Judge received numbers, by the rule of `comparison.compare_tensors`.

    Parameters
    ----------
    forms
        Element type and elements of each output.
    numbers
        `NUMBERS` for each, in the same order.

    Raises
    ------
    ValueError
        If the count of numbers is wrong, or a number cannot have been measured.
    """
    if len(numbers) != NUMBERS * len(forms):
        raise ValueError(f"{len(numbers)} numbers for {len(forms)} outputs")
    worst = worst_rms = 0.0
    mismatched, nonfinite = 0, False
    for place, (form, size) in enumerate(forms):
        one = _read(numbers[NUMBERS * place : NUMBERS * (place + 1)])
        mismatched += one.odd + one.mismatched
        nonfinite = nonfinite or one.odd > 0
        seen = _compared(form, size, one, tolerance)
        worst, worst_rms = max(worst, seen.ratio), max(worst_rms, seen.rms_ratio)
    if nonfinite:
        return Judged(Comparison(nonfinite=True, ratio=0.0), mismatched)
    return Judged(Comparison(nonfinite=False, ratio=worst, rms_ratio=worst_rms), mismatched)


def _compared(form: ElementFormat, size: int, one: Measured, tolerance: float) -> Comparison:
    if not form.floating:
        ratio = integer_ratio(form, unequal=one.unequal, largest=one.largest, size=size)
        return Comparison(nonfinite=False, ratio=ratio)
    count = max(1, one.finite)
    return float_comparison(
        largest=one.largest,
        beyond=one.beyond,
        rms=math.sqrt(one.reference_square / count),
        rms_off=math.sqrt(one.difference_square / count),
        tolerance=tolerance,
    )


def _read(numbers: Sequence[float]) -> Measured:
    odd, finite, reference, difference, largest, beyond, mismatched, unequal = numbers
    if any(number != number or number < 0 for number in numbers):
        raise ValueError(f"invalid numbers of a comparison: {list(numbers)}")
    return Measured(
        odd=int(odd),
        finite=int(finite),
        reference_square=reference,
        difference_square=difference,
        largest=largest,
        beyond=beyond,
        mismatched=int(mismatched),
        unequal=int(unequal),
    )

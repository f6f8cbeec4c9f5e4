"""Whether the numbers that an input is made of fit each other and its element type. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from retuned.catalog.own.records import Distribution, InputRecipe
from retuned.contract import AxisConst, AxisVar, DType, TensorSpec
from retuned.lab.number_formats import NUMPY, is_float, limits_of

_LARGEST_EXACT = 2**53
"""Whole numbers are made in float64, which holds all of them up to this one."""
_BOUNDED = (Distribution.UNIFORM, Distribution.INTEGERS)
_NAMES = ("mean", "scale", "low", "high", "value")


def range_of(dtype: DType) -> tuple[int | float, int | float]:
    """Return the least and the largest finite number of an element type.

    Examples
    --------
    >>> range_of(DType.INT8), range_of(DType.BOOL), range_of(DType.FLOAT8_E4M3FN)
    ((-128, 127), (0, 1), (-448.0, 448.0))
    """
    found: np.dtype[Any] = NUMPY[dtype]
    if is_float(found):
        largest = limits_of(found).largest
        return -largest, largest
    if dtype is DType.BOOL:
        return 0, 1
    info = np.iinfo(found)
    return int(info.min), int(info.max)


def bound_problems(
    made: InputRecipe, spec: TensorSpec, *, axes: Mapping[str, AxisConst | AxisVar]
) -> Iterator[str]:
    """Yield what is wrong with how an input is made, for its element type.

    Parameters
    ----------
    made
        How it is made.
    spec
        The input.
    axes
        Of the definition.
    """
    low, high = made.low or 0.0, 1.0 if made.high is None else made.high
    if made.like in _BOUNDED and low > high:
        unsaid = "; high is 1 where it is not said" if made.high is None else ""
        unsaid = "; low is 0 where it is not said" if made.low is None else unsaid
        yield f"low {low:g} is above high {high:g}{unsaid}"
    least, largest = range_of(spec.dtype)
    said = {name: getattr(made, name) for name in _NAMES}
    if made.like in _BOUNDED:
        said |= {"low": low, "high": high}
    for name, number in said.items():
        if number is None:
            continue
        if not least <= number <= largest:
            yield f"{name} {number:g} is beyond {spec.dtype}, which holds {least:g} to {largest:g}"
        elif made.like is Distribution.INTEGERS and abs(number) > _LARGEST_EXACT:
            yield f"{name} {number:g} is beyond {_LARGEST_EXACT}, up to which whole numbers are made"
    value = float(made.value or 0.0)
    if made.like is Distribution.CONSTANT and not (
        is_float(NUMPY[spec.dtype]) or value.is_integer()
    ):
        yield f"value {value:g} is no whole number, and {spec.dtype} holds no others"
    if made.like is Distribution.PERMUTATION and spec.shape:
        yield from _permuted(spec, axes, largest)


def _permuted(
    spec: TensorSpec, axes: Mapping[str, AxisConst | AxisVar], largest: float
) -> Iterator[str]:
    """Compare with the numbers of the last axis' places: each must be told from the others."""
    axis = axes.get(spec.shape[-1])
    dtype = NUMPY[spec.dtype]
    most = min(largest, 2.0 / limits_of(dtype).eps) if is_float(dtype) else largest
    if isinstance(axis, AxisConst) and axis.value - 1 > most:
        yield (
            f"numbers up to {axis.value - 1} are not all told apart in {spec.dtype}; use a wider "
            "type"
        )

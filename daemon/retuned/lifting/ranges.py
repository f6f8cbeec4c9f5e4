"""Ranges of a lifted definition: variable axes, their bounds, and bounds of tensor contents.

They do not exceed the observations, because an index beyond its tensor would access other memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from retuned.catalog.user import Distribution, InputRecipe
from retuned.catalog.user.inputs import rule_of
from retuned.contract import AxisConst, AxisVar, Definition, DType, TensorSpec
from retuned.lifting.records import NotLifted, Observation
from retuned.lifting.roles import is_whole
from retuned.lifting.shapes import Axes

_WHOLE_RANGES = {
    DType.INT8: (-127, 127),
    DType.UINT8: (0, 255),
    DType.BOOL: (0, 1),
    DType.INT32: (0, 127),
    DType.INT64: (0, 127),
}
_MOST_DIVISOR = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Launches with the same constexprs and options."""

    observations: tuple[Observation, ...]
    rows: tuple[Mapping[str, int], ...]
    options: Mapping[str, int]
    constants: Mapping[str, int]
    others: Mapping[str, object]


def lengths_of(axes: Axes, point: Point) -> dict[str, AxisConst | AxisVar]:
    """Split axes: rows and varying axes are variable; a width with one value here is constant."""
    shaped = {axis for shape in axes.shapes.values() for axis in shape}
    moving = [axis for axis in axes.variable if axis in shaped]
    variable = {
        axis
        for axis in moving
        if axes.sources[axis].startswith("grid") or len({r[axis] for r in point.rows}) > 1
    } or set(moving[:1])
    found: dict[str, AxisConst | AxisVar] = {}
    for axis in axes.lengths:
        if axis in variable:
            found[axis] = AxisVar(description=axes.sources[axis])
        else:
            found[axis] = AxisConst(value=point.rows[0][axis])
    return found


def spec_of(
    pointer: str,
    axes: Axes,
    dtypes: Mapping[str, DType],
    bounds: Mapping[str, tuple[int, int | str]],
    point: Point,
) -> TensorSpec:
    """Describe an input; integers, which may be indices, stay within bounds.

    Raises
    ------
    NotLifted
        ``bounds-unknown``.
    """
    dtype, rule = dtypes[pointer], None
    if is_whole(dtype):
        low, high = bounds.get(pointer, _WHOLE_RANGES[dtype])
        if isinstance(high, str):
            high = _least(high, axes, point)
        if low > high:
            detail = f"'{pointer}': the least number, {low}, is above the largest, {high}"
            raise NotLifted("bounds-unknown", detail=detail)
        rule = rule_of(InputRecipe(like=Distribution.INTEGERS, low=low, high=high))
    return TensorSpec(shape=axes.shapes[pointer], dtype=dtype, values=rule)


def held_axes(
    definition: Definition, axes: Axes, bounds: Mapping[str, tuple[int, int | str]]
) -> frozenset[str]:
    """Return axes that must not be shorter than observed, so that indices stay within tensors.

    A bound that is a plain number does not name an axis. Then all axes are held except those of the
    indices themselves.
    """
    found: set[str] = set()
    for name in bounds.keys() & definition.inputs.keys():
        high = bounds[name][1]
        if isinstance(high, str):
            found.add(_bound_axis(high, axes))
        else:
            found |= {*definition.axes} - {*definition.inputs[name].shape}
    return frozenset(found)


def where_of(
    axes: Axes, lengths: Mapping[str, AxisConst | AxisVar], point: Point, *, held: frozenset[str]
) -> str:
    """Bound the variable axes to the observed range and the observed divisibility."""
    clauses = []
    for axis, length in lengths.items():
        if isinstance(length, AxisConst):
            continue
        column = [row[axis] for row in point.rows]
        if axis in held:
            clauses.append(f"{axis} >= {min(column)}")
        if axes.sources[axis].startswith("grid"):
            continue
        clauses.append(f"{axis} <= {max(column)}")
        divisor = _MOST_DIVISOR
        while divisor >= 16 and any(each % divisor for each in column):
            divisor //= 2
        if divisor >= 16:
            clauses.append(f"{axis} % {divisor} == 0")
    return " and ".join(clauses)


def made_of(dtype: DType, spec: TensorSpec) -> InputRecipe:
    if not is_whole(dtype):
        return InputRecipe(like=Distribution.NORMAL)
    rule = spec.values
    assert rule is not None, "whole numbers have bounds"
    return InputRecipe(like=Distribution.INTEGERS, low=float(rule.low), high=float(rule.high))


def _bound_axis(expression: str, axes: Axes) -> str:
    name = expression.partition("-")[0].strip()
    if name in axes.ints and len(axes.ints[name]) == 1:
        name = str(axes.ints[name][0])
    return name


def _least(expression: str, axes: Axes, point: Point) -> int:
    name, less = _bound_axis(expression, axes), expression.partition("-")[2]
    if name not in axes.lengths or not (less.strip() or "0").isdecimal():
        raise NotLifted(
            "bounds-unknown", detail=f"'{expression[:80]}' is not an axis minus a number"
        )
    shortest = min(row[name] for row in point.rows) - int(less.strip() or "0")
    if shortest < 0:
        raise NotLifted("bounds-unknown", detail=f"'{expression[:80]}' is below zero")
    return shortest

"""Inputs of a user's own kernel: made as the file defines, changed by each family of the lab.

Each family exposes errors that ordinary numbers do not; see `retuned.catalog.inputs` for the
catalog's.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from retuned.catalog.inputs import PLANTED, planted
from retuned.catalog.user.expressions import BadExpression, parse_expression
from retuned.catalog.user.records import Distribution, InputRecipe, OwnDefinition
from retuned.contract import DType, ValueLike, ValueRule
from retuned.lab.subject import Array, numpy_dtype, shape_of

ORDINARY_FAMILIES: tuple[str, ...] = (
    "randn",
    "randn-small",
    "randn-large",
    "outlier",
    "zeros-rows",
    *PLANTED,
)
"""Default families; the first is the ordinary one, exactly as the file defines."""
FAMILIES: tuple[str, ...] = (*ORDINARY_FAMILIES, "mean-1000", "exact-integer")
_OF_POSITIVE = ("randn", "randn-small", "randn-large", "outlier")
"""Families that keep a positive number positive."""
WHOLE = frozenset({DType.INT64, DType.INT32, DType.INT8, DType.UINT8, DType.BOOL})

Wide = npt.NDArray[np.float64]


def allows(own: OwnDefinition, lengths: Mapping[str, int]) -> bool:
    try:
        return bool(parse_expression(own.where or "1", own.definition.axes)(lengths))
    except BadExpression:
        return False


def make_own(
    own: OwnDefinition, lengths: Mapping[str, int], rng: np.random.Generator, family: str
) -> dict[str, Array]:
    """Make every input of a family, at these lengths of all axes.

    Raises
    ------
    ValueError
        If the definition does not allow these lengths.
    """
    if not allows(own, lengths):
        told = ", ".join(f"{name}={lengths[name]}" for name in own.definition.variable_axes)
        raise ValueError(f"{own.name} is only for lengths where {own.where}; not for {told}")
    found: dict[str, Array] = {}
    for name, spec in own.definition.inputs.items():
        made, shape = own.made.get(name, InputRecipe()), shape_of(spec, lengths)
        values = _base(made, shape, rng)
        if made.varied and not spec.constant and spec.dtype not in WHOLE:
            values = _varied(values, made, rng, family)
        with np.errstate(all="ignore"):  # a large family may leave a narrow type: that is its use
            found[name] = values.astype(numpy_dtype(spec))
    return found


def rule_of(made: InputRecipe) -> ValueRule | None:
    """Return the rule of a server's own inputs; None if any number is allowed."""
    low, high = made.low or 0.0, 1.0 if made.high is None else made.high
    scale, value = 1.0 if made.scale is None else made.scale, made.value or 0.0
    if made.like is Distribution.INTEGERS:
        return ValueRule(like=ValueLike.INTEGERS, low=low, high=high)
    if made.like is Distribution.PERMUTATION:
        return ValueRule(like=ValueLike.ROWS_PERMUTED)
    if made.like is Distribution.UNIFORM:
        return ValueRule(like=ValueLike.UNIFORM, low=low, high=high)
    if made.like is Distribution.POSITIVE:
        return ValueRule(like=ValueLike.UNIFORM, low=1e-3 * scale, high=2.0 * scale)
    if made.like is Distribution.CONSTANT:
        return _constantly(value)
    return None


def _constantly(value: float) -> ValueRule:
    like = ValueLike.INTEGERS if value.is_integer() else ValueLike.UNIFORM
    return ValueRule(like=like, low=value, high=value)


def _base(made: InputRecipe, shape: tuple[int, ...], rng: np.random.Generator) -> Wide:
    low, high = made.low or 0.0, 1.0 if made.high is None else made.high
    scale = 1.0 if made.scale is None else made.scale
    if made.like is Distribution.NORMAL:
        return rng.standard_normal(shape) * scale + (made.mean or 0.0)
    if made.like is Distribution.UNIFORM:
        return rng.uniform(low, high, shape)
    if made.like is Distribution.POSITIVE:
        return np.asarray(np.abs(rng.standard_normal(shape)) * scale + 1e-3 * scale)
    if made.like is Distribution.INTEGERS:
        return rng.integers(int(low), int(high), shape, endpoint=True).astype(np.float64)
    if made.like is Distribution.PERMUTATION:
        rows = np.broadcast_to(np.arange(shape[-1], dtype=np.float64), shape)
        return rng.permuted(rows, axis=-1)
    return np.full(shape, made.value or 0.0)


def _varied(values: Wide, made: InputRecipe, rng: np.random.Generator, family: str) -> Wide:
    if made.like is Distribution.POSITIVE and family not in _OF_POSITIVE:
        return values
    if family in PLANTED:
        return np.asarray(planted(rng, values, PLANTED[family]))  # type: ignore[arg-type]
    if family == "exact-integer":
        return rng.integers(-4, 5, values.shape).astype(np.float64)
    if family == "outlier":
        return _outlier(values, rng)
    if family == "zeros-rows":
        values[int(rng.integers(2)) :: 2] = 0.0
        return values
    factor = {"randn-small": 1e-3, "randn-large": 1e3}.get(family, 1.0)
    return values * factor + (1000.0 if family == "mean-1000" else 0.0)


def _outlier(values: Wide, rng: np.random.Generator) -> Wide:
    width = values.shape[-1]
    if width:
        channels = rng.choice(width, size=max(1, width // 100), replace=False)
        values[..., channels] *= 100.0
    return values

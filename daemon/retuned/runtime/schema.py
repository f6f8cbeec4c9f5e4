"""Definition as the runtime uses it, and the one exception of this package.

The server passes a definition as plain JSON data; the daemon has a separate, richer record of it.
This module reads only what a launch needs. It checks every field, because the data may come from a
file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Tensor = Any
"""A `torch.Tensor`, or any object with ``shape`` where no variant is loaded."""

Key = tuple[int, ...]
"""Lengths of the variable axes, in declaration order."""

DTYPES = frozenset(
    (
        *("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e4m3fnuz"),
        *("int64", "int32", "int8", "uint8", "bool"),
    )
)
"""Element types that can be launched; PyTorch must have them too."""

_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.:-]{0,127}\Z")
_MAX_LENGTH = 2**40
_MAX_TENSORS = 64


class Refused(Exception):
    """The runtime refuses a request; the kernel that ran before continues to run.

    Parameters
    ----------
    reason
        Stable reason code, kebab-case, from the vocabulary of the daemon's `CandidateError`.
    detail
        What is wrong and what to do.
    """

    def __init__(self, reason: str, *, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


VALUE_RULES = frozenset(("integers", "offsets", "permutation", "rows-permuted", "uniform"))


@dataclass(frozen=True, slots=True)
class ValueRule:
    """How the input of a self-check is generated; see `sample_inputs.make`."""

    like: str
    low: float | str
    """Lowest value; a number, or an expression over axes."""
    high: float | str


@dataclass(frozen=True, slots=True)
class TensorSpec:
    name: str
    shape: tuple[str, ...]
    dtype: str
    constant: bool
    """True for a weight: every launch uses the same storage."""
    values: ValueRule | None = field(default=None, compare=False)
    """How it may be generated; not part of what is launched."""
    updates: str | None = None
    """For an output: the input that the launch changes in place to produce it."""


@dataclass(frozen=True, slots=True)
class Spec:
    """Part of a definition that launches need."""

    name: str
    """Unique; also the slot's name."""
    op_type: str
    """Family, such as ``linear_w8``."""
    axes: tuple[tuple[str, int | None], ...]
    """Every axis in declaration order with its constant length.

    None where a launch sets the length.
    """
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    @property
    def variable_axes(self) -> tuple[str, ...]:
        """Axes whose length each launch sets, in declaration order."""
        return tuple(name for name, length in self.axes if length is None)

    @property
    def constant_axes(self) -> tuple[str, ...]:
        return tuple(name for name, length in self.axes if length is not None)

    @property
    def constant_inputs(self) -> tuple[int, ...]:
        return tuple(index for index, spec in enumerate(self.inputs) if spec.constant)

    @property
    def in_place(self) -> bool:
        return any(output.updates is not None for output in self.outputs)

    def locate(self, axis: str) -> tuple[int, int] | None:
        """Return (input, dimension) where the axis occurs first, or None if no input has it."""
        for index, spec in enumerate(self.inputs):
            if axis in spec.shape:
                return index, spec.shape.index(axis)
        return None

    def lengths(self, key: Key) -> dict[str, int]:
        given = iter(key)
        return {name: next(given) if fixed is None else fixed for name, fixed in self.axes}

    def same_launch(self, other: Spec) -> bool:
        """Whether a variant made for one definition fits the other."""
        return (self.axes, self.inputs, self.outputs) == (other.axes, other.inputs, other.outputs)


def parse_spec(definition: Mapping[str, Any]) -> Spec:
    """Parse a definition.

    Raises
    ------
    Refused
        ``definition-invalid``, naming the field.
    """
    if not isinstance(definition, Mapping):
        raise _invalid("the definition is not an object")
    axes = tuple(_axis(*item) for item in _items(definition, "axes"))
    known = {name for name, _ in axes}
    spec = Spec(
        name=_name(definition.get("name"), "name"),
        op_type=_name(definition.get("op_type"), "op_type"),
        axes=axes,
        inputs=tuple(_tensor(*item, known) for item in _items(definition, "inputs")),
        outputs=tuple(_tensor(*item, known) for item in _items(definition, "outputs")),
    )
    if not spec.inputs or not spec.outputs:
        raise _invalid("a kernel needs at least one input and one output")
    hidden = [axis for axis in spec.variable_axes if spec.locate(axis) is None]
    if hidden:
        raise _invalid(f"no input has the variable axes {hidden}")
    return spec


def parse_bounds(guard: object, axes: Sequence[str]) -> tuple[tuple[int, int, int], ...]:
    """Parse a guard into (position of the axis, lowest, highest), inclusive.

    Raises
    ------
    Refused
        ``guard-invalid``: an axis that is not variable, an empty or non-integer range. A guard that
        cannot be parsed allows no shape.
    """
    bounds = guard.get("bounds", {}) if isinstance(guard, Mapping) else None
    if not isinstance(bounds, Mapping):
        raise Refused("guard-invalid", detail="the guard is not an object with 'bounds'")
    found = []
    for axis, limits in bounds.items():
        if axis not in axes:
            raise Refused("guard-invalid", detail=f"'{axis}' is not one of the axes {tuple(axes)}")
        if not isinstance(limits, (list, tuple)) or len(limits) != 2:
            raise Refused("guard-invalid", detail=f"'{axis}' needs [lowest, highest]")
        low, high = limits
        if not _is_length(low) or not _is_length(high) or low > high:
            raise Refused("guard-invalid", detail=f"'{axis}' has an empty or invalid range")
        found.append((axes.index(axis), low, high))
    return tuple(found)


def allows(bounds: Sequence[tuple[int, int, int]], key: Key) -> bool:
    """Whether the lengths are within every bound; axes without a bound may have any length."""
    return all(low <= key[axis] <= high for axis, low, high in bounds)


def _items(definition: Mapping[str, Any], field: str) -> list[tuple[Any, Any]]:
    value = definition.get(field)
    if not isinstance(value, Mapping) or len(value) > _MAX_TENSORS:
        raise _invalid(f"'{field}' is not an object of at most {_MAX_TENSORS} entries")
    return list(value.items())


def _axis(name: object, body: object) -> tuple[str, int | None]:
    checked = _name(name, "axes")
    kind = body.get("type") if isinstance(body, Mapping) else None
    if kind == "var":
        return checked, None
    length = body.get("value") if isinstance(body, Mapping) else None
    if kind != "const" or not isinstance(length, int) or not _is_length(length):
        raise _invalid(f"axis '{checked}' must be var, or const with a length")
    return checked, length


def _tensor(name: object, body: object, known: set[str]) -> TensorSpec:
    checked = _name(name, "tensors")
    if not isinstance(body, Mapping):
        raise _invalid(f"tensor '{checked}' is not an object")
    shape, dtype = body.get("shape"), body.get("dtype")
    if not isinstance(shape, (list, tuple)) or not all(axis in known for axis in shape):
        raise _invalid(f"tensor '{checked}' names unknown axes")
    if not isinstance(dtype, str):
        raise _invalid(f"tensor '{checked}' has no dtype")
    updates = body.get("updates")
    if updates is not None:
        updates = _name(updates, "updates")
    constant = body.get("constant") is True
    return TensorSpec(checked, tuple(shape), dtype, constant, _rule(checked, body), updates)


def _rule(tensor: str, body: Mapping[str, Any]) -> ValueRule | None:
    """Parse how an input may be generated; expressions are parsed where they are used."""
    said = body.get("values")
    if said is None:
        return None
    like = said.get("like") if isinstance(said, Mapping) else None
    if not isinstance(said, Mapping) or not isinstance(like, str) or like not in VALUE_RULES:
        raise _invalid(f"'values.like' of tensor '{tensor}' is not in {sorted(VALUE_RULES)}")
    bounds = [said.get(name, 0) for name in ("low", "high")]
    for bound in bounds:
        if isinstance(bound, bool) or not isinstance(bound, (int, float, str)):
            raise _invalid(f"'values' of tensor '{tensor}' has a bound of another type")
    return ValueRule(like, *bounds)


def _name(value: object, field: str) -> str:
    if not isinstance(value, str) or not _NAME.match(value):
        raise _invalid(f"'{field}' contains something that is not a name")
    return value


def _is_length(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX_LENGTH


def _invalid(detail: str) -> Refused:
    return Refused("definition-invalid", detail=detail)

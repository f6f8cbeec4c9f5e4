"""What the runtime knows of a definition, and the one exception of this package.

The server hands over a Definition as plain JSON data; the daemon has its own, richer record of it.
Only what a launch needs is read here, and every field is checked: it may come from a file.
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
    """The runtime will not do what was asked; whatever ran before goes on running.

    Parameters
    ----------
    reason
        Stable code, kebab-case, the vocabulary of the daemon's `CandidateError`.
    detail
        What is wrong and what to do.
    """

    def __init__(self, reason: str, *, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


VALUE_RULES = frozenset(("integers", "offsets", "permutation", "rows-permuted", "uniform"))
"""What the numbers of an input may have to be like."""


@dataclass(frozen=True, slots=True)
class ValueRule:
    """How an input is made up for a self-check; `values.make` knows how."""

    like: str
    """One of `VALUE_RULES`."""
    low: float | str
    """Least; a number, or an expression over axes."""
    high: float | str
    """Largest; as `low`."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One input or output."""

    name: str
    """Name in the definition."""
    shape: tuple[str, ...]
    """Axis names, outermost first."""
    dtype: str
    """Element type without the ``torch.`` prefix."""
    constant: bool
    """A weight: the same storage on every launch."""
    values: ValueRule | None = field(default=None, compare=False)
    """How it may be made up; no part of what is launched."""
    updates: str | None = None
    """Of an output: the input that it holds before the launch, which changes it in place."""


@dataclass(frozen=True, slots=True)
class Spec:
    """A definition, as far as launching goes."""

    name: str
    """Unique; also the slot's name."""
    op_type: str
    """Family, such as ``linear_w8``."""
    axes: tuple[tuple[str, int | None], ...]
    """Every axis in declaration order with its constant length; None where a launch names it."""
    inputs: tuple[TensorSpec, ...]
    """In launch order."""
    outputs: tuple[TensorSpec, ...]
    """In launch order."""

    @property
    def variable_axes(self) -> tuple[str, ...]:
        """Axes whose length each launch names, in declaration order."""
        return tuple(name for name, length in self.axes if length is None)

    @property
    def constant_axes(self) -> tuple[str, ...]:
        """Axes of fixed length, in declaration order."""
        return tuple(name for name, length in self.axes if length is not None)

    @property
    def constant_inputs(self) -> tuple[int, ...]:
        """Positions of the weights."""
        return tuple(index for index, spec in enumerate(self.inputs) if spec.constant)

    @property
    def in_place(self) -> bool:
        """Whether a launch changes what it reads."""
        return any(output.updates is not None for output in self.outputs)

    def locate(self, axis: str) -> tuple[int, int] | None:
        """Return (input, dimension) that shows the axis first, or None if no input does."""
        for index, spec in enumerate(self.inputs):
            if axis in spec.shape:
                return index, spec.shape.index(axis)
        return None

    def lengths(self, key: Key) -> dict[str, int]:
        """Length of every axis, in declaration order."""
        given = iter(key)
        return {name: next(given) if fixed is None else fixed for name, fixed in self.axes}

    def same_launch(self, other: Spec) -> bool:
        """Whether a variant made for one fits the other."""
        return (self.axes, self.inputs, self.outputs) == (other.axes, other.inputs, other.outputs)


def parse_spec(definition: Mapping[str, Any]) -> Spec:
    """Read a definition.

    Raises
    ------
    Refused
        ``definition-invalid``, naming the field.
    """
    if not isinstance(definition, Mapping):
        raise _invalid("the definition is no object")
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
        raise _invalid(f"no input shows the length of the variable axes {hidden}")
    return spec


def parse_bounds(guard: object, axes: Sequence[str]) -> tuple[tuple[int, int, int], ...]:
    """Read a guard into (position of the axis, lowest, highest), inclusive.

    Raises
    ------
    Refused
        ``guard-invalid``: an axis that is not variable, an empty or non-integer range. A guard that
        cannot be understood allows nothing.
    """
    bounds = guard.get("bounds", {}) if isinstance(guard, Mapping) else None
    if not isinstance(bounds, Mapping):
        raise Refused("guard-invalid", detail="the guard is no object with 'bounds'")
    found = []
    for axis, limits in bounds.items():
        if axis not in axes:
            raise Refused("guard-invalid", detail=f"'{axis}' is none of the axes {tuple(axes)}")
        if not isinstance(limits, (list, tuple)) or len(limits) != 2:
            raise Refused("guard-invalid", detail=f"'{axis}' needs [lowest, highest]")
        low, high = limits
        if not _is_length(low) or not _is_length(high) or low > high:
            raise Refused("guard-invalid", detail=f"'{axis}' has an empty or odd range")
        found.append((axes.index(axis), low, high))
    return tuple(found)


def allows(bounds: Sequence[tuple[int, int, int]], key: Key) -> bool:
    """Whether the lengths are within every bound; axes that are not bound are free."""
    return all(low <= key[axis] <= high for axis, low, high in bounds)


def _items(definition: Mapping[str, Any], field: str) -> list[tuple[Any, Any]]:
    value = definition.get(field)
    if not isinstance(value, Mapping) or len(value) > _MAX_TENSORS:
        raise _invalid(f"'{field}' is no object of at most {_MAX_TENSORS} entries")
    return list(value.items())


def _axis(name: object, body: object) -> tuple[str, int | None]:
    checked = _name(name, "axes")
    kind = body.get("type") if isinstance(body, Mapping) else None
    if kind == "var":
        return checked, None
    length = body.get("value") if isinstance(body, Mapping) else None
    if kind != "const" or not isinstance(length, int) or not _is_length(length):
        raise _invalid(f"axis '{checked}' is neither var nor const with a length")
    return checked, length


def _tensor(name: object, body: object, known: set[str]) -> TensorSpec:
    checked = _name(name, "tensors")
    if not isinstance(body, Mapping):
        raise _invalid(f"tensor '{checked}' is no object")
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
    """Read how an input may be made up; expressions are parsed where they are used."""
    said = body.get("values")
    if said is None:
        return None
    like = said.get("like") if isinstance(said, Mapping) else None
    if not isinstance(said, Mapping) or not isinstance(like, str) or like not in VALUE_RULES:
        raise _invalid(f"'values' of tensor '{tensor}' is like none of {sorted(VALUE_RULES)}")
    bounds = [said.get(name, 0) for name in ("low", "high")]
    for bound in bounds:
        if isinstance(bound, bool) or not isinstance(bound, (int, float, str)):
            raise _invalid(f"'values' of tensor '{tensor}' has a bound that is no number or text")
    return ValueRule(like, *bounds)


def _name(value: object, field: str) -> str:
    if not isinstance(value, str) or not _NAME.match(value):
        raise _invalid(f"'{field}' holds something that is no name")
    return value


def _is_length(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX_LENGTH


def _invalid(detail: str) -> Refused:
    return Refused("definition-invalid", detail=detail)

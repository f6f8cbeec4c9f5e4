"""Binding of an operator's arguments to the tensors of a definition.

It is declared, not programmed: which argument is which input, which arguments are written, what
value a number must have. A launch that differs from the declaration runs the original. Pure
functions: lengths in, lengths or a reason out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import prod
from typing import Any

from retuned.runtime.schema import Refused

FORMS: Mapping[str, str] = {"float32": "", "bfloat16": "_bf16", "float16": "_fp16"}
"""Element types of a definition's form, with the suffix of its name."""


class View(StrEnum):
    """How the lengths of an argument map to those of a tensor of the definition."""

    EXACT = "exact"
    """One to one."""
    ROWS = "rows"
    """All dimensions but the last are merged: rows."""
    HEADS = "heads"
    """Two dimensions; the second contains adjacent heads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputBinding:
    name: str
    argument: str
    shape: tuple[str, ...]
    """Axis names, outermost first."""
    view: View = View.EXACT
    """How the lengths of the argument map to them."""
    dtype: str = ""
    """Element type; empty is that of the form."""
    constant: bool = False
    """A weight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputBinding:
    name: str
    argument: str = ""
    """Argument of the operator that is written; empty if the operator returns a new tensor."""
    shape: tuple[str, ...]
    view: View = View.EXACT


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """One operator, bound to the definitions of a family."""

    operator: str
    """Name in the dispatcher, such as ``_C::rms_norm``."""
    schema: str
    """Schema that it must have, exactly."""
    op_type: str
    """Operator of the definitions."""
    template: str
    """Name of a definition, constant axes in braces, and ``{form}``."""
    axes: tuple[str, ...]
    variable: tuple[str, ...]
    """Axes whose length each launch sets."""
    inputs: tuple[InputBinding, ...]
    outputs: tuple[OutputBinding, ...]
    sized: tuple[tuple[str, str], ...] = ()
    """(axis, argument) where a number is a length."""
    equal: tuple[tuple[str, object], ...] = ()
    """(argument, value) that the definition requires."""

    @property
    def in_place(self) -> frozenset[str]:
        return frozenset(each.argument for each in self.inputs) & frozenset(
            each.argument for each in self.outputs
        )

    def definition(self, lengths: Mapping[str, int], *, dtype: str) -> dict[str, Any]:
        """Return the definition of these lengths as JSON data, without its computation."""
        constants = {axis: lengths[axis] for axis in self.axes if axis not in self.variable}
        return {
            "name": self.template.format(form=FORMS[dtype], **constants),
            "op_type": self.op_type,
            "axes": {
                axis: {"type": "const", "value": constants[axis]}
                if axis in constants
                else {"type": "var"}
                for axis in self.axes
            },
            "inputs": {
                each.name: {
                    "shape": list(each.shape),
                    "dtype": each.dtype or dtype,
                    "constant": each.constant,
                }
                for each in self.inputs
            },
            "outputs": {
                each.name: {"shape": list(each.shape), "dtype": dtype} for each in self.outputs
            },
        }

    def lengths(
        self, shapes: Mapping[str, Sequence[int]], values: Mapping[str, object]
    ) -> dict[str, int]:
        """Return the length of every axis.

        Raises
        ------
        Refused
            ``value-differs`` or ``shape-differs``: the launch does not match the definition.
        """
        for argument, value in self.equal:
            if values.get(argument) != value:
                detail = f"{argument} is {values.get(argument)!r:.60}, not {value!r}"
                raise Refused("value-differs", detail=detail)
        found: dict[str, int] = {}
        for axis, argument in self.sized:
            length = values.get(argument)
            if not isinstance(length, int) or isinstance(length, bool) or length < 1:
                raise Refused("value-differs", detail=f"{argument} is not a length: {length!r:.60}")
            found[axis] = length
        tensors: tuple[InputBinding | OutputBinding, ...] = (*self.inputs, *self.outputs)
        for tensor in tensors:
            if tensor.argument:
                _learn(found, tensor, shapes)
        missing = [axis for axis in self.axes if axis not in found]
        if missing:
            raise Refused("shape-differs", detail=f"no argument has the length of {missing}")
        return found

    def shown(self) -> tuple[str, ...]:
        """Return the arguments whose lengths distinguish launches.

        Together they have every axis.
        """
        known = {axis for axis, _ in self.sized}
        wanted = []
        for each in self.inputs:
            if not known.issuperset(each.shape):
                wanted.append(each.argument)
                known.update(each.shape)
        return tuple(wanted)


def _learn(
    found: dict[str, int], tensor: InputBinding | OutputBinding, shapes: Mapping[str, Sequence[int]]
) -> None:
    """Add the lengths of a tensor; lengths known already must be equal."""
    shape = shapes.get(tensor.argument)
    if shape is None:
        raise Refused("shape-differs", detail=f"{tensor.argument} is not a tensor")
    for axis, length in zip(tensor.shape, seen(tensor, shape, found), strict=True):
        if found.setdefault(axis, length) != length:
            detail = f"{axis} is {found[axis]} and, by {tensor.argument}, {length}"
            raise Refused("shape-differs", detail=detail)


def seen(
    tensor: InputBinding | OutputBinding, shape: Sequence[int], lengths: Mapping[str, int]
) -> tuple[int, ...]:
    """Return the lengths of a tensor of the definition, from those of its argument.

    Raises
    ------
    Refused
        ``shape-differs``.
    """
    shape = tuple(shape)
    if tensor.view is View.ROWS and len(shape) >= 2:
        shape = (prod(shape[:-1]), shape[-1])
    elif tensor.view is View.HEADS and len(shape) == 2:
        width = lengths[tensor.shape[-1]]
        if shape[1] % width == 0:
            shape = (shape[0], shape[1] // width, width)
    if len(shape) != len(tensor.shape):
        detail = f"{tensor.argument} has lengths {shape}, and cannot be {tensor.shape}"
        raise Refused("shape-differs", detail=detail)
    return shape

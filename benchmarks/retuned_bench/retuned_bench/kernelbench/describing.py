"""From what a problem says of itself to a definition; its answer is a stranger's. Pure."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field, ValidationError

from retuned.contract import AxisConst, Definition, DType, Record, TensorSpec
from retuned.lab.number_formats import NUMPY

OP_TYPE = "kernelbench"
"""Family of every problem's definition."""
_Word = Annotated[str, Field(pattern=r"^[a-zA-Z][a-zA-Z0-9_]{0,63}$")]
_Length = Annotated[int, Field(ge=0, le=2**40)]


class Head(Record):
    """One tensor, as the problem's process describes it."""

    name: _Word
    """Name in the definition."""
    dtype: DType
    """Element type."""
    shape: tuple[_Length, ...] = Field(max_length=12)
    """Lengths, outermost first; empty for a tensor without axes."""
    scalar: bool = False
    """Whether the model takes a number, not a tensor."""

    @property
    def size_bytes(self) -> int:
        """Bytes of all elements."""
        return math.prod(self.shape) * NUMPY[self.dtype].itemsize


class Described(Record):
    """What a problem consists of."""

    inputs: tuple[Head, ...] = Field(min_length=1, max_length=64)
    """What `forward` takes, in order."""
    weights: tuple[Head, ...] = Field(max_length=512)
    """Parameters, then buffers, in the order of their registration; those that are used."""
    outputs: tuple[Head, ...] = Field(min_length=1, max_length=64)
    """What `forward` returns."""

    @property
    def given(self) -> tuple[Head, ...]:
        """Inputs and weights, in launch order."""
        return (*self.inputs, *self.weights)

    @property
    def size_bytes(self) -> int:
        """Bytes of all tensors of one call."""
        return sum(head.size_bytes for head in (*self.given, *self.outputs))


class BadDescription(Exception):
    """A description that is none; its text says what is wrong with it."""


def read_description(answer: Mapping[str, Any]) -> Described:
    """Check a description.

    Raises
    ------
    BadDescription
        If a name, type or length is none, or two tensors have one name.
    """
    parts = {key: answer.get(key) for key in ("inputs", "weights", "outputs")}
    try:
        described = Described.model_validate_json(_json(parts))
    except (ValidationError, ValueError) as error:
        raise BadDescription(f"describes itself badly: {type(error).__name__}") from None
    names = [head.name for head in (*described.given, *described.outputs)]
    if len(set(names)) != len(names):
        raise BadDescription("describes two tensors of one name")
    return described


def definition_of(problem: str, text: str, described: Described) -> Definition:
    """Return a problem's definition: every axis is constant, axes of one length are one axis.

    Parameters
    ----------
    problem
        Its identity, such as ``level1/19_ReLU``.
    text
        Its source: the definition's reference, in PyTorch.
    described
        Its tensors.

    Examples
    --------
    >>> head = {"dtype": "float32", "shape": [4, 8]}
    >>> described = read_description({"inputs": [{"name": "x", **head}], "weights": [],
    ...                               "outputs": [{"name": "out", **head}]})
    >>> found = definition_of("level1/19_ReLU", "", described)
    >>> found.name, list(found.axes), found.inputs["x"].shape
    ('kernelbench.level1.19_ReLU', ['n4', 'n8'], ('n4', 'n8'))
    """
    heads = (*described.given, *described.outputs)
    tensors = (head for head in heads if not head.scalar)
    lengths = dict.fromkeys(length for head in tensors for length in head.shape)
    weights = {head.name for head in described.weights}
    return Definition(
        name=definition_name(problem),
        op_type=OP_TYPE,
        description=f"KernelBench problem {problem}"[:200],
        axes={f"n{length}": AxisConst(value=length) for length in lengths},
        inputs={head.name: _spec(head, constant=head.name in weights) for head in described.given},
        outputs={head.name: _spec(head) for head in described.outputs},
        reference=text,
        tags=("kernelbench", "pytorch-reference"),
    )


def definition_name(problem: str) -> str:
    """Return the name of a problem's definition.

    Examples
    --------
    >>> definition_name("level3/a b")
    'kernelbench.level3.a_b'
    """
    return f"kernelbench.{re.sub(r'[^a-zA-Z0-9_.-]', '_', problem.replace('/', '.'))}"[:128]


def told(heads: Sequence[Head]) -> list[dict[str, Any]]:
    """Return tensors as plain data, for the answer."""
    return [{"name": h.name, "dtype": str(h.dtype), "shape": list(h.shape)} for h in heads]


def _spec(head: Head, *, constant: bool = False) -> TensorSpec:
    axes = () if head.scalar else tuple(f"n{length}" for length in head.shape)
    return TensorSpec(shape=axes, dtype=head.dtype, constant=constant)


def _json(parts: Mapping[str, Any]) -> str:
    return json.dumps(parts)

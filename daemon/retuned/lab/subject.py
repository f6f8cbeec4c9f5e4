"""Kernel under test as the lab needs it: definition, float64 oracle, and inputs on demand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from retuned.contract import Definition, Solution, TensorSpec
from retuned.errors import UsageError
from retuned.lab.number_formats import NUMPY, coarsened, is_float

Array = npt.NDArray[Any]


class KernelUnderTest(Protocol):
    """A definition with its reference and its families of inputs; catalog entries satisfy it."""

    @property
    def definition(self) -> Definition: ...

    @property
    def families(self) -> tuple[str, ...]:
        """Names of input families; the first is the ordinary one, used for timing."""
        ...

    def reference(self, inputs: dict[str, Array], axes: Mapping[str, int]) -> dict[str, Array]:
        """Compute every output in float64; `axes` are the variable ones."""
        ...

    def inputs(self, axes: Mapping[str, int], *, seed: int, family: str) -> dict[str, Array]:
        """Make every input, in the definition's dtypes and shapes; same seed, same bytes."""
        ...


@runtime_checkable
class UntrustedReference(Protocol):
    """A subject with an untrusted reference that reports its confinement."""

    def reference_confined_by(self) -> tuple[str, ...] | None:
        """Return its confinement; empty for none, None if the reference is trusted."""
        ...


@runtime_checkable
class FoundInServer(Protocol):
    """A subject whose launches the server makes: its variants are bound to them."""

    def launch_data(self, solution: Solution) -> Mapping[str, Any]: ...


def numpy_dtype(spec: TensorSpec) -> np.dtype[Any]:
    return NUMPY[spec.dtype]


def shape_of(spec: TensorSpec, lengths: Mapping[str, int]) -> tuple[int, ...]:
    """Concrete shape; a scalar is one element."""
    return tuple(lengths[axis] for axis in spec.shape) or (1,)


def make_inputs(
    subject: KernelUnderTest, axes: Mapping[str, int], *, seed: int, family: str
) -> dict[str, Array]:
    """Return inputs checked against the definition, contiguous, in its order.

    Raises
    ------
    UsageError
        If the generated inputs do not match the definition.
    """
    definition = subject.definition
    lengths = definition.lengths(axes)
    made = subject.inputs(dict(axes), seed=seed, family=family)
    if list(made) != list(definition.inputs) and set(made) != set(definition.inputs):
        raise UsageError(f"{definition.name}: inputs made are {sorted(made)}")
    result = {}
    for name, spec in definition.inputs.items():
        array = np.ascontiguousarray(made[name])
        if array.dtype != numpy_dtype(spec) or array.shape != shape_of(spec, lengths):
            raise UsageError(
                f"{definition.name}: input '{name}' is {array.dtype}{array.shape}, the definition "
                f"requires {spec.dtype}{shape_of(spec, lengths)}"
            )
        result[name] = array
    return result


def coarse_inputs(inputs: Mapping[str, Array]) -> dict[str, Array]:
    return {
        name: coarsened(array) if is_float(array.dtype) else array for name, array in inputs.items()
    }

"""Where the model's operators come from: the catalog's incumbents behind slots.

The server is an ordinary user of Retuned: it compiles the kernels it ships with, C++ for the CPU or
Triton for a GPU, attaches the runtime and registers one slot per definition. Nothing here knows
whether a slot was swapped.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from retuned import catalog
from retuned.contract import AxisConst, Definition, Language, Solution
from retuned.demo.operators import Operators, Tensor
from retuned.demo.shapes import ModelShape
from retuned.errors import HarnessError, MissingDependency
from retuned.lab.languages.cpu_cpp import compile_solution
from retuned.runtime import Runtime, Slot
from retuned.runtime.native.cpu import CpuKernel
from retuned.runtime.native.memory import repack
from retuned.runtime.schema import Refused
from retuned.runtime.triton.launch import TritonKernel


class Kernel(ABC):
    """A solution as a plain function over tensors.

    Parameters
    ----------
    definition
        What it computes; one output.
    solution
        Which variant.
    """

    def __init__(self, definition: Definition, solution: Solution) -> None:
        ((_, output),) = definition.outputs.items()
        self.definition = definition
        self._layouts = [solution.layouts.get(name, "as-is") for name in definition.inputs]
        self._packed: dict[int, Tensor] = {}
        self._axes = tuple(_axis_sources(definition))
        names = list(definition.axes)
        self._output_axes = tuple(names.index(axis) for axis in output.shape)
        self._output_dtype = getattr(torch, output.dtype)

    @abstractmethod
    def launch(self, tensors: Sequence[Tensor], lengths: Sequence[int]) -> None:
        """Launch once on contiguous inputs, then the output."""

    def __call__(self, *inputs: Tensor) -> Tensor:
        """Launch once; inputs in the definition's order."""
        lengths = [
            value if source is None else inputs[source[0]].shape[source[1]]
            for source, value in self._axes
        ]
        ready = [
            tensor.contiguous() if layout == "as-is" else self._pack(tensor, layout)
            for tensor, layout in zip(inputs, self._layouts, strict=True)
        ]
        sizes = [lengths[index] for index in self._output_axes]
        output = torch.empty(sizes, dtype=self._output_dtype, device=ready[0].device)
        self.launch((*ready, output), lengths)
        return output

    def _pack(self, weight: Tensor, layout: str) -> Tensor:
        """Weights live as long as the model, so their address names them."""
        packed = self._packed.get(weight.data_ptr())
        if packed is None:
            packed = self._packed[weight.data_ptr()] = repack(weight, layout)
        return packed


class Incumbent(Kernel):
    """A compiled C++ solution.

    Parameters
    ----------
    definition
        What it computes; one output.
    solution
        What was compiled.
    library
        The shared object.
    """

    def __init__(self, definition: Definition, solution: Solution, *, library: Path) -> None:
        super().__init__(definition, solution)
        self._kernel = CpuKernel(
            library,
            solution.entry,
            tensors=len(definition.inputs) + 1,
            axes=len(definition.axes),
            scratch_bytes=solution.scratch_bytes,
        )

    def launch(self, tensors: Sequence[Tensor], lengths: Sequence[int]) -> None:
        """Launch once."""
        self._kernel.launch([tensor.data_ptr() for tensor in tensors], lengths)


class TritonIncumbent(Kernel):
    """A Triton solution, compiled here and now.

    Parameters
    ----------
    definition
        What it computes; one output.
    solution
        Which variant.
    device
        Where it will run: a GPU, or the CPU under Triton's interpreter.

    Raises
    ------
    MissingDependency
        If Triton is missing or does not compile for this device.
    """

    def __init__(self, definition: Definition, solution: Solution, *, device: str) -> None:
        super().__init__(definition, solution)
        tensors = {**definition.inputs, **definition.outputs}
        try:
            self._kernel = TritonKernel(
                solution.sources[0].content,
                entry=solution.entry,
                params=solution.params,
                grid=solution.grid,
                tensors=list(tensors),
                axes=list(definition.axes),
                scratch_bytes=solution.scratch_bytes,
            )
            lengths = definition.lengths(dict.fromkeys(definition.variable_axes, 1))
            self._kernel.prepare(
                list(lengths.values()),
                dtypes=[str(spec.dtype) for spec in tensors.values()],
                device=torch.device(device),
            )
        except Refused as error:
            raise MissingDependency(
                f"{solution.name} does not run on '{device}': {error}"
            ) from error

    def launch(self, tensors: Sequence[Tensor], lengths: Sequence[int]) -> None:
        """Launch once on the current stream.

        Raises
        ------
        RuntimeError
            If it cannot be launched.
        """
        try:
            self._kernel.launch(tensors, lengths)
        except Refused as error:
            raise RuntimeError(f"{self.definition.name}: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class SlottedOperators:
    """The operators and the slots behind them."""

    operators: Operators
    """For the model."""
    slots: dict[str, Slot]
    """Slots by definition name."""


def definition_names(shape: ModelShape) -> tuple[str, ...]:
    """Name every definition of the catalog that a model of this shape needs."""
    linears = {f"linear_w8_n{rows}_k{depth}" for rows, depth in shape.linears().values()}
    return (
        *sorted(linears),
        f"rmsnorm_h{shape.hidden}",
        f"silu_mul_i{shape.intermediate}",
        f"attention_h{shape.heads}_d{shape.head_dim}",
        f"softmax_n{shape.vocab}",
    )


def incumbents(shape: ModelShape, *, cache_dir: Path, device: str = "cpu") -> Iterator[Kernel]:
    """Compile and load the kernel that the catalog has for each definition.

    Raises
    ------
    MissingDependency
        If the machine has no C++ compiler, or no Triton for a GPU.
    UsageError
        If the catalog has no such definition.
    """
    for name in definition_names(shape):
        if device == "cpu":
            entry = catalog.get(name)
            compiled = compile_solution(entry.incumbent, cache_dir=cache_dir)
            yield Incumbent(entry.definition, entry.incumbent, library=compiled.path)
        else:
            entry = catalog.get(name, language=Language.TRITON)
            yield TritonIncumbent(entry.definition, entry.incumbent, device=device)


def slotted_operators(
    shape: ModelShape, runtime: Runtime, *, cache_dir: Path, device: str = "cpu"
) -> SlottedOperators:
    """Compile the incumbents, put each behind a slot and register the torch operators.

    Raises
    ------
    MissingDependency
        If the machine has no C++ compiler, or no Triton for a GPU.
    HarnessError
        If an operator of the model has no definition.
    """
    slots: dict[str, Slot] = {}
    families: dict[str, list[Slot]] = defaultdict(list)
    for original in incumbents(shape, cache_dir=cache_dir, device=device):
        definition = original.definition
        slot = runtime.slot(definition.model_dump(mode="json"), original=original)
        slots[definition.name] = slot
        families[definition.op_type].append(slot)
    missing = {field for field in Operators.__slots__ if field not in families}
    if missing:
        raise HarnessError(f"no definitions for the operators {sorted(missing)}")
    found = {name: runtime.register_torch_op(name, families[name]) for name in Operators.__slots__}
    return SlottedOperators(operators=Operators(**found), slots=slots)


def _axis_sources(definition: Definition) -> Iterator[tuple[tuple[int, int] | None, int]]:
    """For each axis: the input and dimension that shows its length, or its constant length."""
    for axis, spec in definition.axes.items():
        if isinstance(spec, AxisConst):
            yield None, spec.value
            continue
        places = (
            (index, tensor.shape.index(axis))
            for index, tensor in enumerate(definition.inputs.values())
            if axis in tensor.shape
        )
        place = next(places, None)
        if place is None:
            raise HarnessError(f"no input of {definition.name} shows the length of axis '{axis}'")
        yield place, 0

"""Launch the catalog's Triton variants on NumPy arrays, whatever their element types are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from retuned.catalog.entry import KernelEntry
from retuned.contract import Solution
from retuned.lab.languages.triton_contract import load
from retuned.lab.number_formats import NUMPY
from retuned.lab.subject import numpy_dtype, shape_of
from retuned.runtime.triton.launch import TritonSteps

Array = npt.NDArray[Any]


def solutions(entry: KernelEntry, axes: Mapping[str, int]) -> Iterator[Solution]:
    """Yield the incumbent, and the best guess of every structure."""
    yield entry.incumbent
    for space in entry.spaces:
        yield entry.solution(space.name, space.starts(axes)[0])


def kernel(entry: KernelEntry, solution: Solution) -> TritonSteps:
    """Load a variant as the lab's child does."""
    return load(solution, entry.definition)


def to_torch(array: Array, device: str = "cpu") -> Any:
    """Hand bytes over: PyTorch has the same element types under other objects."""
    import torch

    (name,) = (dtype for dtype, kind in NUMPY.items() if kind == array.dtype)
    flat = torch.from_numpy(np.ascontiguousarray(array).reshape(-1).view(np.uint8).copy())
    return flat.to(device).view(getattr(torch, name)).view(array.shape)


def launched(
    entry: KernelEntry,
    solution: Solution,
    inputs: Mapping[str, Array],
    axes: Mapping[str, int],
    *,
    device: str = "cpu",
) -> dict[str, Array]:
    """Launch once and return the outputs, which held something else before."""
    import torch

    definition = entry.definition
    lengths = definition.lengths(axes)
    kinds = {name: numpy_dtype(spec) for name, spec in definition.outputs.items()}
    shapes = {name: shape_of(spec, lengths) for name, spec in definition.outputs.items()}
    before = {
        name: np.full(int(np.prod(shapes[name])) * kind.itemsize, 0x5A, np.uint8).view(kind)
        for name, kind in kinds.items()
    }
    results = {name: to_torch(before[name].reshape(shapes[name]), device) for name in kinds}
    given = [to_torch(inputs[name], device) for name in definition.inputs]
    kernel(entry, solution).launch([*given, *results.values()], list(lengths.values()))
    return {
        name: result.view(-1)
        .view(torch.uint8)
        .cpu()
        .numpy()
        .view(kinds[name])
        .reshape(shapes[name])
        for name, result in results.items()
    }

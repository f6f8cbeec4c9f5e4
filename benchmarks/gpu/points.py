"""Points of a kernel's spaces, compiled and ready to launch, with their tensors on the device."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import torch
from benchmarks.gpu.clocking import Call, sets_for

from retuned import catalog
from retuned.contract import DType, Language
from retuned.lab.languages.triton_contract import load
from retuned.lab.number_formats import NUMPY
from retuned.lab.subject import make_inputs, numpy_dtype, shape_of
from retuned.runtime.schema import Refused
from retuned.runtime.triton.launch import TritonSteps

Axes = dict[str, int]
Array = np.typing.NDArray[Any]
Point = tuple[str, dict[str, int | str]]


def inputs_of(entry: catalog.KernelEntry, axes: Axes) -> dict[str, Any]:
    return make_inputs(entry, axes, seed=7, family=entry.families[0])


def points_of(
    entry: catalog.KernelEntry, shapes: Sequence[Axes], *, most: int
) -> tuple[list[Point], int]:
    """Return the points to try, and how many there are in all."""
    every: list[Point] = []
    for space in entry.spaces:
        for values in product(*space.params.values()):
            params = dict(zip(space.params, values, strict=True))
            if space.constraints(params, entry.definition):
                every.append((space.name, params))
    if len(every) <= most:
        return every, len(every)
    must: list[Point] = [(entry.incumbent.structure, dict(entry.incumbent.params))]
    for axes in shapes:
        must += [(s.name, dict(start)) for s in entry.spaces for start in s.starts(axes)]
    chosen = random.Random(entry.definition.name).sample(every, most)
    unique = {json.dumps(point, sort_keys=True): point for point in [*must, *chosen]}
    return list(unique.values()), len(every)


def build(name: str, points: Sequence[Point], shapes: Sequence[Axes]) -> list[str]:
    """Compile points into the cache; returns why each could not be, or nothing."""
    entry = catalog.get(name, language=Language.TRITON)
    found = []
    for structure, params in points:
        try:
            kernel = load(entry.solution(structure, params), entry.definition)
            for axes in shapes:
                prepare(kernel, entry, axes)
            found.append("")
        except Refused as refused:
            found.append(refused.reason)
    return found


def prepare(kernel: TritonSteps, entry: catalog.KernelEntry, axes: Axes) -> None:
    """Compile for the shape, or find it compiled."""
    definition = entry.definition
    specs = [*definition.inputs.values(), *definition.outputs.values()]
    kernel.prepare(
        list(definition.lengths(axes).values()),
        dtypes=[str(spec.dtype) for spec in specs],
        device=torch.device("cuda", 0),
    )


def call_of(entry: catalog.KernelEntry, kernel: TritonSteps, axes: Axes) -> Call:
    """Return what launches at the shape."""
    prepare(kernel, entry, axes)
    lengths = list(entry.definition.lengths(axes).values())
    device = torch.device("cuda", 0)
    launch = kernel.at(lengths, device=device)
    scratch = kernel.spaces(lengths, device=device)
    return lambda tensors: launch([*tensors, *scratch])


def sets_of(
    entry: catalog.KernelEntry,
    axes: Axes,
    arrays: Mapping[str, Any],
    *,
    count: int,
    device: str = "cuda",
) -> list[list[torch.Tensor]]:
    """Return sets of inputs and outputs; 0 means as many as the cache asks for."""
    definition = entry.definition
    lengths = definition.lengths(axes)
    given = [to_torch(arrays[name], device) for name in definition.inputs]
    specs = [(shape_of(s, lengths), numpy_dtype(s)) for s in definition.outputs.values()]
    size = sum(t.numel() * t.element_size() for t in given)
    size += sum(math.prod(shape) * kind.itemsize for shape, kind in specs)
    made = []
    for _ in range(count or sets_for(size)):
        outputs = [to_torch(np.zeros(shape, kind), device) for shape, kind in specs]
        made.append([*(tensor.clone() for tensor in given), *outputs])
    return made


def to_torch(array: Array, device: str) -> torch.Tensor:
    (name,) = (dtype for dtype, kind in NUMPY.items() if kind == array.dtype)
    flat = torch.from_numpy(np.ascontiguousarray(array).reshape(-1).view(np.uint8).copy())
    return flat.to(device).view(getattr(torch, name)).view(array.shape)


def to_numpy(tensor: torch.Tensor) -> Array:
    kind = NUMPY[DType(str(tensor.dtype).removeprefix("torch."))]
    flat = tensor.contiguous().view(-1).view(torch.uint8).cpu().numpy()
    found: Array = flat.view(kind).reshape(tuple(tensor.shape))
    return found

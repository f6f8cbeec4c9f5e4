"""Running variants of the catalog in tests: C++ between red zones, Triton on NumPy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from retuned.catalog import KernelEntry
from retuned.contract import Solution
from retuned.lab.languages.triton_contract import load
from retuned.lab.subject import numpy_dtype, shape_of
from retuned.runtime.native.cpu import CpuKernel
from retuned.runtime.native.memory import repack
from retuned.runtime.triton.launch import TritonSteps

Array = npt.NDArray[Any]

RED_ZONE = 4096


def launch(
    kernel: CpuKernel,
    entry: KernelEntry,
    inputs: dict[str, Array],
    axes: dict[str, int],
    *,
    layouts: dict[str, str],
    filler: int = 0xA5,
) -> dict[str, Array]:
    """Run with every tensor between red zones, which must not change and must not matter."""
    lengths = entry.definition.lengths(axes)
    arrays = {
        n: np.ascontiguousarray(repack(a, layouts.get(n, "as-is"))) for n, a in inputs.items()
    }
    for name, spec in entry.definition.outputs.items():
        bytes_ = np.full(shape_of(spec, lengths), 0xFF, np.uint8)
        arrays[name] = np.repeat(bytes_, numpy_dtype(spec).itemsize, axis=-1).view(
            numpy_dtype(spec)
        )
    blocks = {}
    for name, array in arrays.items():
        block = np.full(array.nbytes + 2 * RED_ZONE, filler, np.uint8)
        block[RED_ZONE : RED_ZONE + array.nbytes] = array.reshape(-1).view(np.uint8)
        blocks[name] = block
    before = {name: block.copy() for name, block in blocks.items()}
    kernel.launch([b.ctypes.data + RED_ZONE for b in blocks.values()], list(lengths.values()))
    results = {}
    for name, block in blocks.items():
        if name in inputs:
            assert np.array_equal(block, before[name]), f"input {name} was modified"
            continue
        inside = slice(RED_ZONE, block.size - RED_ZONE)
        assert (block[:RED_ZONE] == filler).all(), f"{name} was written before its start"
        assert (block[inside.stop :] == filler).all(), f"{name} was written past its end"
        results[name] = block[inside].view(arrays[name].dtype).reshape(arrays[name].shape)
    return results


def triton_kernel(entry: KernelEntry, solution: Solution) -> TritonSteps:
    """Load a Triton variant with the launcher of servers."""
    return load(solution, entry.definition)


def run_triton(
    kernel: TritonSteps,
    entry: KernelEntry,
    inputs: dict[str, Array],
    axes: dict[str, int],
    *,
    device: str = "cpu",
) -> dict[str, Array]:
    """Launch a Triton variant once; on CPU tensors it is interpreted."""
    import torch

    definition = entry.definition
    lengths = definition.lengths(axes)
    arrays = dict(inputs)
    for name, spec in definition.outputs.items():
        arrays[name] = np.full(shape_of(spec, lengths), 77, numpy_dtype(spec))
    tensors = {}
    for name, spec in (*definition.inputs.items(), *definition.outputs.items()):
        array = arrays[name]
        plain = torch.from_numpy(array.view(f"i{array.itemsize}")).to(device)
        tensors[name] = plain.view(getattr(torch, spec.dtype.value))
    kernel.launch(list(tensors.values()), list(lengths.values()))
    for name, array in inputs.items():
        assert _bytes_of(tensors[name]) == array.tobytes(), f"input {name} was modified"
    return {
        name: np.frombuffer(_bytes_of(tensors[name]), numpy_dtype(spec)).reshape(
            shape_of(spec, lengths)
        )
        for name, spec in definition.outputs.items()
    }


def _bytes_of(tensor: Any) -> bytes:
    import torch

    return bytes(tensor.cpu().contiguous().view(torch.uint8).numpy().tobytes())


def differs(ours: Array, theirs: Array, *, near: float, step: float = 0.0) -> str:
    """Say what differs from a float64 reference; nothing if nothing does.

    Parameters
    ----------
    ours
        In the output's own type.
    theirs
        The reference.
    near
        Allowed difference, in root mean squares of the reference.
    step
        Allowed difference, relative to each element: the output's own rounding.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = theirs.astype(ours.dtype).astype(np.float64)
    wide, finite = ours.astype(np.float64), np.isfinite(rounded)
    if not np.array_equal(wide[~finite], rounded[~finite], equal_nan=True):
        return "NaN or Inf is something else"
    if not np.isfinite(wide[finite]).all():
        return "NaN or Inf in other places"
    rms = float(np.sqrt(np.mean(theirs[finite] ** 2))) if finite.any() else 0.0
    least = float(np.finfo(np.float16).smallest_subnormal) if ours.dtype == np.float16 else 0.0
    allowed = step * np.abs(theirs[finite]) + near * rms + least
    excess = np.abs(wide[finite] - theirs[finite]) - allowed
    worst = float(np.max(excess, initial=0.0))
    return "" if worst <= 0.0 else f"{worst:.3g} too far where the rms is {rms:.3g}"

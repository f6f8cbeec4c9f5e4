"""A loaded CPU variant: is this launch one it was made for, and if so, launch it.

Everything a native kernel would take on trust is checked on every launch, because a kernel that is
handed the wrong memory does not raise: types, element types, whole shapes, contiguity, device. A
launch that is not eligible is the incumbent's.

Kernels with scratch or a thread pool serve one launch at a time. They are kept in a free list of a
few instances; a launch that finds it empty is the incumbent's too, so that no request ever waits
for another. (Taking an instance costs about 0.1 us, as much as a lock, and does not serialise.)
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from typing import Any

from retuned.runtime.artifact import Artifact, LibraryFile, check_symbol
from retuned.runtime.inforce import Ineligible, Launch, Variant
from retuned.runtime.launch import CpuKernel
from retuned.runtime.shadow import fingerprint
from retuned.runtime.spec import DTYPES, Key, Refused, Spec, Tensor
from retuned.runtime.weights import PackedWeights

_INSTANCES = 2
_INSTANCE_BYTES = 64 << 20
"""Scratch above which only one instance is made."""

_SHAPE = Ineligible("shape")
_KIND = Ineligible("tensor-kind")
_EMPTY = Ineligible("empty")
_AUTOGRAD = Ineligible("autograd")
_BUSY = Ineligible("busy")
_UNPACKED = Ineligible("weight-not-packed")

Allocate = Callable[..., Tensor]
"""(shape, dtype=...) -> new CPU tensor."""


class CpuVariant:
    """One artifact in language ``cpu_cpp``, ready to launch.

    Parameters
    ----------
    artifact
        Verified.
    packed
        The slot's packed weights.

    Raises
    ------
    Refused
        ``torch-missing``, ``dtype-unsupported``, ``load-failed`` or ``entry-missing``.
    """

    def __init__(self, artifact: Artifact, packed: PackedWeights) -> None:
        self._torch = loaded_torch()
        self.spec = artifact.spec
        self.packed = packed
        self.repacked = [
            (index, artifact.layouts[spec.name])
            for index, spec in enumerate(self.spec.inputs)
            if spec.name in artifact.layouts
        ]
        self._plain = (self._torch.Tensor, self._torch.nn.Parameter)
        self._dtypes = [_dtype(self._torch, spec.dtype) for spec in self.spec.inputs]
        self._output_dtypes = [_dtype(self._torch, spec.dtype) for spec in self.spec.outputs]
        self._kernels: deque[CpuKernel] = deque(_load(artifact))
        shared = artifact.parts == 1 and artifact.scratch_bytes == 0
        self._shared = self._kernels[0] if shared else None

    def launcher(self, key: Key) -> Launch:
        """Return what launches at these lengths."""
        return self.launcher_into(key, self._torch.empty)

    def checked_launcher(self, key: Key) -> Launch:
        """Return the same with outputs poisoned beforehand."""
        return self.launcher_into(key, self._poisoned)

    def launcher_into(self, key: Key, allocate: Allocate) -> Launch:
        """Return what launches at these lengths, outputs from `allocate`."""
        lengths = self.spec.lengths(key)
        values = tuple(lengths.values())
        if 0 in values:
            return lambda _: _EMPTY
        eligible = self._eligibility(lengths)
        shapes = [tuple(lengths[a] for a in spec.shape) for spec in self.spec.outputs]
        outputs = list(zip(shapes, self._output_dtypes, strict=True))
        repacked, find, single = self.repacked, self.packed.find, len(outputs) == 1
        kernels, shared = self._kernels, self._shared

        def launch(inputs: tuple[Tensor, ...]) -> Any:  # noqa: ANN401 - tensor, tuple or Ineligible
            problem = eligible(inputs)
            if problem is not None:
                return problem
            used = list(inputs)
            for index, layout in repacked:
                used[index] = find(inputs[index], layout)
                if used[index] is None:
                    return _UNPACKED
            made = [allocate(shape, dtype=dtype) for shape, dtype in outputs]
            pointers = [tensor.data_ptr() for tensor in (*used, *made)]
            if shared is not None:
                shared.launch(pointers, values)
            else:
                try:
                    kernel = kernels.pop()
                except IndexError:
                    return _BUSY
                try:
                    kernel.launch(pointers, values)
                finally:
                    kernels.append(kernel)
            return made[0] if single else tuple(made)

        return launch

    def fingerprint(self, inputs: tuple[Tensor, ...]) -> int:
        """Checksum of the inputs; 0 where the launch will not be taken anyway."""
        plain = self._plain
        for value in inputs:
            if type(value) not in plain or not value.is_cpu or not value.is_contiguous():
                return 0
        return fingerprint(inputs)

    def _eligibility(self, lengths: dict[str, int]) -> Callable[[tuple[Tensor, ...]], Any]:
        shapes = [tuple(lengths[axis] for axis in spec.shape) for spec in self.spec.inputs]
        expected = list(zip(shapes, self._dtypes, strict=True))
        count, plain, grad_enabled = len(expected), self._plain, self._torch.is_grad_enabled

        def eligible(inputs: tuple[Tensor, ...]) -> Ineligible | None:
            if len(inputs) != count:
                return _SHAPE
            gradients = grad_enabled()
            for value, (shape, dtype) in zip(inputs, expected, strict=True):
                if type(value) not in plain:
                    return _KIND
                if value.shape != shape:
                    return _SHAPE
                if value.dtype is not dtype or not value.is_contiguous() or not value.is_cpu:
                    return _KIND
                if gradients and value.requires_grad:
                    return _AUTOGRAD
            return None

        return eligible

    def _poisoned(self, shape: tuple[int, ...], *, dtype: Any) -> Tensor:  # noqa: ANN401
        tensor = self._torch.empty(shape, dtype=dtype)
        poison(tensor)
        return tensor


def poison(tensor: Tensor) -> None:
    """Fill with what no honest kernel leaves behind: NaN, or an odd number in integers."""
    if tensor.is_floating_point():
        tensor.fill_(float("nan"))
    elif not tensor.dtype.is_complex:
        tensor.fill_(1 if str(tensor.dtype) == "torch.bool" else 113)


def loaded_torch() -> Any:  # noqa: ANN401 - the module
    """Return PyTorch if the server has loaded it; the runtime never loads it by itself.

    Raises
    ------
    Refused
        ``torch-missing``.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        raise Refused("torch-missing", detail="this server has not imported PyTorch")
    return torch


def _dtype(torch: Any, name: str) -> Any:  # noqa: ANN401 - a torch.dtype
    if name not in DTYPES or not hasattr(torch, name):
        raise Refused("dtype-unsupported", detail=f"{name} cannot be launched on a CPU here")
    return getattr(torch, name)


def _load(artifact: Artifact) -> list[CpuKernel]:
    """Load the binary, once or as often as launches may overlap."""
    library = LibraryFile(artifact.binary, name=artifact.digest[7:23])
    try:
        check_symbol(library.path, artifact.entry)
        alone = artifact.parts == 1 and artifact.scratch_bytes == 0
        large = artifact.parts * artifact.scratch_bytes > _INSTANCE_BYTES
        spec: Spec = artifact.spec
        return [
            CpuKernel(
                library.path,
                artifact.entry,
                tensors=len(spec.inputs) + len(spec.outputs),
                axes=len(spec.axes),
                parts=artifact.parts,
                scratch_bytes=artifact.scratch_bytes,
            )
            for _ in range(1 if alone or large else _INSTANCES)
        ]
    finally:
        library.clean()


Loader = Callable[[Artifact, PackedWeights], Variant]

LOADERS: dict[str, Loader] = {"cpu_cpp": CpuVariant}
"""Loader per artifact language; GPU languages add themselves here."""

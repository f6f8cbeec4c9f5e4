"""CPU variants: how they are launched; the lab and the server use this same code.

Outputs are arguments; nothing is returned. The ABI of every CPU variant::

    extern "C" void ENTRY(void* const* tensors, const int64_t* axes, void* scratch,
                          int64_t part, int64_t parts);

``tensors``: inputs then outputs in the definition's order. ``axes``: length of every axis of the
definition in declaration order. ``scratch``: ``scratch_bytes`` per part, 64-byte aligned. The
kernel computes its share ``part`` of ``parts`` and creates no threads: Retuned runs the parts.

A loaded variant checks whether a launch is eligible and launches it.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from operator import attrgetter
from pathlib import Path
from typing import Any

from retuned.runtime.artifacts.artifact import Artifact, LibraryFile, check_symbol
from retuned.runtime.artifacts.loaded import BUSY, Allocate, LoadedVariant, Runner
from retuned.runtime.core.active_order import Ineligible, Variant
from retuned.runtime.native.gpu_variant import GpuVariant
from retuned.runtime.native.weights import PackedWeights
from retuned.runtime.schema import Spec, Tensor
from retuned.runtime.triton.variant import TritonVariant

_ALIGN = 64


class CpuKernel:
    """One loaded variant. Loading happens at prepare time, never on the request path.

    Parameters
    ----------
    library
        Path of the shared object. The caller must have verified its digest.
    tensors
        Number of inputs plus outputs.
    axes
        Number of axes of the definition.
    parts
        Number of parts of a launch; more than one run on a thread pool.
    """

    __slots__ = ("_axes_type", "_entry", "_library", "_parts", "_pool", "_scratch", "_tensors_type")

    def __init__(
        self,
        library: Path,
        entry: str,
        *,
        tensors: int,
        axes: int,
        parts: int = 1,
        scratch_bytes: int = 0,
    ) -> None:
        self._library = ctypes.CDLL(str(library), mode=ctypes.RTLD_LOCAL)
        self._entry = getattr(self._library, entry)
        self._entry.restype = None
        self._entry.argtypes = [
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_int64,
            ctypes.c_int64,
        ]
        self._tensors_type = ctypes.c_void_p * tensors
        self._axes_type = ctypes.c_int64 * axes
        self._parts = parts
        self._pool = ThreadPoolExecutor(parts - 1) if parts > 1 else None
        self._scratch = [
            (ctypes.c_byte * (scratch_bytes + _ALIGN))()
            for _ in range(parts if scratch_bytes else 0)
        ]

    def launch(self, pointers: Sequence[int], lengths: Sequence[int]) -> None:
        """Run once. Not reentrant for variants with scratch or several parts."""
        tensors = self._tensors_type(*pointers)
        axes = self._axes_type(*lengths)
        if self._pool is None:
            self._entry(tensors, axes, self._scratch_of(0), 0, 1)
            return
        shares = [
            self._pool.submit(self._entry, tensors, axes, self._scratch_of(part), part, self._parts)
            for part in range(1, self._parts)
        ]
        self._entry(tensors, axes, self._scratch_of(0), 0, self._parts)  # one share needs no thread
        for share in shares:
            share.result()

    def _scratch_of(self, part: int) -> int | None:
        if not self._scratch:
            return None
        address = ctypes.addressof(self._scratch[part])
        return -(-address // _ALIGN) * _ALIGN


_INSTANCES = 2
_INSTANCE_BYTES = 64 << 20
"""Scratch above which only one instance is created."""


class CpuVariant(LoadedVariant):
    """One artifact in language ``cpu_cpp``, ready to launch.

    Parameters
    ----------
    artifact
        Verified.

    Raises
    ------
    Refused
        ``torch-missing``, ``dtype-unsupported``, ``load-failed`` or ``entry-missing``.
    """

    def __init__(self, artifact: Artifact, packed: PackedWeights) -> None:
        super().__init__(artifact, packed)
        self._kernels: deque[CpuKernel] = deque(_load(artifact))
        shared = artifact.parts == 1 and artifact.scratch_bytes == 0
        self._shared = self._kernels[0] if shared else None

    @property
    def device(self) -> Any:  # noqa: ANN401 - torch.device
        return self._torch.device("cpu")

    def is_here(self) -> Callable[[Tensor], bool]:
        return attrgetter("is_cpu")

    def allocate(self) -> Allocate:
        empty: Allocate = self._torch.empty
        return empty

    def runner(self, values: tuple[int, ...]) -> Runner:
        kernels, shared = self._kernels, self._shared

        def run_shared(tensors: Sequence[Tensor]) -> None:
            assert shared is not None, "chosen below"
            shared.launch([tensor.data_ptr() for tensor in tensors], values)

        def run(tensors: Sequence[Tensor]) -> Ineligible | None:
            try:
                kernel = kernels.pop()
            except IndexError:
                return BUSY
            try:
                kernel.launch([tensor.data_ptr() for tensor in tensors], values)
            finally:
                kernels.append(kernel)
            return None

        return run if shared is None else run_shared


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

LOADERS: dict[str, Loader] = {
    "cpu_cpp": CpuVariant,
    "triton": TritonVariant,
    "gpu_cpp": GpuVariant,
}

"""A loaded CPU variant: is this launch one it was made for, and if so, launch it.

Kernels with scratch or a thread pool serve one launch at a time. They are kept in a free list of a
few instances; a launch that finds it empty is the incumbent's too, so that no request ever waits
for another. (Taking an instance costs about 0.1 us, as much as a lock, and does not serialise.)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

from retuned.runtime.artifact import Artifact, LibraryFile, check_symbol
from retuned.runtime.gpu_variant import GpuVariant
from retuned.runtime.inforce import Ineligible, Variant
from retuned.runtime.launch import CpuKernel
from retuned.runtime.loaded import BUSY, Allocate, LoadedVariant, Runner
from retuned.runtime.spec import Spec, Tensor
from retuned.runtime.triton_variant import TritonVariant
from retuned.runtime.weights import PackedWeights

_INSTANCES = 2
_INSTANCE_BYTES = 64 << 20
"""Scratch above which only one instance is made."""


class CpuVariant(LoadedVariant):
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
        super().__init__(artifact, packed)
        self._kernels: deque[CpuKernel] = deque(_load(artifact))
        shared = artifact.parts == 1 and artifact.scratch_bytes == 0
        self._shared = self._kernels[0] if shared else None

    @property
    def device(self) -> Any:  # noqa: ANN401 - torch.device
        """The CPU."""
        return self._torch.device("cpu")

    def is_here(self) -> Callable[[Tensor], bool]:
        """Return whether a tensor is in the CPU's memory."""
        return attrgetter("is_cpu")

    def allocate(self) -> Allocate:
        """Return what allocates an output."""
        empty: Allocate = self._torch.empty
        return empty

    def runner(self, values: tuple[int, ...]) -> Runner:
        """Return what launches at these lengths."""
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
"""Loader per artifact language."""

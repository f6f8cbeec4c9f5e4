"""GPU variant in C++: an object for one architecture, launched on the current stream.

It belongs to one device; the incumbent serves tensors on another one. Nothing is compiled in the
server: the artifact contains the object that the lab has audited and measured. If a launch raises,
the incumbent serves. A kernel that accesses memory out of bounds breaks the context of the whole
process, and nothing here can repair that. Therefore only variants that passed the lab's memory
checks reach a server.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from retuned.runtime.artifacts.artifact import Artifact
from retuned.runtime.artifacts.loaded import Runner
from retuned.runtime.core.active_order import Ineligible
from retuned.runtime.native.device_variant import DeviceVariant
from retuned.runtime.native.gpu_driver import driver_of
from retuned.runtime.native.gpu_launch import GpuKernel
from retuned.runtime.native.weights import PackedWeights
from retuned.runtime.schema import Refused, Tensor


class GpuVariant(DeviceVariant):
    """One artifact in language ``gpu_cpp``: its binary is a cubin or an AMD code object.

    Parameters
    ----------
    artifact
        Verified.

    Raises
    ------
    Refused
        ``torch-missing``, ``gpu-missing``, ``device-unknown``, ``dtype-unsupported``,
        ``driver-missing``, ``load-failed``, ``wrong-arch``, ``entry-missing``, ``grid-invalid`` or
        ``out-of-resources``.
    """

    def __init__(self, artifact: Artifact, packed: PackedWeights) -> None:
        super().__init__(artifact, packed)
        self._device = self._find_gpu("GPU C++")
        spec, scratch = artifact.spec, artifact.scratch_bytes
        self._index = self._device.index or 0
        self._floats = -(-scratch // 4)
        amd = getattr(self._torch.version, "hip", None) is not None
        driver = driver_of("amd" if amd else "nvidia", device=self._index)
        with self._torch.cuda.device(self._device):
            self._torch.cuda.current_stream().synchronize()  # creates PyTorch's context
            self._kernel = GpuKernel(
                artifact.binary,
                entry=artifact.entry,
                params=artifact.params,
                grid=artifact.grid,
                tensors=len(spec.inputs) + len(spec.outputs) + (1 if scratch else 0),
                axes=[name for name, _ in spec.axes],
                driver=driver,
            )

    @property
    def kernel(self) -> GpuKernel:
        return self._kernel

    @property
    def scratch_floats(self) -> int:
        return self._floats

    def hindrance(self, values: tuple[int, ...]) -> Ineligible | None:
        """Return why these lengths can never be launched; None if they can."""
        try:
            self._kernel.grid_at(values)
        except Refused as error:
            return Ineligible(error.reason)
        return None

    def runner(self, values: tuple[int, ...]) -> Runner:
        try:
            self._kernel.grid_at(values)
        except Refused as error:  # these lengths can never be launched
            never = Ineligible(error.reason)
            return lambda _: never
        kernel, stream_of, floats = self._kernel, self._stream_of(), self._floats
        empty, f32, device = self._torch.empty, self._torch.float32, self._device

        def run(tensors: Sequence[Tensor]) -> Ineligible | None:
            pointers = [tensor.data_ptr() for tensor in tensors]
            if floats:
                scratch = empty(floats, dtype=f32, device=device)
                pointers.append(scratch.data_ptr())
            kernel.launch(pointers, values, stream=stream_of())
            return None

        return run if self._torch.cuda.device_count() == 1 else self._on_device(run)

    def _on_device(self, run: Runner) -> Runner:
        cuda, device = self._torch.cuda, self._device

        def guarded(tensors: Sequence[Tensor]) -> Ineligible | None:
            with cuda.device(device):
                return run(tensors)

        return guarded

    def _stream_of(self) -> Callable[[], int]:
        raw = getattr(self._torch._C, "_cuda_getCurrentRawStream", None)
        if raw is not None:
            return partial(raw, self._index)
        cuda, device = self._torch.cuda, self._device
        return lambda: int(cuda.current_stream(device).cuda_stream)

"""Mirrored variants: Triton and compiled GPU C++ over a mirror of the shared memory; child only."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from retuned.runtime.native.gpu_driver import GpuDriver, driver_of
from retuned.runtime.native.gpu_launch import GpuKernel
from retuned.runtime.schema import Refused
from retuned.runtime.triton.launch import TritonSteps

Tensor = Any

_SCRATCH = "float32"
REASONS: Mapping[str, str] = {
    "out-of-resources": "over-limit",
    "grid-invalid": "contract-violated",
    "lengths-too-large": "contract-violated",
    "tensor-unaligned": "contract-violated",
    "device-lost": "crashed",
    "entry-missing": "binary-audit-failed",
    "load-failed": "compile-failed",
    "wrong-arch": "compile-failed",
    "scratch-invalid": "contract-violated",
    "scratch-too-large": "over-limit",
}
"""Launcher codes mapped to verdict reasons; codes not listed are the same in both."""


def refusal(error: Refused) -> dict[str, Any]:
    return {
        "refused": REASONS.get(error.reason, error.reason),
        "detail": " ".join(error.detail.split())[-400:],
    }


class MirroredKernel:
    """One variant, run by the production launcher; tensors and scratch are in the mirror.

    `launch` has ``params``, ``grid``, ``axes`` (names), ``scratch_bytes`` and ``tensors``: name,
    element type and ``{"shape": axes, "repacked": bool}`` of each input, then output. It has
    ``steps`` and named ``scratch`` if there are any.

    Raises
    ------
    Refused
        As `TritonSteps`.
    """

    def __init__(self, source: str, entry: str, launch: Mapping[str, Any]) -> None:
        self._specs = [(dtype, axes) for _, dtype, axes in launch["tensors"]]
        self._axes = {name: place for place, name in enumerate(launch["axes"])}
        self._scratch_bytes = launch["scratch_bytes"]
        self._steps = TritonSteps(
            source,
            entry=entry,
            params=launch["params"],
            grid=launch["grid"],
            tensors=[name for name, _, _ in launch["tensors"]],
            axes=launch["axes"],
            scratch_bytes=self._scratch_bytes,
            steps=launch.get("steps", ()),
            scratch=launch.get("scratch", ()),
        )
        (kernel, *_) = self._steps.kernels
        binding = kernel.binding
        if binding.scratch_at is not None:
            # A server gives fresh memory; here it is one more tensor between red zones, poisoned
            # before every launch, so that it cannot hold state.
            tensors = (*binding.tensors, (binding.scratch_at, len(self._specs)))
            kernel.binding = replace(binding, scratch_at=None, tensors=tensors)

    def prepare(self, lengths: Sequence[int], *, device: Any) -> None:  # noqa: ANN401 - torch.device
        dtypes = [dtype for dtype, _ in self._specs]
        if self._scratch_bytes:
            dtypes.append(_SCRATCH)
        self._steps.prepare(lengths, dtypes=dtypes, device=device)

    def views(
        self,
        mirror: Tensor,
        starts: Sequence[int],
        scratch: Sequence[int],
        lengths: Sequence[int],
    ) -> list[Tensor]:
        """Return inputs, outputs and scratch as tensors over the mirror.

        `starts` holds the offset of each input and output. `scratch` is the offset of the
        workspace, or of each named piece; it is empty without scratch.
        """
        tensors = []
        for start, (dtype, axes) in zip(starts, self._specs, strict=True):
            shape = [lengths[self._axes[axis]] for axis in axes["shape"]] or [1]
            size = math.prod(shape)
            view = _view(mirror, start, size, dtype)
            tensors.append(view if axes["repacked"] else view.view(shape))
        if self._scratch_bytes:
            count = -(-self._scratch_bytes // 4)
            return tensors + [_view(mirror, at, count, _SCRATCH) for at in scratch]
        plan = self._steps.plan
        return tensors + [
            _view(mirror, at, size // each.item_bytes, each.dtype)
            for at, size, each in zip(scratch, plan.sizes_at(lengths), plan.scratch, strict=True)
        ]

    def launch(self, tensors: Sequence[Tensor], lengths: Sequence[int]) -> None:
        self._steps.launch(tensors, lengths)


def _view(mirror: Tensor, start: int, count: int, dtype: str) -> Tensor:
    import torch

    kind = getattr(torch, dtype)
    return mirror[start : start + count * kind.itemsize].view(kind)


"""A `torch.Tensor`."""
LANGUAGE = "gpu_cpp"
"""Language of a ``launch`` whose library is an object and not a source."""


class MirroredObject:
    """One variant, run by the production launcher; tensors and scratch are in the mirror.

    `image` is a cubin or an AMD code object. `launch` has ``params``, ``grid``, ``axes`` (names),
    ``scratch_bytes`` and ``tensors``: name, bytes of an element and axes of each input, then
    output. `driver` is the path of a driver that simulates a device in host memory; None uses the
    device's driver.

    Raises
    ------
    Refused
        As `GpuKernel`.
    """

    def __init__(
        self, image: bytes, entry: str, launch: Mapping[str, Any], *, driver: str | None
    ) -> None:
        import torch

        places = {name: place for place, name in enumerate(launch["axes"])}
        self._specs = [
            (size, [places[axis] for axis in axes]) for _, size, axes in launch["tensors"]
        ]
        self._scratch_bytes = launch["scratch_bytes"]
        amd = getattr(torch.version, "hip", None) is not None
        self._driver: GpuDriver = driver_of("amd" if amd else "nvidia", library=driver)
        self._played = driver is not None
        self._kernel = GpuKernel(
            image,
            entry=entry,
            params=launch["params"],
            grid=launch["grid"],
            tensors=len(self._specs) + (1 if self._scratch_bytes else 0),
            axes=launch["axes"],
            driver=self._driver,
        )

    def prepare(self, lengths: Sequence[int], *, device: Any) -> None:  # noqa: ANN401 - torch.device
        del device
        self._kernel.grid_at(lengths)

    def views(
        self,
        mirror: Tensor,
        starts: Sequence[int],
        scratch: Sequence[int],
        lengths: Sequence[int],
    ) -> list[Tensor]:
        """Return inputs, outputs and scratch as bytes of the mirror.

        `starts` holds the offset of each input and output. `scratch` is the offset of the
        workspace; it is empty without scratch.
        """
        sizes = [size * math.prod(lengths[at] for at in axes) for size, axes in self._specs]
        views = [mirror[at : at + size] for at, size in zip(starts, sizes, strict=True)]
        return views + [mirror[at : at + self._scratch_bytes] for at in scratch]

    def launch(self, tensors: Sequence[Tensor], lengths: Sequence[int]) -> None:
        self._kernel.launch([tensor.data_ptr() for tensor in tensors], lengths)
        if self._played:  # no other code waits for it
            self._driver.wait()

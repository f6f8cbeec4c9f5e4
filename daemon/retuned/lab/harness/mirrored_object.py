"""A compiled GPU C++ variant over a mirror of the shared memory; used in the child only."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from retuned.runtime.gpu_driver import GpuDriver, driver_of
from retuned.runtime.gpu_launch import GpuKernel

Tensor = Any
"""A `torch.Tensor`."""
LANGUAGE = "gpu_cpp"
"""What ``launch`` names where a library is an object and not a source."""


class MirroredObject:
    """One variant, launched by the code that serves it; tensors and scratch lie in the mirror.

    Parameters
    ----------
    image
        A cubin or an AMD code object.
    entry
        Kernel in it.
    launch
        ``params``, ``grid``, ``axes`` (names), ``scratch_bytes`` and ``tensors``: name, bytes of an
        element and axes of each input, then output.
    driver
        Path of a driver that plays a device in this processor's memory; None takes the device's.

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
        """Compute the grid; the code is there.

        Raises
        ------
        Refused
            As `GpuKernel.grid_at`.
        """
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

        Parameters
        ----------
        mirror
            Bytes.
        starts
            Offset of each input and output.
        scratch
            Offset of the workspace; empty where there is none.
        lengths
            Length of every axis.
        """
        sizes = [size * math.prod(lengths[at] for at in axes) for size, axes in self._specs]
        views = [mirror[at : at + size] for at, size in zip(starts, sizes, strict=True)]
        return views + [mirror[at : at + self._scratch_bytes] for at in scratch]

    def launch(self, tensors: Sequence[Tensor], lengths: Sequence[int]) -> None:
        """Launch once, on the stream whose events measure.

        Raises
        ------
        Refused
            As `GpuKernel.launch`.
        """
        self._kernel.launch([tensor.data_ptr() for tensor in tensors], lengths)
        if self._played:  # nobody else waits for it
            self._driver.wait()

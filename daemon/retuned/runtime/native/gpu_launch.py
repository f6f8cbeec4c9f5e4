"""GPU launches of C++ variants; the lab and the server use this same code.

Outputs are arguments; nothing is returned. The entry of every variant::

    extern "C" __global__ void ENTRY(pointers to inputs, then outputs[, float* scratch],
                                     index_t, one for every axis);

Tensors are in the definition's order, dense and row-major; axes in declaration order, 64 bits wide.
Grid and block: see `gpu_bind`.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Mapping, Sequence

from retuned.runtime.native.gpu_bind import LaunchShape, launch_shape
from retuned.runtime.native.gpu_driver import GpuDriver
from retuned.runtime.schema import Refused

ALIGN = 16
"""Addresses of tensors must be multiples of this many bytes."""
_KEPT = 256
"""Lengths whose grid is cached; beyond it the cache is cleared."""


class _Arguments:
    """Memory for the arguments of one launch: the driver reads them during the call."""

    __slots__ = ("axes", "pointers", "table")

    def __init__(self, tensors: int, axes: int) -> None:
        self.pointers = (ctypes.c_uint64 * tensors)()
        self.axes = (ctypes.c_int64 * axes)()
        at = [ctypes.addressof(self.pointers) + 8 * place for place in range(tensors)]
        at += [ctypes.addressof(self.axes) + 8 * place for place in range(axes)]
        self.table = (ctypes.c_void_p * len(at))(*at)


class GpuKernel:
    """One loaded object with its launch.

    Parameters
    ----------
    image
        The object; the caller must have verified its digest.
    params
        Parameters of the variant, including those of `gpu_bind`.
    tensors
        Number of pointers: inputs, outputs, and scratch if there is one.

    Raises
    ------
    Refused
        ``contract-violated``, ``grid-invalid``, or as `DriverFailed`.
    """

    def __init__(
        self,
        image: bytes,
        *,
        entry: str,
        params: Mapping[str, int | str],
        grid: Sequence[str],
        tensors: int,
        axes: Sequence[str],
        driver: GpuDriver,
    ) -> None:
        self.shape: LaunchShape = launch_shape(params=params, grid=grid, axes=axes)
        self._driver = driver
        self._count = tensors
        self._module = driver.load(image)
        try:
            self._kernel = driver.kernel(self._module, entry, shared_bytes=self.shape.shared_bytes)
        except Refused:
            driver.unload(self._module)
            raise
        self._loaded = True
        self._grids: dict[tuple[int, ...], tuple[int, int, int]] = {}
        self._free: deque[_Arguments] = deque()

    @property
    def handle(self) -> int:
        """The driver's handle of the kernel, as in graph nodes; 0 once it is unloaded."""
        return int(self._kernel.value or 0) if self._loaded else 0

    def grid_at(self, lengths: Sequence[int]) -> tuple[int, int, int]:
        """Return the blocks of a launch at these lengths.

        Raises
        ------
        Refused
            ``grid-invalid``.
        """
        key = tuple(lengths)
        found = self._grids.get(key)
        if found is None:
            found = self.shape.grid_at(key)
            if len(self._grids) >= _KEPT:
                self._grids.clear()
            self._grids[key] = found
        return found

    def launch(self, pointers: Sequence[int], lengths: Sequence[int], *, stream: int = 0) -> None:
        """Queue one launch on a stream; may be called from any thread.

        Parameters
        ----------
        stream
            The vendor's handle; 0 is the default stream.

        Raises
        ------
        Refused
            ``tensor-unaligned``, ``grid-invalid``, ``unloaded``, or as `GpuDriver.launch`.
        """
        if not self._loaded:
            raise Refused("unloaded", detail="the object has been unloaded")
        if len(pointers) != self._count:
            raise Refused("contract-violated", detail=f"{len(pointers)} tensors, not {self._count}")
        for place, pointer in enumerate(pointers):
            if pointer % ALIGN:
                raise Refused("tensor-unaligned", detail=f"tensor {place} at {pointer:#x}")
        grid = self.grid_at(lengths)
        try:
            room = self._free.pop()
        except IndexError:  # the first launch, or a concurrent one
            room = _Arguments(self._count, len(lengths))
        try:
            room.pointers[:] = list(pointers)
            room.axes[:] = list(lengths)
            self._driver.launch(
                self._kernel,
                grid=grid,
                block=self.shape.block,
                shared_bytes=self.shape.shared_bytes,
                stream=stream,
                arguments=room.table,
            )
        finally:
            self._free.append(room)

    def unload(self) -> None:
        """Free the object's memory; no launch may be running or follow.

        Raises
        ------
        Refused
            As `GpuDriver.unload`.
        """
        if self._loaded:
            self._loaded = False
            self._driver.unload(self._module)

"""Structures of a kernel node, in the memory layouts of both vendors.

Arguments of a kernel are bytes here. The drivers copy them when a node is set. When a node is read,
they return their own memory, which is valid until the node changes; so everything is copied in both
directions.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from retuned.runtime.schema import Refused

Layout = tuple[tuple[int, int], ...]
"""(offset, size) in bytes of each argument, in order."""

Size = tuple[int, int, int]
"""Along x, y and z."""

MAX_ARGUMENTS = 4096
"""More than any kernel has: its arguments have at most 32 KiB."""
MAX_ARGUMENT_BYTES = 32 << 10
"""All arguments of one kernel on either vendor's devices."""

_BUFFER, _BUFFER_SIZE = 1, 2
"""Markers in ``extra`` before the address of packed arguments, and before that of their size."""
_MAX_EXTRA = 8


class CudaKernelNodeParams(ctypes.Structure):
    """``CUDA_KERNEL_NODE_PARAMS_v2`` of CUDA 12 and later."""

    _fields_ = (
        ("func", ctypes.c_void_p),
        ("gridDimX", ctypes.c_uint),
        ("gridDimY", ctypes.c_uint),
        ("gridDimZ", ctypes.c_uint),
        ("blockDimX", ctypes.c_uint),
        ("blockDimY", ctypes.c_uint),
        ("blockDimZ", ctypes.c_uint),
        ("sharedMemBytes", ctypes.c_uint),
        ("kernelParams", ctypes.c_void_p),
        ("extra", ctypes.c_void_p),
        ("kern", ctypes.c_void_p),
        ("ctx", ctypes.c_void_p),
    )


class Dim3(ctypes.Structure):
    """``dim3``, by value inside HIP's structure."""

    _fields_ = (("x", ctypes.c_uint), ("y", ctypes.c_uint), ("z", ctypes.c_uint))


class HipKernelNodeParams(ctypes.Structure):
    """``hipKernelNodeParams``: the same fields, in alphabetical order."""

    _fields_ = (
        ("blockDim", Dim3),
        ("extra", ctypes.c_void_p),
        ("func", ctypes.c_void_p),
        ("gridDim", Dim3),
        ("kernelParams", ctypes.c_void_p),
        ("sharedMemBytes", ctypes.c_uint),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelParams:
    function: int
    """Handle of the kernel in a module; 0 if the node has `kernel` instead."""
    kernel: int = 0
    """NVIDIA: handle of a kernel that does not belong to a context yet (a library's); else 0."""
    context: int = 0
    """NVIDIA: where `kernel` runs; 0 is the current one."""
    grid: Size
    block: Size
    shared_bytes: int
    arguments: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Packed:
    params: KernelParams
    structure: Any
    """Of the vendor; to be passed to the driver by reference."""
    held: tuple[Any, ...]
    """Buffers that must live as long."""
    layout: Layout


def structure_of(vendor: str) -> type[ctypes.Structure]:
    return CudaKernelNodeParams if vendor == "nvidia" else HipKernelNodeParams


def pack(params: KernelParams, layout: Layout, *, vendor: str) -> Packed:
    values = [ctypes.create_string_buffer(value, len(value)) for value in params.arguments]
    table = (ctypes.c_void_p * max(1, len(values)))(*map(ctypes.addressof, values))
    found: Any = structure_of(vendor)()
    found.func = params.function or None
    found.sharedMemBytes = params.shared_bytes
    found.kernelParams = ctypes.addressof(table)
    if vendor == "nvidia":
        found.gridDimX, found.gridDimY, found.gridDimZ = params.grid
        found.blockDimX, found.blockDimY, found.blockDimZ = params.block
        found.kern, found.ctx = params.kernel or None, params.context or None
    else:
        found.gridDim, found.blockDim = Dim3(*params.grid), Dim3(*params.block)
    return Packed(params, found, (values, table), layout)


def unpack(structure: Any, layout: Layout, *, vendor: str) -> KernelParams:  # noqa: ANN401 - a ctypes structure
    """Copy the driver's answer about a node.

    Raises
    ------
    Refused
        ``layout-differs`` if the node's arguments are not those of its kernel.
    """
    if vendor == "nvidia":
        grid = (structure.gridDimX, structure.gridDimY, structure.gridDimZ)
        block = (structure.blockDimX, structure.blockDimY, structure.blockDimZ)
        kernel, context = structure.kern or 0, structure.ctx or 0
    else:
        grid = (structure.gridDim.x, structure.gridDim.y, structure.gridDim.z)
        block = (structure.blockDim.x, structure.blockDim.y, structure.blockDim.z)
        kernel = context = 0
    return KernelParams(
        function=structure.func or 0,
        kernel=kernel,
        context=context,
        grid=grid,
        block=block,
        shared_bytes=structure.sharedMemBytes,
        arguments=_arguments(structure, layout),
    )


def check_layout(layout: Sequence[tuple[int, int]]) -> Layout:
    """Return a valid layout: in order, without overlap, of a size that kernels have.

    Raises
    ------
    Refused
        ``layout-unknown``.

    Examples
    --------
    >>> check_layout([(0, 8), (8, 4)])
    ((0, 8), (8, 4))
    """
    end = 0
    for offset, size in layout:
        if offset < end or size < 1:
            raise Refused("layout-unknown", detail=f"{size} bytes at {offset}, after {end}")
        end = offset + size
    if len(layout) > MAX_ARGUMENTS or end > MAX_ARGUMENT_BYTES:
        raise Refused("layout-unknown", detail=f"{len(layout)} arguments in {end} bytes")
    return tuple((int(offset), int(size)) for offset, size in layout)


def _arguments(structure: Any, layout: Layout) -> tuple[bytes, ...]:  # noqa: ANN401 - see unpack
    """Copy every argument, from pointers to each or from one packed buffer."""
    if not layout:
        return ()
    if structure.kernelParams:
        table = (ctypes.c_void_p * len(layout)).from_address(structure.kernelParams)
        if not all(table):
            raise Refused("layout-differs", detail="the node has fewer arguments than its kernel")
        return tuple(
            ctypes.string_at(at, size) for at, (_, size) in zip(table, layout, strict=True)
        )
    if structure.extra:
        packed = _packed_buffer(structure.extra)
        if packed is not None and len(packed) >= layout[-1][0] + layout[-1][1]:
            return tuple(packed[offset : offset + size] for offset, size in layout)
    raise Refused("layout-differs", detail="the node has no arguments, but its kernel takes some")


def _packed_buffer(extra: int) -> bytes | None:
    """Return the buffer in ``extra``: pairs of a marker and an address, ended by another marker."""
    words = (ctypes.c_void_p * _MAX_EXTRA).from_address(extra)
    at, size = None, None
    for place in range(0, _MAX_EXTRA, 2):
        word = words[place]
        value = words[place + 1]
        if word == _BUFFER:
            at = value
        elif word == _BUFFER_SIZE and value:
            size = ctypes.c_size_t.from_address(value).value
        else:
            break
    if not at or size is None or size > MAX_ARGUMENT_BYTES:
        return None
    return ctypes.string_at(at, size)

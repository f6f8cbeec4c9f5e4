"""Launch a CPU variant: pointers in, nothing out. The lab and the server use this same code.

The ABI of every CPU variant::

    extern "C" void ENTRY(void* const* tensors, const int64_t* axes, void* scratch,
                          int64_t part, int64_t parts);

``tensors``: inputs then outputs in the definition's order. ``axes``: length of every axis of the
definition in declaration order. ``scratch``: ``scratch_bytes`` per part, 64-byte aligned. The
kernel does its share ``part`` of ``parts`` and owns no threads: Retuned runs the parts.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

_ALIGN = 64


class CpuKernel:
    """One loaded variant. Loading happens at prepare time, never on the request path.

    Parameters
    ----------
    library
        Path of the shared object. Its digest must have been verified by the caller.
    entry
        Symbol name.
    tensors
        Number of inputs plus outputs.
    axes
        Number of axes of the definition.
    parts
        Number of shares a launch is split into; more than one runs them on a thread pool.
    scratch_bytes
        Workspace per part.
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

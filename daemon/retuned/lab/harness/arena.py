"""Shared memory arena of a child: tensors between red zones, placed and read by the parent.

The child gets offsets only. Every tensor lies between two zones filled with a pattern. After a run
the parent checks that the zones still hold the pattern. Two runs with two patterns must give equal
outputs, else the candidate read memory that it did not write. With ``fenced`` the tensor ends at a
page boundary. The child can then make the next page unreadable, and a read past the end becomes a
fault.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np

from retuned.errors import HarnessError
from retuned.lab.subject import Array

PAGE = 4096
_ALIGN = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """Place of one tensor; offsets in bytes from the arena's start."""

    low: int
    start: int
    end: int
    high: int
    fence: int
    """First page boundary at or after the end; pages from here to `high` may be made unreadable."""


class Arena:
    """One block of anonymous shared memory, reused for many layouts of `size_bytes` at most."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = -(-size_bytes // PAGE) * PAGE
        self.fd = os.memfd_create("arena", os.MFD_CLOEXEC)
        os.ftruncate(self.fd, self.size_bytes)
        self._map = mmap.mmap(self.fd, self.size_bytes)
        self._bytes: np.ndarray[Any, np.dtype[np.uint8]] = np.frombuffer(self._map, dtype=np.uint8)
        self._next = 0

    def __enter__(self) -> Arena:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Release the memory; it stays mapped until views still in use are gone."""
        del self._bytes
        with contextlib.suppress(BufferError):
            self._map.close()
        os.close(self.fd)

    @property
    def used_bytes(self) -> int:
        return self._next

    def reset(self) -> None:
        self._next = 0

    def place(self, nbytes: int, *, zone_bytes: int = PAGE, fenced: bool = False) -> Region:
        """Reserve room for a tensor between two zones of at least `zone_bytes`.

        Raises
        ------
        HarnessError
            If the arena is too small.
        """
        zone = -(-max(zone_bytes, 1) // PAGE) * PAGE
        low = self._next
        room = -(-nbytes // PAGE) * PAGE
        start = low + zone
        if fenced:
            start += (room - nbytes) // _ALIGN * _ALIGN
        high = low + zone + room + zone
        if high > self.size_bytes:
            raise HarnessError(f"arena of {self.size_bytes} bytes is too small for {high}")
        self._next = high
        return Region(low=low, start=start, end=start + nbytes, high=high, fence=low + zone + room)

    def view(self, region: Region, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
        return self._bytes[region.start : region.end].view(dtype).reshape(shape)

    def fill_zones(self, regions: Sequence[Region], value: int) -> None:
        for region in regions:
            self._bytes[region.low : region.start] = value
            self._bytes[region.end : region.high] = value

    def fill(self, regions: Sequence[Region], value: int) -> None:
        for region in regions:
            self._bytes[region.start : region.end] = value

    def holds(self, regions: Sequence[Region], value: int) -> bool:
        return all(bool((self._bytes[r.start : r.end] == value).all()) for r in regions)

    def zones_intact(self, regions: Sequence[Region], value: int) -> bool:
        return all(
            bool((self._bytes[low:high] == value).all())
            for region in regions
            for low, high in ((region.low, region.start), (region.end, region.high))
        )

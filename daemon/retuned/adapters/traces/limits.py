"""How much a reader may take, so that no file can take the machine."""

from __future__ import annotations

import os
import resource
from dataclasses import dataclass, field
from pathlib import Path

_MIB = 2**20
_CGROUP = Path("/sys/fs/cgroup")


def available_bytes() -> int:
    """Return what this process may still take: of the machine, its control group, its limits."""
    return max(0, min(_machine_bytes(), _address_space_bytes()))


def _address_space_bytes() -> int:
    """Return what is left below ``ulimit -v``; where none is set, more than any machine has."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return 2**62
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return limit // 2
    return limit - pages * os.sysconf("SC_PAGE_SIZE")


def _machine_bytes() -> int:
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                free = int(line.split()[1]) * 1024
        limit = (_CGROUP / "memory.max").read_text().strip()
        used = int((_CGROUP / "memory.current").read_text())
    except (OSError, ValueError, IndexError):
        return free
    return free if limit == "max" else max(0, min(free, int(limit) - used))


def _document_bytes() -> int:
    return max(8 * _MIB, min(2**30, available_bytes() // 8))


def _rows() -> int:
    return max(50_000, min(20_000_000, available_bytes() // 2_000))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadLimits:
    """Bounds of one read. Where one is met the file is refused and the message says which."""

    input_bytes: int = 64 * 2**30
    """Most bytes after decompression."""
    document_bytes: int = field(default_factory=_document_bytes)
    """Most bytes of a JSON document held whole (rocprofv3 JSON; it takes three times its size)."""
    element_bytes: int = 16 * _MIB
    """Longest single row or event."""
    gzip_ratio: int = 400
    """Most bytes out per byte in; real traces stay below 40."""
    gzip_free_bytes: int = 64 * _MIB
    """Output below which the ratio is not asked."""
    rows: int = field(default_factory=_rows)
    """Most operators and kernels of a Kineto trace, which must be linked in memory (2 kB each)."""
    chunk_bytes: int = 2**18
    """Step in which text is read and decoded; small ones fit the cache and are twice as fast."""
    block_rows: int = 131_072
    """Most launches handed on at once."""

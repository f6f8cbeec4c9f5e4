"""What a device can hold and do at a time, as far as parameters depend on it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from retuned.contract import Language
from retuned.lab.languages.gpu import find_gpu

CPU = "cpu"
"""Beginning of a processor's architecture in an `Environment`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFacts:
    """One device."""

    arch: str
    """As in an `Environment`: ``sm_90``, ``gfx942``, ``cpu:...``."""
    lanes: int
    """Threads that run in step: a warp or a wavefront; 1 on a processor."""
    shared_bytes: int
    """Most shared memory (LDS) of one program; 0 where there is none or it is unknown."""
    registers: int
    """32-bit vector registers of one unit; 0 where unknown."""
    vector_bytes: int
    """Widest load of one thread."""
    units: int
    """Multiprocessors, compute units or cores."""

    @property
    def is_gpu(self) -> bool:
        """Whether programs are launched on it in a grid."""
        return self.lanes > 1

    @property
    def is_amd(self) -> bool:
        """Whether AMD's launch options mean something on it."""
        return self.arch.startswith("gfx")

    @property
    def most_warps(self) -> int:
        """Most warps of a program: 1,024 threads."""
        return 1024 // self.lanes


def _gpu(arch: str, *, lanes: int, shared_kib: int, registers: int, units: int) -> DeviceFacts:
    return DeviceFacts(
        arch=arch,
        lanes=lanes,
        shared_bytes=shared_kib * 1024,
        registers=registers,
        vector_bytes=16,
        units=units,
    )


GPUS: Mapping[str, DeviceFacts] = {
    each.arch: each
    for each in (
        # CUDA C++ Programming Guide, table of compute capabilities; units of the A100, L40S, H100
        # SXM5 and B200.
        _gpu("sm_80", lanes=32, shared_kib=163, registers=65_536, units=108),
        _gpu("sm_89", lanes=32, shared_kib=99, registers=65_536, units=142),
        _gpu("sm_90", lanes=32, shared_kib=227, registers=65_536, units=132),
        _gpu("sm_100", lanes=32, shared_kib=227, registers=65_536, units=148),
        # AMD's CDNA ISA guides: 512 KiB of vector registers a compute unit; units of one die of the
        # MI250X, of the MI300X and the MI355X.
        _gpu("gfx90a", lanes=64, shared_kib=64, registers=131_072, units=110),
        _gpu("gfx942", lanes=64, shared_kib=64, registers=131_072, units=304),
        _gpu("gfx950", lanes=64, shared_kib=160, registers=131_072, units=256),
    )
}
"""By architecture."""


def facts_of(arch: str) -> DeviceFacts | None:
    """Return the facts of an architecture; None if it is unknown.

    Examples
    --------
    >>> facts_of("gfx942").lanes, facts_of("sm_90").lanes, facts_of("abacus")
    (64, 32, None)
    """
    if arch in GPUS:
        return GPUS[arch]
    if arch.partition(":")[0] == CPU:
        return cpu_facts(arch=arch, vector_bytes=16, cores=1)
    return None


def cpu_facts(*, arch: str, vector_bytes: int, cores: int) -> DeviceFacts:
    """Return a processor's facts."""
    return DeviceFacts(
        arch=arch, lanes=1, shared_bytes=0, registers=0, vector_bytes=vector_bytes, units=cores
    )


def facts_here(language: Language, *, cores: int) -> DeviceFacts:
    """Return the device that variants in a language run on here; without a GPU, an ordinary one."""
    if language is Language.CPU_CPP:
        return cpu_facts(arch=CPU, vector_bytes=_widest(), cores=cores)
    gpu = find_gpu()
    if gpu is None:
        return GPUS["sm_80"]
    known = GPUS.get(gpu.arch, replace(GPUS["sm_80"], arch=gpu.arch))
    return replace(
        known,
        units=gpu.units or known.units,
        shared_bytes=gpu.shared_bytes or known.shared_bytes,
    )


@cache
def _widest() -> int:
    """Bytes of the processor's widest vectors: 64 with AVX-512, 32 with AVX2, else 16."""
    if os.uname().machine not in ("x86_64", "AMD64"):
        return 16
    try:
        flags = Path("/proc/cpuinfo").read_text("utf-8", "replace")
    except OSError:
        return 16
    for name, width in (("avx512f", 64), ("avx2", 32)):
        if re.search(rf"\b{name}\b", flags):
            return width
    return 16

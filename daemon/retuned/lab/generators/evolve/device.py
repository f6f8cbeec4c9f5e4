"""Facts about the device that a writer of kernels wants to know; nothing that names the machine."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from retuned.contract import Environment, Language
from retuned.lab.languages.gpu import target_of
from retuned.lab.physics import GPU_PEAKS

_ISA = (
    ("avx512f", "AVX-512"),
    ("avx512_vnni", "AVX-512 VNNI"),
    ("avx512_bf16", "AVX-512 BF16"),
    ("amx_tile", "AMX"),
    ("avx2", "AVX2"),
    ("fma", "FMA"),
    ("f16c", "F16C"),
    ("asimd", "NEON"),
    ("sve", "SVE"),
)
_CPUINFO = Path("/proc/cpuinfo")
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_NOTES: Mapping[str, str] = {
    "sm_80": "warps of 32, 108 multiprocessors, tensor cores by mma, asynchronous copies to shared",
    "sm_89": "warps of 32, tensor cores by mma with fp8, asynchronous copies to shared memory",
    "sm_90": "warps of 32, 132 multiprocessors, tensor cores by warp-group mma (64 rows of four "
    "warps), TMA, clusters",
    "sm_100": "warps of 32, fifth-generation tensor cores, TMA, clusters",
    "gfx90a": "wavefronts of 64, MFMA 32x32 and 16x16, 64 KiB LDS of 32 banks, 512 VGPR a lane",
    "gfx942": "wavefronts of 64, 304 compute units, MFMA 32x32 and 16x16, fp8 e4m3fnuz, 64 KiB LDS "
    "of 32 banks of 4 bytes, 512 VGPR a lane shared by resident waves",
    "gfx950": "wavefronts of 64, 256 compute units, MFMA with fp8, fp6 and fp4, 160 KiB LDS",
}
"""From the vendors' architecture manuals."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceBrief:
    """Known facts; zeros and empty text where unknown."""

    arch: str
    """As evidence names it."""
    cores: int = 0
    """Cores a launch may use; 0 for a GPU."""
    lanes: int = 0
    """Threads of a warp; 0 for a CPU."""
    gbytes_per_s: float = 0.0
    """From memory."""
    gflops: float = 0.0
    """Float32 outside matrix units."""
    cache_bytes: int = 0
    """Last-level cache."""
    shared_bytes: int = 0
    """Shared memory or LDS of one program."""
    notes: tuple[str, ...] = ()
    """Sentences."""

    def lines(self) -> list[str]:
        """Return them for a prompt."""
        numbers = (
            (self.cores, "cores for this kernel: {}"),
            (self.lanes, "threads of a warp: {}"),
            (self.gbytes_per_s, "memory: {:g} GB/s"),
            (self.gflops, "vector units: {:g} GFLOP/s float32"),
            (self.cache_bytes // 1024, "last-level cache: {} KiB"),
            (self.shared_bytes, "shared memory of a program: {} bytes"),
        )
        return [
            f"architecture: {self.arch}",
            *(text.format(value) for value, text in numbers if value),
            *self.notes,
        ]


def brief_of(language: Language, environment: Environment, *, cores: int) -> DeviceBrief:
    """Return the known facts of the device that a language's variants run on."""
    if language is Language.CPU_CPP:
        return cpu_brief(environment.arch, cores=cores)
    return gpu_brief(environment.arch)


def gpu_brief(arch: str, *, shared_bytes: int = 0) -> DeviceBrief:
    """Return a GPU's facts from tables.

    Examples
    --------
    >>> gpu_brief("gfx942").lanes, gpu_brief("sm_90").lanes
    (64, 32)
    """
    peak = GPU_PEAKS.get(arch)
    known = arch.startswith(("sm_", "gfx"))
    return DeviceBrief(
        arch=arch,
        lanes=target_of(arch)[2] if known else 0,
        gbytes_per_s=peak.gbytes_per_s if peak else 0.0,
        gflops=peak.gflops if peak else 0.0,
        cache_bytes=peak.cache_bytes if peak else 0,
        shared_bytes=shared_bytes,
        notes=(_NOTES[arch],) if arch in _NOTES else (),
    )


def cpu_brief(
    arch: str, *, cores: int, cpuinfo: Path = _CPUINFO, caches: Path = _CACHES
) -> DeviceBrief:
    """Return this machine's processor's facts; what cannot be read is left out."""
    flags = set(_flags(_read(cpuinfo)))
    named = [word for flag, word in _ISA if flag in flags]
    notes = [f"vector instructions: {', '.join(named)}"] if named else []
    sizes = _cache_sizes(caches)
    notes += [f"level-{level} cache: {size // 1024} KiB" for level, size in sorted(sizes.items())]
    return DeviceBrief(arch=arch.partition(" (")[0], cores=cores, notes=tuple(notes))


def _flags(text: str) -> list[str]:
    found = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1].split() if found else []


def _cache_sizes(folder: Path) -> dict[int, int]:
    """Return bytes per level, of data and unified caches."""
    sizes: dict[int, int] = {}
    for index in range(8):
        place = folder / f"index{index}"
        level, kind, size = (_read(place / name).strip() for name in ("level", "type", "size"))
        found = re.fullmatch(r"(\d{1,9})([KM])", size)
        if level.isdecimal() and found and kind in ("Data", "Unified"):
            sizes[int(level)] = int(found[1]) * (1024 if found[2] == "K" else 2**20)
    return sizes


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")[:100_000]
    except OSError:
        return ""

"""Architecture limits: resources of a multiprocessor or compute unit, with their sources."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

_CUDA = "CUDA C++ Programming Guide, technical specifications per compute capability"
_LLVM = "LLVM AMDGPU target: IsaInfo and the user guide's kernel descriptor"


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchLimits:
    arch: str
    source: str
    """Source of the numbers."""
    lanes: int
    waves: int
    blocks: int
    registers: int
    """Vector registers of a unit, each of one thread's width."""
    registers_per_thread: int
    register_granule: int
    """Allocation step of registers: per thread (AMD) or per warp (NVIDIA)."""
    scalars_for_all_waves: int = 0
    """Scalar registers per wave that never limit occupancy; 0 if scalars never do."""
    simds: int = 4
    shared_bytes: int
    shared_per_block_bytes: int
    """Maximum per block, on request."""
    shared_reserved_bytes: int = 0
    """Reserved by the system in each block."""
    shared_granule_bytes: int = 128

    @property
    def is_amd(self) -> bool:
        """Whether registers are counted per lane of a SIMD."""
        return self.arch.startswith("gfx")


_SM80 = ArchLimits(
    arch="sm_80",
    source=_CUDA,
    lanes=32,
    waves=64,
    blocks=32,
    registers=65_536,
    registers_per_thread=255,
    register_granule=256,
    shared_bytes=164 * 1024,
    shared_per_block_bytes=163 * 1024,
    shared_reserved_bytes=1024,
)
_SMALL = replace(
    _SM80,
    arch="sm_86",
    waves=48,
    blocks=16,
    shared_bytes=100 * 1024,
    shared_per_block_bytes=99 * 1024,
)
_SM90 = replace(_SM80, arch="sm_90", shared_bytes=228 * 1024, shared_per_block_bytes=227 * 1024)
_GFX942 = ArchLimits(
    arch="gfx942",
    source=_LLVM,
    lanes=64,
    waves=32,
    blocks=16,
    registers=4 * 512 * 64,
    registers_per_thread=512,
    register_granule=8,
    scalars_for_all_waves=100,
    shared_bytes=64 * 1024,
    shared_per_block_bytes=64 * 1024,
    shared_granule_bytes=512,
)
_TABLE: Mapping[str, ArchLimits] = {
    limits.arch: limits
    for limits in (
        _SM80,
        _SMALL,
        replace(_SMALL, arch="sm_89", blocks=24),
        _SM90,
        replace(_SM90, arch="sm_100"),
        replace(_SMALL, arch="sm_120", blocks=24),
        replace(_GFX942, arch="gfx90a"),
        _GFX942,
        replace(
            _GFX942,
            arch="gfx950",
            shared_bytes=160 * 1024,
            shared_per_block_bytes=160 * 1024,
            shared_granule_bytes=1280,
        ),
    )
}


def known_architectures() -> tuple[str, ...]:
    return tuple(_TABLE)


def limits_of(arch: str) -> ArchLimits | None:
    """Return the limits of an architecture, or None if unknown.

    Examples
    --------
    >>> [limits_of(arch).shared_per_block_bytes for arch in ("gfx942", "gfx950", "sm_90")]
    [65536, 163840, 232448]
    """
    return _TABLE.get(arch)

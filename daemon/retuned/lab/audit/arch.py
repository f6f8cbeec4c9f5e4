"""What a multiprocessor or compute unit of each architecture has to give, and who says so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

_CUDA = "CUDA C++ Programming Guide, technical specifications per compute capability"
_LLVM = "LLVM AMDGPU target: IsaInfo and the user guide's kernel descriptor"


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchLimits:
    """Limits of one architecture."""

    arch: str
    """Such as ``sm_90`` or ``gfx942``."""
    source: str
    """Where the numbers are from."""
    lanes: int
    """Threads of a wave or warp."""
    waves: int
    """Most waves or warps that a unit holds."""
    blocks: int
    """Most blocks that a unit holds."""
    registers: int
    """Vector registers of a unit, each as wide as a number of one thread."""
    registers_per_thread: int
    """Most that one thread may have."""
    register_granule: int
    """Registers of a thread (AMD), or of a warp (NVIDIA), are given out in these steps."""
    scalars_for_all_waves: int = 0
    """Up to so many scalar registers a wave, scalars limit nothing; 0 where they never do."""
    simds: int = 4
    """Parts of a unit; waves of a block are spread over them."""
    shared_bytes: int
    """Shared memory (LDS) of a unit."""
    shared_per_block_bytes: int
    """Most that one block may have, once it is asked for."""
    shared_reserved_bytes: int = 0
    """Taken by the system from each block."""
    shared_granule_bytes: int = 128
    """Given out in these steps."""

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
    """Return the architectures whose limits are known."""
    return tuple(_TABLE)


def limits_of(arch: str) -> ArchLimits | None:
    """Return the limits of an architecture; None where this version has no numbers.

    Examples
    --------
    >>> [limits_of(arch).shared_per_block_bytes for arch in ("gfx942", "gfx950", "sm_90")]
    [65536, 163840, 232448]
    """
    return _TABLE.get(arch)

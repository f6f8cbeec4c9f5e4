"""Occupancy estimate: waves of a kernel that a compute unit can hold, and the limiter. Pure."""

from __future__ import annotations

from pydantic import Field

from retuned.contract import Record
from retuned.lab.audit.arch import ArchLimits
from retuned.lab.audit.facts import KernelFacts


class Occupancy(Record):
    """An estimate from resources alone, not a measurement."""

    waves: int = Field(ge=0)
    """Waves or warps resident on a unit; 0 if not even one block fits."""
    of: int = Field(ge=1)
    blocks: int = Field(ge=0)
    limited_by: str
    """The limiter: ``registers``, ``scalars``, ``shared``, ``blocks`` or ``waves``."""
    source: str


def occupancy(
    facts: KernelFacts, limits: ArchLimits, *, threads: int, shared_bytes: int
) -> Occupancy:
    """Estimate the occupancy of one kernel.

    `threads` and `shared_bytes` are per block; `shared_bytes` includes the launch's part.

    Examples
    --------
    >>> from retuned.lab.audit.arch import limits_of
    >>> wide = KernelFacts(name="k", registers=128)
    >>> found = occupancy(wide, limits_of("gfx942"), threads=256, shared_bytes=0)
    >>> found.waves, found.of, found.limited_by
    (16, 32, 'registers')
    """
    waves = max(1, -(-threads // limits.lanes))
    fitting = {
        "waves": limits.waves // waves,
        # Blocks of one wave need no barrier; a unit of AMD's has one barrier per block.
        "blocks": limits.waves if limits.is_amd and waves == 1 else limits.blocks,
        "registers": _by_registers(facts.registers, limits, waves),
        "shared": _by_shared(shared_bytes, limits),
    }
    if facts.scalars is not None and 0 < limits.scalars_for_all_waves < facts.scalars:
        fitting["scalars"] = (limits.waves - limits.simds) // waves
    blocks = max(0, min(fitting.values()))
    stopped = next(name for name, count in fitting.items() if count <= blocks)
    return Occupancy(
        waves=blocks * waves,
        of=limits.waves,
        blocks=blocks,
        limited_by=stopped,
        source=limits.source,
    )


def _by_registers(registers: int, limits: ArchLimits, waves: int) -> int:
    if registers > limits.registers_per_thread:
        return 0
    if limits.is_amd:
        each = -(-max(registers, 1) // limits.register_granule) * limits.register_granule
        per_simd = limits.registers // limits.simds // limits.lanes // each
        return min(per_simd * limits.simds, limits.waves) // waves
    each = -(-max(registers, 1) * limits.lanes // limits.register_granule)
    in_unit = limits.registers // (each * limits.register_granule)
    whole = -(-waves // limits.simds) * limits.simds  # warps are given registers four at a time
    return in_unit // limits.simds * limits.simds // whole


def _by_shared(shared_bytes: int, limits: ArchLimits) -> int:
    if shared_bytes > limits.shared_per_block_bytes:
        return 0
    taken = shared_bytes + limits.shared_reserved_bytes
    taken = -(-taken // limits.shared_granule_bytes) * limits.shared_granule_bytes
    return limits.shared_bytes // taken if taken else limits.waves

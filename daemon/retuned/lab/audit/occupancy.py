"""How many waves of a kernel a compute unit can hold at once, and what stops it. Pure."""

from __future__ import annotations

from pydantic import Field

from retuned.contract import Record
from retuned.lab.audit.arch import ArchLimits
from retuned.lab.audit.facts import KernelFacts


class Occupancy(Record):
    """An estimate from resources alone; nothing was run."""

    waves: int = Field(ge=0)
    """Waves or warps resident on a unit; 0 where not even one block fits."""
    of: int = Field(ge=1)
    """Most that a unit holds."""
    blocks: int = Field(ge=0)
    """Blocks resident on a unit."""
    limited_by: str
    """What stops more: ``registers``, ``scalars``, ``shared``, ``blocks`` or ``waves``."""
    source: str
    """Whose numbers of the architecture were used."""


def occupancy(
    facts: KernelFacts, limits: ArchLimits, *, threads: int, shared_bytes: int
) -> Occupancy:
    """Estimate the occupancy of one kernel.

    Parameters
    ----------
    facts
        Its registers.
    limits
        The architecture's.
    threads
        Of a block.
    shared_bytes
        Of a block, with what the launch adds.

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
        # Waves of a single one need no barrier, of which a unit of AMD's has one a block.
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

"""Kernel facts from an object file, in terms common to both vendors."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelFacts:
    """One kernel, as its object describes it; None where the vendor's format has no such value."""

    name: str
    registers: int
    """Vector registers of a thread (AMD: of a lane), accumulators included."""
    accumulators: int | None = None
    scalars: int | None = None
    spilled: int | None = None
    """Vector and scalar registers that the compiler spilled to memory."""
    shared_bytes: int = 0
    """Shared memory (LDS) that the object reserves, without the launch's dynamic part."""
    scratch_bytes: int = 0
    """Private memory of a thread: spills, arrays, the stack."""
    kernarg_bytes: int = 0
    max_threads: int | None = None
    lanes: int | None = None
    host_calls: tuple[str, ...] = ()
    """Calls to the host: printing, assertions, others."""
    host_buffers: tuple[str, ...] = ()
    """Host communication buffers in its arguments, used or not."""
    dynamic_stack: bool = False
    """Whether it may need more private memory than declared: recursion, indirect calls."""
    contradictions: tuple[str, ...] = ()
    """Differences between the metadata and the hardware descriptor."""

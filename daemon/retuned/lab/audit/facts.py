"""What one kernel of an object file says about itself, in the words of both vendors."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelFacts:
    """One kernel, as its object describes it; None where that vendor's format does not say."""

    name: str
    """Symbol."""
    registers: int
    """Vector registers of a thread (AMD: of a lane), accumulators included."""
    accumulators: int | None = None
    """Accumulator registers among them."""
    scalars: int | None = None
    """Scalar registers of a wave."""
    spilled: int | None = None
    """Registers, vector and scalar, that the compiler had to keep in memory."""
    shared_bytes: int = 0
    """Shared memory (LDS) that the object itself reserves; what a launch adds is not in it."""
    scratch_bytes: int = 0
    """Private memory of a thread: spills, arrays, the stack."""
    kernarg_bytes: int = 0
    """Arguments."""
    max_threads: int | None = None
    """Largest block it was compiled for."""
    lanes: int | None = None
    """Threads of a wave or warp."""
    host_calls: tuple[str, ...] = ()
    """Ways to the host: printing, assertions, calls."""
    host_buffers: tuple[str, ...] = ()
    """Buffers for talking to the host that it is given, whether or not it uses them."""
    dynamic_stack: bool = False
    """Whether it needs more private memory than it says: recursion, calls by address."""
    contradictions: tuple[str, ...] = ()
    """Where the description and what the hardware is told differ."""

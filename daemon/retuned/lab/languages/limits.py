"""Compiler limits for untrusted source."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileLimits:
    """Bounds of one compiler run."""

    wall_s: float = 180.0
    """Killed after this; far above the processor time, because other load may have the cores."""
    cpu_s: int = 25
    memory_bytes: int = 3 * 2**30
    file_bytes: int = 32 * 2**20

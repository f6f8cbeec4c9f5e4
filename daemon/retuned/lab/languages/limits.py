"""Bounds of a compiler that reads what a stranger wrote."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileLimits:
    """Bounds of one compiler run."""

    wall_s: float = 180.0
    """Killed after this: far beyond its processor time, for others may have the cores."""
    cpu_s: int = 25
    """Processor time."""
    memory_bytes: int = 3 * 2**30
    """Address space."""
    file_bytes: int = 32 * 2**20
    """Largest file it may write."""

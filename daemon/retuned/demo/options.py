"""How long each scene of the demo is, and who approves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from retuned.demo.outcome import Plot


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """How long each scene is, and who approves."""

    folder: Path
    """State, traces, sockets and logs of this run."""
    config: Path
    """Settings of the daemon, as a user would write them."""
    approve: Callable[[str], None] | None
    """Approves a proposal by id; None waits for a person."""
    device: str = "cpu"
    """Where the server's kernels run: ``cpu`` or ``cuda``."""
    seed: int = 0
    """Of weights and traffic."""
    in_flight: int = 4
    """Requests in flight: the kernels that the server comes with were tuned for one stream."""
    measure_s: float = 8.0
    """Length of one throughput measurement."""
    ramp_s: float = 2.0
    """Left out after traffic changed."""
    plot: Plot = Plot.HELPFUL
    """Which story is played."""
    rest_s: float = 2.0
    """The lab rests when no experiment and no live proof has run for so long; the next one would
    begin within it."""
    baseline_timeout_s: float = 120.0
    """Longest wait for the baseline."""
    drift_timeout_s: float = 60.0
    """Longest wait for the drift report."""
    experiments_timeout_s: float = 300.0
    """Longest wait for experiments to rest, counted again from each step of a proposal or its live
    proof. The wait for a person's approval has no limit."""
    rollback_timeout_s: float = 60.0
    """Longest wait for the daemon to find the injected fault."""

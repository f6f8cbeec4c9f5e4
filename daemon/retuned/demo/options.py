"""How long each scene of the demo is, and who approves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


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
    toggles: int = 6
    """How often the swap is switched on and off again for the comparison."""
    toggle_s: float = 3.0
    """Length of one measurement of the comparison: short, and the order turns round
    each time, so that drift of the machine cancels."""
    toggle_ramp_s: float = 0.5
    """Left out after a toggle: several times the longest request of code traffic."""
    rest_s: float = 2.0
    """The lab rests when no experiment has run for so long; the next one would begin within it."""
    baseline_timeout_s: float = 120.0
    """Longest wait for the baseline."""
    drift_timeout_s: float = 60.0
    """Longest wait for the drift report."""
    experiments_timeout_s: float = 200.0
    """Longest wait for experiments to rest, counted anew from each proposal; a person who has to
    approve is waited for without end."""
    rollback_timeout_s: float = 60.0
    """Longest wait for the daemon to find the injected fault."""

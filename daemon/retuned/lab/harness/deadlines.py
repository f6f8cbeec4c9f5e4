"""Deadlines of a child, counted in its own run time and not in wall time."""

from __future__ import annotations

import os
import time
from pathlib import Path

from retuned.lab.harness.processes import is_ready

_LOOK_S = 0.1
_STARVED_S = 30.0
"""Extra wall time for a child that hardly runs because of other load, or that waits forever."""
_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")


class ChildDeadline:
    """Waits for a child's response until the child has used its time.

    A deadline on wall time alone would blame a kernel for other load. On an overloaded or suspended
    machine, a launch of a millisecond may be answered after ten seconds. The deadline ends when all
    threads of the child `pid` together have run for `own_s`. For a child that does not run, such as
    one that waits for a device, it ends half a minute later. A late poll counts as if it had come
    in time.
    """

    def __init__(self, pid: int, own_s: float) -> None:
        self._pid = pid
        self._own_s = own_s
        self._ran_before_s = _ran_s(pid)
        self._waited_s = 0.0

    def until_ready(self, descriptor: int) -> bool:
        """Wait until a descriptor can be read; return False when the child's time is used up."""
        while not self._over():
            look_s = min(_LOOK_S, max(self._own_s - self._waited_s, 0.01))
            began_s = time.monotonic()
            ready = is_ready(descriptor, timeout_s=look_s)
            self._waited_s += min(time.monotonic() - began_s, 2.0 * look_s)
            if ready:
                return True
        return False

    def _over(self) -> bool:
        if self._waited_s < self._own_s:
            return False
        ran_s = _ran_s(self._pid)
        if ran_s is None or self._ran_before_s is None:
            return True
        ran_s -= self._ran_before_s
        return ran_s >= self._own_s or self._waited_s >= self._own_s + _STARVED_S


def _ran_s(pid: int) -> float | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
        user, system = text.rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) * _TICK_S
    except (OSError, ValueError):
        return None

"""How long a child may take: counted in its own time, not in what the machine took from it."""

from __future__ import annotations

import os
import time
from pathlib import Path

from retuned.lab.harness.processes import is_ready

_LOOK_S = 0.1
"""Between two looks."""
_STARVED_S = 30.0
"""Beyond its time, for a child that hardly runs: others have the cores, or it waits for ever."""
_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")


class ChildDeadline:
    """Waits for a child's word until the child has had its time.

    A deadline on the wall alone would blame a kernel for what others do: on a machine that is
    overloaded, or that stands still for some seconds, an honest launch of a millisecond may be
    answered after ten seconds. Time is over for a child that ran so long itself; for one that does
    not run, as one that waits for a device, half a minute later. A look that comes late counts as
    if it had come in time: while nobody could look, nobody could answer.

    Parameters
    ----------
    pid
        The child; what its threads run is counted together.
    own_s
        Time that it may take.
    """

    def __init__(self, pid: int, own_s: float) -> None:
        self._pid = pid
        self._own_s = own_s
        self._ran_before_s = _ran_s(pid)
        self._waited_s = 0.0

    def until_ready(self, descriptor: int) -> bool:
        """Wait until a descriptor can be read; False once the child's time is over."""
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
    """Return what all threads of a process ran; None where it is gone or nobody tells."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
        user, system = text.rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) * _TICK_S
    except (OSError, ValueError):
        return None

"""What compiling for a running server may cost: a share of the time, and how much it was.

The control thread compiles what launches asked for in vain. Most of that holds the interpreter's
lock, and the server's threads wait for it meanwhile. So after each compilation nothing is compiled
until its time is no more than a share of all; launches that need code stay the incumbent's so long.
"""

from __future__ import annotations

import time
from collections.abc import Callable

SHARE = 0.05
"""Most time of compiling over time passed."""


class CompileBudget:
    """Compilations of the control thread.

    Parameters
    ----------
    share
        Most time of compiling over time passed, above 0.
    clock
        Monotonic seconds.
    """

    def __init__(
        self, share: float = SHARE, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._share = share
        self._clock = clock
        self._resumes_s = float("-inf")
        self._compiles = 0
        self._spent_s = 0.0
        self._longest_s = 0.0
        self._put_off = 0

    def do(self, piece: Callable[[], int], *, waiting: int) -> None:
        """Compile a piece, or put it off where the share is used up; raises what the piece raises.

        Parameters
        ----------
        piece
            Compiles one of what was asked for; returns how many it was.
        waiting
            How many were asked for.
        """
        if waiting and self._clock() < self._resumes_s:
            self._put_off += 1
            return
        begun_s = self._clock()
        made = 0
        try:
            made = piece()
        finally:
            if waiting:  # what fails has taken its time too
                ended_s = self._clock()
                took_s = ended_s - begun_s
                self._compiles += made
                self._spent_s += took_s
                self._longest_s = max(self._longest_s, took_s)
                self._resumes_s = ended_s + took_s * (1.0 / self._share - 1.0)

    def state(self) -> dict[str, int | float]:
        """Return what was compiled while serving, as JSON data."""
        return {
            "compiles": self._compiles,
            "compile_s": self._spent_s,
            "longest_s": self._longest_s,
            "put_off": self._put_off,
        }

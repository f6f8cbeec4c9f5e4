"""Compile budget of a running server: a share of the time, and how much was used.

The control thread compiles code that launches need. Most of that holds the interpreter's lock, and
the server's threads wait for it. So after each compilation the thread pauses until the compile time
is at most a share of all time. Until then the incumbent serves launches that need code.
"""

from __future__ import annotations

import time
from collections.abc import Callable

SHARE = 0.05
"""Maximum time of compiling as a share of elapsed time."""


class CompileBudget:
    """Compilations of the control thread.

    Parameters
    ----------
    share
        Maximum time of compiling as a share of elapsed time, above 0.
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
        """Compile a piece, or postpone it if the share is used up; raises what the piece raises.

        Parameters
        ----------
        piece
            Runs one pending compilation; returns how many were compiled.
        """
        if waiting and self._clock() < self._resumes_s:
            self._put_off += 1
            return
        begun_s = self._clock()
        made = 0
        try:
            made = piece()
        finally:
            if waiting:  # a failed compilation has used time too
                ended_s = self._clock()
                took_s = ended_s - begun_s
                self._compiles += made
                self._spent_s += took_s
                self._longest_s = max(self._longest_s, took_s)
                self._resumes_s = ended_s + took_s * (1.0 / self._share - 1.0)

    def state(self) -> dict[str, int | float]:
        return {
            "compiles": self._compiles,
            "compile_s": self._spent_s,
            "longest_s": self._longest_s,
            "put_off": self._put_off,
        }

"""Timing of the server's own launches on the device: a few of them, by events.

From time to time a kernel is armed: one of its next launches, at a random position, is timed
(`steps.launch_timer`). The clock bounds how many launches are timed: one of each kernel per round,
whatever the load. Other launches pay nothing for it, because an armed kernel takes the path of
kernels with a slot. Launches that are captured into a graph are not timed.

A server that keeps its device busy gives valid samples; on an idle stream a launch is only counted.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterable
from typing import Any

from retuned.runtime.intercept.registry import Cell, Kernel
from retuned.runtime.shadow.device import quiet
from retuned.runtime.shadow.pending_checks import Quiet
from retuned.runtime.steps.launch_timer import Device, LaunchTimer

MOST_SKIPPED = 64
"""Launches of an armed kernel that may pass before the timed one."""
ROUND_S = 1.0
"""Seconds between two rounds, each of which arms every kernel once."""


def timing_is_asked() -> bool:
    """Whether ``RETUNED_TRITON_TIMING=on`` is set."""
    return os.environ.get("RETUNED_TRITON_TIMING", "").strip().lower() in ("on", "1", "true")


class Probe:
    """Times one launch of an armed kernel."""

    __slots__ = ("_skip", "_watch")

    def __init__(self, watch: Stopwatch, skip: int) -> None:
        self._watch = watch
        self._skip = skip

    def begin(self, kernel: Kernel) -> Any | None:  # noqa: ANN401 - the device's own
        """Mark the start of a launch if it is the one to be timed; never raises."""
        if self._skip > 0:
            self._skip -= 1
            return None
        kernel.disarm()
        return self._watch.begin()

    def end(self, begun: Any, cell: Cell) -> None:  # noqa: ANN401 - the device's own
        """Mark its end; never raises."""
        self._watch.end(begun, cell)


class Stopwatch(LaunchTimer):
    """Arms kernels and collects the time of their launches.

    Parameters
    ----------
    device, quiet
        As `LaunchTimer`.
    random_source
        Chooses the launch; a seeded one in tests.
    """

    def __init__(
        self,
        device: Device | None = None,
        *,
        random_source: random.Random | None = None,
        clock: Callable[[], float] = time.monotonic,
        quiet: Quiet = quiet,
    ) -> None:
        super().__init__(device, quiet=quiet)
        self._random = random_source or random.SystemRandom()
        self._clock = clock
        self._next_s = 0.0

    def round(self, kernels: Iterable[Kernel]) -> None:
        """Collect completed samples, and arm every kernel if it is time; called by maintenance."""
        self.gather()
        if self._clock() < self._next_s:
            return
        self._next_s = self._clock() + ROUND_S
        for kernel in kernels:
            if not kernel.interpreted:
                kernel.arm(Probe(self, self._random.randrange(MOST_SKIPPED)))

"""Kernels in place: times of one slot's launches while steps are labelled, by arm and lengths.

The slot may be a tunable, whose lengths are those of its size classes.

Both arms run on the same traffic and are timed alike: at most one launch in `EVERY_S`, whatever the
load. Each other launch pays for a count. Launches that graphs replay are not seen.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from retuned.runtime.schema import Key
from retuned.runtime.steps.launch_timer import Device, LaunchTimer, moments

if TYPE_CHECKING:
    from retuned.runtime.core.tables import Run
    from retuned.runtime.steps.log import StepLog

EVERY_S = 0.01
"""Between two launches that are timed, seconds."""
MOST_SAMPLES = 128
"""Times kept of one arm and length, the newest."""
MOST_KEYS = 64
"""Lengths that are timed; further ones are not seen."""
ON, OFF = "on", "off"


class Timed(Protocol):
    """What launches: a slot, or a tunable."""

    def time_launches(self, times: LaunchTimes | None) -> None:
        """Pass launches through `LaunchTimes.wrap` from now on; None ends that."""
        ...


class LaunchCell:
    """Launches of one arm and length."""

    __slots__ = ("idle", "launches", "samples_ns")

    def __init__(self) -> None:
        self.launches = 0
        self.idle = 0
        """Of those, launches that were to be timed, and on an idle stream."""
        self.samples_ns: deque[int] = deque(maxlen=MOST_SAMPLES)

    def time(self, took_ns: int) -> None:
        self.samples_ns.append(took_ns)


class LaunchTimes:
    """Launches of one slot at a time.

    Parameters
    ----------
    log
        Its label says in which arm a launch is.
    device
        Returns what marks moments, asked when a slot is followed.
    """

    def __init__(
        self,
        log: StepLog,
        *,
        device: Callable[[], Device] = moments,
        now_s: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._log, self._device, self._now_s = log, device, now_s
        self._slot: Timed | None = None
        self._timer: LaunchTimer | None = None
        self._cells: dict[Key, dict[str, LaunchCell]] = {}
        self._next_s = 0.0

    def after_fork(self) -> None:
        """Follow nothing in a child; its slots start over by themselves."""
        self._slot = self._timer = None
        self._cells = {}

    # --- control thread -------------------------------------------------------------------------

    def follow(self, slot: Timed) -> None:
        """Count and time the launches of a slot from now on, and of no other one.

        Without a recording nothing would end it, so nothing is followed.
        """
        if slot is self._slot or not self._log.recording:
            return
        self.leave()
        self._slot, self._timer, self._cells = slot, LaunchTimer(self._device()), {}
        slot.time_launches(self)

    def leave(self) -> None:
        """Follow no slot; what was measured stays until another one is followed."""
        slot, self._slot = self._slot, None
        if slot is not None:
            slot.time_launches(None)

    def forget(self) -> None:
        """Follow no slot, and forget what was measured."""
        self.leave()
        self._cells = {}

    def rows(self) -> list[dict[str, Any]]:
        """Return what was measured: arm, lengths, launches, and times in microseconds."""
        if self._timer is not None:
            self._timer.gather()
        return [
            {
                "arm": arm,
                "lengths": list(key),
                "launches": cell.launches,
                "idle": cell.idle,
                "us": [round(took_ns / 1e3, 2) for took_ns in tuple(cell.samples_ns)],
            }
            for key, cells in sorted(self._cells.copy().items())
            for arm, cell in cells.items()
            if cell.launches
        ]

    # --- on the launching thread ----------------------------------------------------------------

    def wrap(self, key: Key, run: Run) -> Run:
        """Return a function that launches, counts, and times now and then."""
        cells = self._cells.get(key)
        if cells is None:
            if len(self._cells) >= MOST_KEYS:
                return run
            cells = self._cells.setdefault(key, {ON: LaunchCell(), OFF: LaunchCell()})
        on, off, log, timer = cells[ON], cells[OFF], self._log, self._timer
        if timer is None:
            return run

        def counted(*inputs: Any) -> Any:  # noqa: ANN401 - result of the launch
            arm = log.arm
            if not arm:
                return run(*inputs)
            cell = on if arm.endswith(ON) else off
            cell.launches += 1
            now_s = self._now_s()
            if now_s < self._next_s:
                return run(*inputs)
            self._next_s = now_s + EVERY_S
            begun = timer.begin()
            output = run(*inputs)
            if begun is not None:
                timer.end(begun, cell)
            return output

        return counted

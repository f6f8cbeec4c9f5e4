"""Kernels in place: times of one slot's launches while steps are labelled, by arm and lengths.

The slot may be a tunable, whose lengths are those of its size classes.

Both arms run on the same traffic and are timed alike: at most one launch in `EVERY_S`, whatever the
load. Each other launch pays for a count. Launches that graphs replay are not seen.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
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
        span = self.span(key)
        if span is None:
            return run

        def counted(*inputs: Any) -> Any:  # noqa: ANN401 - result of the launch
            begun = span.begin()
            output = run(*inputs)
            if begun is not None:
                span.end(begun)
            return output

        return counted

    def span(self, key: Key) -> LaunchSpan | None:
        """Return what counts and times launches of one length; None if no further one is seen."""
        cells = self._cells.get(key)
        if cells is None:
            if len(self._cells) >= MOST_KEYS:
                return None
            cells = self._cells.setdefault(key, {ON: LaunchCell(), OFF: LaunchCell()})
        timer = self._timer
        return None if timer is None else LaunchSpan(self, cells, timer=timer, log=self._log)

    def is_due(self) -> bool:
        """Whether the present launch is to be timed; the next one is due after `EVERY_S`."""
        now_s = self._now_s()
        if now_s < self._next_s:
            return False
        self._next_s = now_s + EVERY_S
        return True


class LaunchSpan:
    """Counts launches of one length, and times some of them, between two calls of the launcher.

    Parameters
    ----------
    times
        Says whether a launch is to be timed.
    cells
        Launches of each arm.
    timer
        Marks moments.
    log
        Its label says in which arm a launch is.
    """

    __slots__ = ("_log", "_off", "_on", "_timer", "_times")

    def __init__(
        self,
        times: LaunchTimes,
        cells: Mapping[str, LaunchCell],
        *,
        timer: LaunchTimer,
        log: StepLog,
    ) -> None:
        self._times, self._timer, self._log = times, timer, log
        self._on, self._off = cells[ON], cells[OFF]

    def begin(self) -> tuple[LaunchCell, Any] | None:
        """Count a launch that begins now; return what `end` takes, None if it is not timed."""
        arm = self._log.arm
        if not arm:
            return None
        cell = self._on if arm.endswith(ON) else self._off
        cell.launches += 1
        mark = self._timer.begin() if self._times.is_due() else None
        return None if mark is None else (cell, mark)

    def end(self, begun: tuple[LaunchCell, Any]) -> None:
        """Take the end of a launch that `begin` has marked; never raises into the server."""
        cell, mark = begun
        self._timer.end(mark, cell)

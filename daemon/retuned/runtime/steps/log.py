"""Records of steps, made only while a daemon asks for them.

The launching thread makes two marks a step and appends one object. Marks are read by the control
thread once they are reached. A record has these fields, in this order:

``index``, ``arm``, ``prefill``, ``decode``, ``context``, ``graph``
    As `Composition`, under the label in force when the step began.
``period_us``
    From the end of the previous step to the end of this one, on the device's timeline. None after
    idling, and where the previous step has no record or no mark.
``busy_us``
    From the begin of the step to its end on the device's timeline; None without a device. If the
    device waits when the step begins, the host's time until the first launch is part of it.
``host_us``
    Time of the launching thread inside the server's calls for this step.
``ended_s``
    When the host's part ended, seconds of the monotonic clock; the device may end later.

The ring drops the oldest records. An index without a record is a lost step.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from retuned.runtime.schema import Refused
from retuned.runtime.shadow.device import quiet
from retuned.runtime.steps.clock import Mark, StepClock, step_clock
from retuned.runtime.steps.composition import Composition, Gaps

log = logging.getLogger(__name__)

FIELDS = (
    *("index", "arm", "prefill", "decode", "context", "graph"),
    *("period_us", "busy_us", "host_us", "ended_s"),
)
RING = 16_384
"""Records that are kept."""
LEASE_S = 60.0
"""Recording ends this long after the last request for records."""
MAX_ARM = 32
TIMED = "steps-timed"
"""Reason code of what would slow down the steps of a labelled block."""

Record = tuple[int, str, int, int, int, int, float | None, float | None, float, float]


class _Step:
    """A step under way, or one whose end the device has not reached."""

    __slots__ = (
        *("index", "arm", "work", "graph", "clock", "before", "begin", "end"),
        *("host_s", "since_s", "ended_s"),
    )

    def __init__(self, index: int, arm: str, work: Composition, clock: StepClock) -> None:
        self.index, self.arm, self.work, self.clock = index, arm, work, clock
        self.graph = 0
        self.before: Mark | None = None
        """End of the previous step."""
        self.end: Mark | None = None
        self.host_s = self.ended_s = 0.0
        self.begin: Mark | None = clock.mark()
        self.since_s = time.perf_counter()


class StepLog:
    """Records of this process's steps.

    Parameters
    ----------
    clock
        Returns the clock for a recording.
    when_off
        Called when a recording ends, on any thread; must not raise.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], StepClock] = step_clock,
        when_off: Callable[[], None] = lambda: None,
        ring: int = RING,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock_of, self._when_off, self._size, self._now_s = clock, when_off, ring, now_s
        self._left: list[object] = []
        self._renew()

    def _renew(self) -> None:
        self.recording = False
        """The one attribute that a step reads while nothing is recorded."""
        self.arm = ""
        """Label of the steps that begin from now on."""
        self.fault = ""
        """Reason code if recording ended by an error."""
        self._settling = threading.Lock()
        self._until_s = 0.0
        self._index = 0
        self._open: _Step | None = None
        self._last: tuple[int, Mark | None] | None = None
        """Index and end of the last step."""
        self._clock: StepClock | None = None
        self._head: _Step | None = None
        """The oldest step that has ended on the host only."""
        self._pending: deque[_Step] = deque(maxlen=self._size)
        self._ring: deque[Record] = deque(maxlen=self._size)
        self._gaps = Gaps()

    def after_fork(self) -> None:
        """Start over in a child; events of the parent are kept alive, not freed."""
        self._left.append((self._pending, self._head, self._open, self._last, self._clock))
        self._renew()

    # --- on the control thread ----------------------------------------------------------------

    def start(self) -> None:
        """Record steps for `LEASE_S` from now on."""
        self._until_s = self._now_s() + LEASE_S
        if not self.recording:
            self.fault = ""
            self._last = self._clock = None
            self.recording = True

    def stop(self) -> None:
        """Record no step that begins from now on; records stay, the label does not."""
        self.arm = ""
        if self.recording:
            self.recording = False
            self._when_off()

    def expire(self) -> None:
        """End a recording whose time is over."""
        if self.recording and self._now_s() > self._until_s:
            self.stop()

    def renew(self) -> None:
        """Extend a recording; one whose time is over ends."""
        self.expire()
        self._until_s = self._now_s() + LEASE_S

    def take(self, *, since: int | None, limit: int) -> dict[str, Any]:
        """Return the records from an index on, oldest first; None asks for later ones.

        An index that was not given out yet is another process's: the answer starts at the first.
        """
        self.settle()
        with self._settling:
            begin = self._index if since is None else since
            if begin > self._index:
                begin = 0
            fresh: list[Record] = []
            for record in reversed(self._ring):
                if record[0] < begin:
                    break
                fresh.append(record)
            page = fresh[::-1][:limit]
            end = page[-1][0] + 1 if page else begin
            return {
                "records": page,
                "next": end,
                "lost": end - begin - len(page),
                "pending": len(self._pending) + (self._head is not None),
            }

    def settle(self) -> None:
        """Complete the records of steps whose end is reached; never waits for the device."""
        if self._head is None and not self._pending:
            return
        with self._settling:
            try:
                with quiet():  # no capture begins while events are read
                    self._settle()
            except Refused:
                pass  # a capture is under way: later
            except RuntimeError:
                log.exception("steps are not recorded any more: the device's events fail")
                self._head = None
                self._pending.clear()
                self.fail("device-lost")

    def _settle(self) -> None:
        while True:
            if self._head is None:
                try:
                    self._head = self._pending.popleft()
                except IndexError:
                    return
            step = self._head
            if step.end is not None and not step.clock.arrived(step.end):
                return
            self._ring.append(_record(step, self._gaps))
            self._head = None
            for mark in (step.begin, step.before):  # the end is the next step's
                if mark is not None:
                    step.clock.release(mark)

    # --- on the launching thread --------------------------------------------------------------

    @property
    def under_way(self) -> bool:
        """Whether a step that is recorded has begun and not ended."""
        return self._open is not None

    def begin(self, work: Composition) -> None:
        """Begin a step; one that has begun and not ended is lost."""
        self._open = None
        if self._now_s() > self._until_s:
            self.stop()
            return
        if self._clock is None:
            self._clock = self._clock_of()
        self._open = _Step(self._index, self.arm, work, self._clock)
        self._index += 1

    def rest(self, graph: int) -> None:
        """Leave the server's call; another call for the same step follows."""
        step = self._open
        if step is not None:
            step.graph = graph
            step.host_s += time.perf_counter() - step.since_s

    def go_on(self) -> None:
        """Enter a further call for the same step."""
        if self._open is not None:
            self._open.since_s = time.perf_counter()

    def end(self, graph: int | None = None) -> None:
        """End the step: its last work is launched."""
        step, self._open = self._open, None
        if step is None:
            return
        step.host_s += time.perf_counter() - step.since_s
        if graph is not None:
            step.graph = graph
        step.end = step.clock.mark()
        step.ended_s = self._now_s()
        last, self._last = self._last, (step.index, step.end)
        if last is not None and last[0] + 1 == step.index and not step.work.after_idle:
            step.before = last[1]
        self._pending.append(step)

    def drop(self) -> None:
        """Forget the step under way: it has failed, or an earlier one was in its place."""
        self._open = None

    def fail(self, reason: str) -> None:
        """End the recording by an error."""
        self._open = None
        self.stop()
        self.fault = reason


def _record(step: _Step, gaps: Gaps) -> Record:
    clock, end = step.clock, step.end
    period_us = busy_us = None
    if end is not None and step.before is not None and not _waited(step, gaps):
        period_us = round(clock.elapsed_us(step.before, end), 2)
    if end is not None and step.begin is not None and clock.on_device:
        busy_us = round(clock.elapsed_us(step.begin, end), 2)
    prefill, decode, context = step.work[:3]
    return (
        *(step.index, step.arm, prefill, decode, context, step.graph),
        *(period_us, busy_us, round(1e6 * step.host_s, 2), round(step.ended_s, 6)),
    )


def _waited(step: _Step, gaps: Gaps) -> bool:
    """Return whether the server waited for work before a step with a known end before it."""
    if not step.work.may_have_waited:
        return False
    if step.begin is None:  # it began during a capture
        return True
    return gaps.waited(1e-6 * step.clock.elapsed_us(step.before, step.begin))


def arm_in(request: Mapping[str, object]) -> str | None:
    """Return the label in a request; None without one.

    Raises
    ------
    Refused
        ``bad-request``.
    """
    value = request.get("arm")
    if value is None:
        return None
    if not isinstance(value, str) or not 0 < len(value) <= MAX_ARM or not value.isprintable():
        raise Refused("bad-request", detail=f"'arm' has 1 to {MAX_ARM} printable characters")
    return value

"""Channels at work: one thread looks for what is to be said and keeps it, one per channel sends it.

They have connections of their own: no channel that hangs holds anything else up, another channel
neither.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial

from retuned.channels.delivering import deliver, give_up_unset, show
from retuned.channels.outbox import Outbox
from retuned.channels.sinks import Sink
from retuned.errors import RetunedError
from retuned.ports import Clock, Telemetry

log = logging.getLogger(__name__)

_LOOK_S = 1.0
_FORGET_S = 3600.0
_END_S = 3.0


class Channels:
    """Looks at what is to be said, and says it.

    Parameters
    ----------
    outbox
        A connection of its own.
    sinks
        Where it is said.
    say
        Puts what there is to say now into the outbox.
    clock
        Time.
    telemetry
        Counts messages.
    may
        Whether this process is the one that says things now; asked before each message.
    look_s
        How often it looks, seconds.
    """

    def __init__(
        self,
        outbox: Outbox,
        sinks: Sequence[Sink],
        *,
        say: Callable[[datetime], object],
        clock: Clock,
        telemetry: Telemetry,
        may: Callable[[], bool] = lambda: True,
        look_s: float = _LOOK_S,
    ) -> None:
        self._telemetry = telemetry
        self._outbox = outbox
        self._say = say
        self._clock = clock
        self._may = may
        self._stop = threading.Event()
        self._lines = [_Line(sink, outbox, clock=clock, telemetry=telemetry) for sink in sinks]
        self._forgotten_s = float("-inf")
        self._ended = threading.Event()
        """Only ever set to end a pause of the thread that looks."""
        steps: list[tuple[str, Callable[[], None], threading.Event]]
        steps = [("look", self._keep_up, self._ended)]
        steps += [
            (line.name, partial(line.send, self._may_send), line.wake) for line in self._lines
        ]
        self._threads = [
            threading.Thread(
                target=_repeat,
                args=(step, self._stop, wake, look_s),
                name=f"channels {name}",
                daemon=True,
            )
            for name, step, wake in steps
        ]

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End; what is under way gets a few seconds in all, and what is not sent is kept."""
        self._stop.set()
        for wake in (self._ended, *(line.wake for line in self._lines)):
            wake.set()
        until_s = time.monotonic() + _END_S
        for thread in self._threads:
            if thread.is_alive():
                thread.join(max(0.0, until_s - time.monotonic()))

    def look(self) -> None:
        """Do everything once, one channel after the other."""
        if not self._may():
            return
        self._look()
        for line in self._lines:
            line.send(self._may)
        self._show()

    # --- within -----------------------------------------------------------------------------------

    def _keep_up(self) -> None:
        if self._may():
            self._look()
            self._show()
        if self._clock.monotonic_s() - self._forgotten_s > _FORGET_S:
            self._outbox.forget(now=self._clock.now())
            self._forgotten_s = self._clock.monotonic_s()

    def _look(self) -> None:
        now = self._clock.now()
        self._say(now)
        names = [line.name for line in self._lines]
        give_up_unset(self._outbox, names, now=now, telemetry=self._telemetry)
        for line in self._lines:
            line.wake.set()

    def _show(self) -> None:
        names = [line.name for line in self._lines]
        show(self._outbox, names, telemetry=self._telemetry)

    def _may_send(self) -> bool:
        return not self._stop.is_set() and self._may()


class _Line:
    """One channel: it has at most one message under way."""

    def __init__(self, sink: Sink, outbox: Outbox, *, clock: Clock, telemetry: Telemetry) -> None:
        self.name = sink.name
        self.wake = threading.Event()
        """Set when there may be something to send."""
        self._sink = sink
        self._outbox = outbox
        self._clock = clock
        self._telemetry = telemetry
        self._busy = threading.Lock()

    def send(self, may: Callable[[], bool]) -> None:
        """Send what is due, while it may."""
        with self._busy:
            deliver(
                self._outbox,
                self._sink,
                now=self._clock.now,
                telemetry=self._telemetry,
                may=may,
            )


def _repeat(
    step: Callable[[], None], stop: threading.Event, wake: threading.Event, pause_s: float
) -> None:
    """Do something again and again until the end, at the latest after each pause."""
    while not stop.is_set():
        try:
            step()
        except RetunedError as error:  # a full disk, or a busy one: it is all kept
            log.warning("channels: %s", error)
        except Exception:  # nobody is told of anything any more if this thread ends
            if stop.is_set():  # its connections were closed while it hung
                return
            log.exception("channels failed, and are tried again")
        wake.wait(pause_s)
        if not stop.is_set():
            wake.clear()

"""Channels at work: what is to be said is looked for, kept and sent, on a thread of their own.

They have connections of their own: no channel that hangs holds anything else up.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from datetime import datetime

from retuned.channels.delivering import deliver, show
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
        self._by_name = {sink.name: sink for sink in sinks}
        self._say = say
        self._clock = clock
        self._may = may
        self._look_s = look_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="channels", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End; what is under way gets a few seconds, and what is not sent is kept."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(_END_S)

    def look(self) -> None:
        """Do everything once."""
        if not self._may():
            return
        self._say(self._clock.now())
        deliver(
            self._outbox,
            self._by_name,
            now=self._clock.now,
            telemetry=self._telemetry,
            may=self._may,
        )
        show(self._outbox, tuple(self._by_name), telemetry=self._telemetry)

    def _run(self) -> None:
        forgotten_s = float("-inf")
        while not self._stop.is_set():
            try:
                self.look()
                if self._clock.monotonic_s() - forgotten_s > _FORGET_S:
                    self._outbox.forget(now=self._clock.now())
                    forgotten_s = self._clock.monotonic_s()
            except RetunedError as error:  # a full disk, or a busy one: it is all kept
                log.warning("channels: %s", error)
            except Exception:
                if self._stop.is_set():  # its connections were closed while it hung
                    return
                log.exception("channels failed, and are tried again")
            self._stop.wait(self._look_s)

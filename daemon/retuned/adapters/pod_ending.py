"""How a pod of an experiment ends when production takes its place: in time, whatever it does then.

A pod is told by SIGTERM and killed five seconds later. Whoever is told may be deep in a compiler or
in a launch, so a thread of its own reacts: the signal's number arrives on a pipe, which needs no
turn of the main thread.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from retuned.adapters.pod_results import PREEMPTED, clear, summary, write_message
from retuned.adapters.pod_task import PodSettings

_PUBLISHING_S = 3.0
"""Results that are being written become whole in that time, or they are none."""


class Preemption:
    """Ends the process on SIGTERM while it is entered; the main thread enters it.

    Parameters
    ----------
    settings
        Where partial results lie, and where the message goes.
    """

    def __init__(self, settings: PodSettings) -> None:
        self.plan = ""
        """Id of the plan, once it is known."""
        self._settings = settings
        self._lock = threading.Lock()
        self._over = False

    def __enter__(self) -> Preemption:
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.signal(signal.SIGTERM, lambda _number, _frame: None)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        threading.Thread(target=self._wait, args=(reader,), daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        signal.set_wakeup_fd(-1)

    @contextmanager
    def last_words(self) -> Iterator[None]:
        """Let what is done now come to its end, where that is soon; nothing ends it afterwards."""
        with self._lock:
            yield
            self._over = True

    def _wait(self, reader: int) -> None:
        while signal.SIGTERM not in os.read(reader, 64):
            pass
        # The lock is kept: nothing new begins after this.
        self._lock.acquire(timeout=_PUBLISHING_S)
        if self._over:
            self._lock.release()
            return
        clear(self._settings.results)
        body = summary(self._settings.role, self.plan, exit_code=PREEMPTED)
        told = ("preempted", "the pod was told to end before anything was complete")
        write_message(self._settings.message, body, failed=told)
        os._exit(PREEMPTED)

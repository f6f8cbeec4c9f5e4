"""The sender of notices: a bounded queue in memory that one thread drains.

Level-triggered: each pass asks for the notices that hold now, sends the new ones and repeats open
alerts. A channel gets a key once while the process runs; a failure waits for the next pass.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta

from retuned.errors import RetunedError
from retuned.notify.http import Answer, Sink
from retuned.notify.messages import Notice, Severity, Standing
from retuned.ports import Clock, Telemetry
from retuned.text import clean

log = logging.getLogger(__name__)

MAX_WAITING = 1000
"""Messages that wait, over all channels; the next pass offers again what did not fit."""
MAX_SENT = 20_000
_RANK = {Severity.CRITICAL: 0, Severity.WARNING: 1, Severity.INFO: 2}
_END_S, _AFTER_FAILURE_S = 3.0, 5.0


class Sender:
    """Sends notices to channels; it calls `may` before each message, and sends if that is true."""

    def __init__(
        self,
        sinks: Sequence[Sink],
        *,
        clock: Clock,
        telemetry: Telemetry,
        may: Callable[[], bool] = lambda: True,
    ) -> None:
        self.begun = clock.now()
        """Events before this time are not reported."""
        self._sinks = {sink.name: sink for sink in sinks}
        self._clock, self._telemetry, self._may = clock, telemetry, may
        self._waiting: dict[tuple[str, str], tuple[Notice, datetime]] = {}
        self._sent: dict[tuple[str, str], None] = {}
        self._open: dict[str, Notice] = {}
        self._rounds: dict[str, int] = {}
        self._tried: set[tuple[str, str]] = set()
        """Channels and subjects whose opening may have arrived."""
        self._repeat: dict[tuple[str, str], tuple[Notice, datetime]] = {}
        self._pause_s = 0.0
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def rounds(self, subject: str) -> int:
        """Return how often a subject was closed while this process ran."""
        return self._rounds.get(subject, 0)

    def opened(self) -> Sequence[str]:
        return list(self._open)

    def last_opening(self, subject: str) -> Notice | None:
        return self._open.get(subject)

    def put(self, notice: Notice) -> int:
        """Queue a notice for each channel that takes it; return for how many it is new."""
        closes = notice.standing is Standing.CLOSE
        if notice.standing is Standing.OPEN:
            self._open[notice.subject] = notice
        if closes and notice.subject in self._open:
            del self._open[notice.subject]
            self._rounds[notice.subject] = self.rounds(notice.subject) + 1
        put = 0
        for name, sink in self._sinks.items():
            key, about = (name, notice.key), (name, notice.subject)
            if not sink.takes(notice) or key in self._sent or key in self._waiting:
                continue
            if notice.standing is not Standing.TELL:
                self._overtake(about)
            if closes and about not in self._tried:
                continue
            if closes or len(self._waiting) < MAX_WAITING:
                self._waiting[key] = (notice, self._clock.now())
                put += 1
        return put

    def drain(self) -> int:
        """Send what is due, the most severe first; return how many messages were taken."""
        now, taken, failed = self._clock.now(), 0, set[str]()
        for (name, _), (notice, due) in list(self._repeat.items()):
            if due <= now:
                self._waiting.setdefault((name, notice.key), (notice, now))
        due_now = sorted(self._waiting.items(), key=lambda each: _RANK[each[1][0].severity])
        for (name, key), (notice, _) in due_now:
            if self._ended.is_set() or not self._may():
                break
            if name in failed:
                continue
            outcome = self._send(self._sinks[name], notice)
            if outcome == "failed":
                failed.add(name)
            else:
                self._waiting.pop((name, key), None)
                self._sent[name, key] = None
            taken += outcome == "sent"
            self._telemetry.count("retuned_channel_messages_total", channel=name, outcome=outcome)
        while len(self._sent) > MAX_SENT:
            del self._sent[next(iter(self._sent))]
        self._pause_s = _AFTER_FAILURE_S if failed else 0.0
        self._show()
        return taken

    def run_pass(self, notices: Callable[[datetime], Iterable[Notice]]) -> None:
        """Queue the notices that hold now and send what is due, if this process sends."""
        if self._may():
            for notice in notices(self._clock.now()):
                self.put(notice)
            self.drain()

    def start(self, notices: Callable[[datetime], Iterable[Notice]], *, every_s: float) -> None:
        run = threading.Thread(target=self._run, args=(notices, every_s), name="notify")
        run.daemon, self._thread = True, run
        run.start()

    def stop(self) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join(_END_S)

    def _run(self, notices: Callable[[datetime], Iterable[Notice]], every_s: float) -> None:
        while not self._ended.is_set():
            try:
                self.run_pass(notices)
            except RetunedError as error:  # the next pass starts from the same state
                log.warning("notifications: %s", error)
            except Exception:
                if self._ended.is_set():  # the store was closed while it hung
                    return
                log.exception("notifications failed; the next pass tries again")
            self._ended.wait(max(every_s, self._pause_s))

    def _send(self, sink: Sink, notice: Notice) -> str:
        now, about = self._clock.now(), (sink.name, notice.subject)
        if notice.until <= now:
            log.warning("%s: not sent in time: %s", sink.name, clean(notice.summary))
            self._repeat.pop(about, None)
            return "given-up"
        if notice.standing is Standing.OPEN:
            self._tried.add(about)
        try:
            answer = sink.send(notice, now=now)
        except RetunedError as error:  # a secret that cannot be read: its file may come yet
            answer = Answer(taken=False, detail=str(error))
        if not answer.taken:
            log.warning("%s: %s not sent: %s", sink.name, notice.event, clean(answer.detail))
            return "failed"
        if notice.standing is Standing.CLOSE:
            self._tried.discard(about)
        elif notice.standing is Standing.OPEN and sink.again_s is not None:
            self._repeat[about] = (notice, now + timedelta(seconds=sink.again_s))
        return "sent"

    def _overtake(self, about: tuple[str, str]) -> None:
        """Remove older messages of a subject that open or close it."""
        self._repeat.pop(about, None)
        for (name, key), (old, _) in list(self._waiting.items()):
            if (name, old.subject) == about and old.standing is not Standing.TELL:
                del self._waiting[name, key]

    def _show(self) -> None:
        counts, oldest = [], []
        for channel in self._sinks:
            since = [at for (name, _), (_, at) in self._waiting.items() if name == channel]
            counts.append(({"channel": channel}, float(len(since))))
            if since:
                oldest.append(({"channel": channel}, min(since).timestamp()))
        self._telemetry.table("retuned_channel_messages_waiting", counts)
        self._telemetry.table("retuned_channel_oldest_waiting_timestamp_seconds", oldest)

"""From the outbox to the channels: what is due is sent, what fails is tried again later."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import datetime

from retuned.channels.outbox import Outbox, Waiting
from retuned.channels.posting import Answer
from retuned.channels.records import Notice
from retuned.channels.sinks import Sink
from retuned.errors import RetunedError
from retuned.ports import Telemetry
from retuned.text import clean

log = logging.getLogger(__name__)

_FIRST_S = 5.0
_MOST_S = 900.0
_REFUSED_S = 900.0
"""Wait after an answer that trying again will hardly change: somebody has to mend a setting."""


def say(outbox: Outbox, notice: Notice, sinks: Sequence[Sink], *, now: datetime) -> int:
    """Keep a notice for every channel that says such things; return for how many it is new."""
    channels = [sink.name for sink in sinks if sink.takes(notice)]
    return outbox.put(notice, channels=channels, now=now) if channels else 0


def deliver(
    outbox: Outbox,
    sink: Sink,
    *,
    now: Callable[[], datetime],
    telemetry: Telemetry,
    limit: int = 16,
    may: Callable[[], bool] = lambda: True,
) -> int:
    """Send what is due on one channel and return how many were taken.

    What comes next is asked anew after each message: what presses need not wait until a channel
    that hangs has been asked to take all the rest.

    Parameters
    ----------
    limit
        Messages at most.
    may
        Whether this process is still the one that sends; asked before each message.
    """
    taken = 0
    for _ in range(limit):
        waiting = outbox.due(sink.name, now=now()) if may() else None
        if waiting is None:
            break
        if waiting.notice.until <= now():
            outbox.give_up(waiting.seq, error="too-late", now=now())
            log.warning("%s: not said in time: %s", sink.name, clean(waiting.notice.summary))
            outcome = "given-up"
        else:
            outcome = "sent" if _deliver(outbox, sink, waiting, now=now) else "failed"
        taken += outcome == "sent"
        telemetry.count("retuned_channel_messages_total", channel=sink.name, outcome=outcome)
    return taken


def give_up_unset(
    outbox: Outbox, channels: Sequence[str], *, now: datetime, telemetry: Telemetry
) -> None:
    """Give up what is for channels that are set no more."""
    for name, count in outbox.give_up_unset(channels, now=now).items():
        log.warning("%s is not set any more: %d messages are not said", name, count)
        telemetry.count(
            "retuned_channel_messages_total", float(count), channel=name, outcome="given-up"
        )


def show(outbox: Outbox, channels: Sequence[str], *, telemetry: Telemetry) -> None:
    """Show what waits.

    Parameters
    ----------
    channels
        Those that are set: one for which nothing waits shows 0.
    """
    found = outbox.waiting()
    none = (0, None)
    counts = [({"channel": name}, float(found.get(name, none)[0])) for name in channels]
    oldest = [({"channel": name}, found[name][1].timestamp()) for name in channels if name in found]
    telemetry.table("retuned_channel_messages_waiting", counts)
    telemetry.table("retuned_channel_oldest_waiting_timestamp_seconds", oldest)


def pause_s(answer: Answer, *, attempts: int) -> float:
    """Return how long to wait before the next try, seconds.

    Parameters
    ----------
    attempts
        How often it was tried, this time included.

    Examples
    --------
    >>> [pause_s(Answer(taken=False, again=True), attempts=n) for n in (1, 2, 3, 20)]
    [5.0, 10.0, 20.0, 900.0]
    >>> pause_s(Answer(taken=False, again=True, pause_s=60.0), attempts=1)
    60.0
    """
    if not answer.again:
        return _REFUSED_S
    return max(answer.pause_s, min(_MOST_S, _FIRST_S * 2.0 ** min(attempts - 1, 16)))


def _deliver(outbox: Outbox, sink: Sink, waiting: Waiting, *, now: Callable[[], datetime]) -> bool:
    outbox.trying(waiting.seq)
    try:
        answer = sink.send(waiting.notice, now=now())
    except RetunedError as error:  # a secret that cannot be read: its file may come yet
        answer = Answer(taken=False, detail=str(error))
    attempts = waiting.attempts + 1
    if answer.taken:
        stands = waiting.notice.standing == "open"
        outbox.sent(waiting.seq, now=now(), again_s=sink.again_s if stands else None)
        return True
    again_s = pause_s(answer, attempts=attempts)
    outbox.failed(waiting.seq, error=answer.detail, again_s=again_s, now=now())
    level = logging.WARNING if attempts in (1, 5) or not answer.again else logging.DEBUG
    log.log(
        level, "%s does not take %s (try %d, next in %.0f s): %s",
        sink.name, waiting.notice.event, attempts, again_s, clean(answer.detail),
    )  # fmt: skip
    return False

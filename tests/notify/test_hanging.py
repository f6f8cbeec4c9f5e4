"""Channels that hang: each keeps nobody but itself waiting, and that within bounds."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import partial
from pathlib import Path

import pytest
from tests.notify.heard import NOW, PLACE, asked, hanging, listening, proposal

from retuned.channels import notices
from retuned.channels.delivering import deliver, give_up_unset, say
from retuned.channels.outbox import Outbox
from retuned.channels.posting import Answer, send
from retuned.channels.records import Call, Event, Notice
from retuned.channels.running import Channels
from retuned.channels.sinks import PagerDuty, SlackHook
from retuned.clock import FakeClock
from retuned.telemetry.prometheus import FakeTelemetry

HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: 60000\r\n\r\n"


@pytest.fixture
def outbox(tmp_path: Path) -> Iterator[Outbox]:
    found = Outbox(tmp_path, now=NOW)
    yield found
    found.close()


def failing(number: int = 0) -> Notice:
    one = proposal(id=f"sha256:{number:064x}")
    return notices.rollback_failed(one, why="refused", place=PLACE, round=0, now=NOW)


def asking(number: int) -> Notice:
    return asked(id=f"sha256:{number:064x}")


def nothing(now: datetime) -> None:
    pass


def until(holds: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 120.0
    while not holds():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def test_who_is_to_wake_people_does_not_wait_for_a_channel_that_hangs(outbox: Outbox) -> None:
    with hanging() as away, listening() as ear:
        slack = SlackHook(url=lambda: away, sender=partial(send, within_s=200.0))
        pager = PagerDuty(key=lambda: "routing", url=ear.url)
        for number in range(16):
            say(outbox, asking(number), [slack], now=NOW)
        clock, telemetry = FakeClock(NOW), FakeTelemetry()
        channels = Channels(
            outbox, [slack, pager], say=nothing, clock=clock, telemetry=telemetry, look_s=0.02
        )
        channels.start()
        try:
            until(lambda: any(w is not None and w.attempts for w in [outbox.due("slack", now=NOW)]))
            say(outbox, failing(), [slack, pager], now=NOW)
            until(lambda: bool(ear.took))
            assert outbox.counts()["slack", "waiting"] == 17, "it still hangs on the first"
        finally:
            began_s = time.monotonic()
            channels.stop()
    assert ear.took[0].body["payload"]["class"] == Event.ROLLBACK_FAILED
    assert time.monotonic() - began_s < 100.0, "the end does not wait for who hangs"


def test_what_presses_goes_before_what_has_waited_longer_and_each_subject_in_its_order(
    outbox: Outbox,
) -> None:
    seen: list[Event] = []

    def sender(url: str, call: Call, **_: object) -> Answer:
        if len(seen) == 1:  # while a channel is asked to take the rest, something comes to press
            say(outbox, failing(1), [slack], now=NOW)
        seen.append(next(event for event in Event if f'"{event}"'.encode() in call.body))
        return Answer(taken=True)

    slack = PagerDuty(key=lambda: "routing", name="slack", sender=sender)
    done = notices.rollback_done(
        proposal(id=f"sha256:{2:064x}"), phase="x", place=PLACE, round=0, now=NOW
    )
    for each in (asking(3), asking(4), failing(2)):
        say(outbox, each, [slack], now=NOW)
    outbox.trying(3)
    say(outbox, done, [slack], now=NOW)
    for _ in range(2):
        deliver(outbox, slack, now=lambda: NOW, telemetry=FakeTelemetry())
    assert seen == [
        Event.ROLLBACK_FAILED,
        Event.AWAITING,
        Event.ROLLBACK_FAILED,
        Event.AWAITING,
        Event.ROLLBACK_DONE,
    ]


@pytest.mark.parametrize("drip", [b"", b"HTTP/1.1 200 OK\r\nx-long: ", HEAD])
def test_a_peer_that_is_silent_or_drips_has_no_more_time_than_the_whole_message(
    drip: bytes,
) -> None:
    began_s = time.monotonic()
    with hanging(drip=drip, every_s=0.005) as away:
        answer = send(away, Call(body=b"{}"), within_s=1.0)
        took_s = time.monotonic() - began_s
    assert not answer.taken
    assert answer.again, "it may answer another time"
    assert "within 1 s" in answer.detail
    assert 0.9 < took_s < 50.0, "it hangs for a minute"


def test_a_channel_that_is_set_no_more_is_not_waited_for(outbox: Outbox) -> None:
    slack, pager = SlackHook(url=lambda: ""), PagerDuty(key=lambda: "routing")
    say(outbox, asking(1), [slack, pager], now=NOW)
    telemetry = FakeTelemetry()
    for _ in range(2):
        give_up_unset(outbox, ["pagerduty"], now=NOW, telemetry=telemetry)
    assert outbox.counts() == {("slack", "given-up"): 1, ("pagerduty", "waiting"): 1}
    labels = {"channel": "slack", "outcome": "given-up"}
    assert telemetry.total("retuned_channel_messages_total", **labels) == 1.0


def test_channels_end_at_once_where_nothing_hangs(outbox: Outbox) -> None:
    pager = PagerDuty(key=lambda: "routing")
    clock, telemetry = FakeClock(NOW), FakeTelemetry()
    channels = Channels(
        outbox, [pager], say=nothing, clock=clock, telemetry=telemetry, look_s=3600.0
    )
    channels.start()
    channels.stop()
    assert not any(each.name.startswith("channels ") for each in threading.enumerate())

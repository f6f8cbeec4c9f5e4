"""The sender: each key once, nothing is closed that was not opened, a failure waits for a pass."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.notify.heard import NOW, PLACE, Ear, asked, closed, hanging, listening, proposal

from retuned.clock import FakeClock
from retuned.errors import UnreadableInput
from retuned.notify import messages, sender
from retuned.notify.alertmanager import Alertmanager
from retuned.notify.http import Answer, Sink, send
from retuned.notify.inbound import UsedTokens
from retuned.notify.messages import Call, Event, Notice
from retuned.notify.sender import Sender
from retuned.notify.slack import SlackBot, SlackHook
from retuned.notify.webhook import SIGNATURE, TIMESTAMP, Hook, signature_of
from retuned.telemetry.prometheus import FakeTelemetry

HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: 60000\r\n\r\n"


@pytest.fixture
def ear() -> Iterator[Ear]:
    with listening() as found:
        yield found


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(NOW)


def hook(ear: Ear) -> Hook:
    return Hook(url=ear.url, secret=lambda: "key")


def made(clock: FakeClock, *sinks: Sink, telemetry: FakeTelemetry | None = None) -> Sender:
    return Sender(sinks, clock=clock, telemetry=telemetry or FakeTelemetry())


def standings(ear: Ear) -> list[str]:
    return [took.body["standing"] for took in ear.took]


def failing() -> Notice:
    return messages.rollback_failed(proposal(), why="refused", place=PLACE, round=0, now=NOW)


def test_a_notice_that_holds_at_each_pass_is_sent_once(ear: Ear, clock: FakeClock) -> None:
    one = made(clock, hook(ear))
    for _ in range(3):
        one.run_pass(lambda _: [asked()])
    assert standings(ear) == ["open"]
    made(clock, hook(ear)).run_pass(lambda _: [asked()])
    first, repeated = (took.headers["idempotency-key"] for took in ear.took)
    assert first == repeated, "a restart repeats it under the same id"


def test_a_failure_is_sent_again_on_the_next_pass(ear: Ear, clock: FakeClock) -> None:
    one = made(clock, hook(ear))
    ear.will(503)
    one.put(asked())
    assert [one.drain() for _ in range(3)] == [0, 1, 0]


def test_an_opening_that_was_never_tried_is_not_closed(ear: Ear, clock: FakeClock) -> None:
    one = made(clock, hook(ear))
    one.put(asked())
    one.put(closed())
    assert one.drain() == 0
    assert ear.took == []


def test_an_opening_that_may_have_arrived_is_closed(ear: Ear, clock: FakeClock) -> None:
    one = made(clock, hook(ear))
    ear.will(503)
    one.put(asked())
    assert one.drain() == 0
    one.put(closed())
    assert one.drain() == 1
    assert standings(ear) == ["open", "close"]


def test_asked_settled_and_asked_again_are_three_messages(ear: Ear, clock: FakeClock) -> None:
    one = made(clock, hook(ear))
    for word in ("ask", "close", "ask"):
        round = one.rounds(asked().subject)
        one.put(asked(round) if word == "ask" else closed(round))
        one.drain()
    assert standings(ear) == ["open", "close", "open"]
    assert list(one.opened()) == [asked().subject]


def test_a_channel_that_fails_is_tried_once_a_pass_and_the_others_go_on(
    ear: Ear, clock: FakeClock
) -> None:
    dead = SlackHook(url=lambda: "http://127.0.0.1:9")
    telemetry = FakeTelemetry()
    one = made(clock, dead, hook(ear), telemetry=telemetry)
    for notice in (asked(), failing()):
        one.put(notice)
    assert one.drain() == 2
    assert [took.body["event"] for took in ear.took] == [Event.ROLLBACK_FAILED, Event.AWAITING]
    assert telemetry.total("retuned_channel_messages_total", channel="slack") == 1.0


@pytest.mark.parametrize("status", [301, 400, 401, 403, 404])
def test_a_redirect_is_not_followed(ear: Ear, clock: FakeClock, status: int) -> None:
    one = made(clock, hook(ear))
    ear.will(status, location=f"{ear.url}/elsewhere")
    one.put(asked())
    assert [one.drain(), one.drain()] == [0, 1]
    assert {took.path for took in ear.took} == {"/"}


def test_a_notice_past_its_time_is_given_up(ear: Ear, clock: FakeClock) -> None:
    telemetry = FakeTelemetry()
    one = made(clock, hook(ear), telemetry=telemetry)
    one.put(asked())
    clock.advance(25 * 3600.0)
    assert one.drain() == 0
    assert ear.took == []
    assert telemetry.total("retuned_channel_messages_total", outcome="given-up") == 1.0


def test_an_open_alert_is_pushed_again_and_closed_once(ear: Ear, clock: FakeClock) -> None:
    one = made(clock, Alertmanager(url=ear.url))
    for _ in range(600):
        one.run_pass(lambda _: [asked()])
        clock.advance(1.0)
    assert len(ear.took) == 5, "every two minutes"
    one.put(closed(now=clock.now()))
    for _ in range(600):
        one.drain()
        clock.advance(1.0)
    assert len(ear.took) == 6
    (last,) = ear.took[-1].body
    assert last["endsAt"] >= last["startsAt"]


def test_slacks_answer_is_read_whatever_its_status(
    ear: Ear, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    one = made(clock, SlackBot(token=lambda: "xoxb-secret", channel="C012", url=ear.url))
    ear.will(200, body=b'{"ok": false, "error": "channel_not_found"}')
    one.put(asked())
    assert [one.drain(), one.drain()] == [0, 1]
    assert "channel_not_found" in caplog.text
    assert "xoxb-secret" not in caplog.text
    assert ear.took[0].headers["authorization"] == "Bearer xoxb-secret"
    assert ear.took[0].path == "/api/chat.postMessage"


def test_a_webhook_arrives_signed_now_and_with_its_key(ear: Ear, clock: FakeClock) -> None:
    one = made(clock, hook(ear))
    ear.will(500)
    one.put(asked())
    one.drain()
    clock.advance(5.0)
    one.drain()
    first, second = ear.took
    assert first.headers["idempotency-key"] == second.headers["idempotency-key"]
    assert int(second.headers[TIMESTAMP]) == int(first.headers[TIMESTAMP]) + 5
    for took in ear.took:
        now_s = int(took.headers[TIMESTAMP])
        assert took.headers[SIGNATURE] == signature_of(took.raw, secret=b"key", now_s=now_s)


def test_an_answer_without_end_is_cut(ear: Ear, clock: FakeClock) -> None:
    one = made(clock, hook(ear))
    ear.will(400, body=b"x" * 10_000_000)
    one.put(asked())
    assert one.drain() == 0


def test_a_secret_that_cannot_be_read_waits_for_its_file(ear: Ear, clock: FakeClock) -> None:
    problems = [UnreadableInput("no-secret", where="webhook_secret", message="is not there")]

    def key() -> str:
        if problems:
            raise problems.pop()
        return "k"

    one = made(clock, Hook(url=ear.url, secret=key))
    one.put(asked())
    assert [one.drain(), one.drain()] == [0, 1]


def test_the_queue_is_bounded(ear: Ear, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender, "MAX_WAITING", 2)
    one = made(clock, hook(ear))
    many = [asked(id=f"sha256:{number:064x}") for number in range(3)]
    assert [one.put(each) for each in many] == [1, 1, 0]
    assert one.drain() == 2
    assert [one.put(each) for each in many] == [0, 0, 1], "the next pass offers it again"


def test_a_process_that_does_not_lead_sends_nothing(ear: Ear, clock: FakeClock) -> None:
    one = Sender([hook(ear)], clock=clock, telemetry=FakeTelemetry(), may=lambda: False)
    one.put(asked())
    one.run_pass(lambda _: [failing()])
    assert one.drain() == 0
    assert ear.took == []


def test_a_token_is_used_once_until_it_expires() -> None:
    used, (soon, later, until) = UsedTokens(since=NOW), (
        NOW.replace(minute=9), NOW.replace(minute=11), NOW.replace(minute=10),
    )  # fmt: skip
    assert used.use("a", until=until, now=NOW)
    assert not used.use("a", until=until, now=soon)
    assert used.use("a", until=later.replace(minute=20), now=later)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from(["ask", "close", "tell", "send", "fail", "wait"]), max_size=25))
def test_in_any_order_of_events_a_channel_ends_with_what_holds(
    steps: list[str],
) -> None:
    clock, seen = FakeClock(NOW), list[str]()

    class Remembering:
        name, again_s = "webhook", None
        fails = False

        def takes(self, notice: object) -> bool:
            return True

        def send(self, notice: Notice, *, now: object) -> Answer:
            if not self.fails and notice.standing != "tell":
                seen.append(str(notice.standing))
            return Answer(taken=not self.fails)

    sink = Remembering()
    one = made(clock, sink)
    for step in steps:
        round = one.rounds(asked().subject)
        if step == "ask":
            one.put(asked(round))
        elif step == "close" and one.opened():
            one.put(closed(round))
        elif step == "tell":
            one.put(messages.swapped(proposal(), place=PLACE, now=clock.now()))
        elif step == "wait":
            clock.advance(1000.0)
        else:
            sink.fails = step == "fail"
            one.drain()
    sink.fails = False
    one.drain()
    stands = bool(seen) and seen[-1] == "open"
    assert stands == bool(one.opened()), "in the end it has what holds"


def test_what_waits_is_shown_with_its_age(ear: Ear, clock: FakeClock) -> None:
    telemetry = FakeTelemetry()
    one = made(clock, hook(ear), SlackHook(url=lambda: ear.url), telemetry=telemetry)

    def shown(name: str) -> dict[str, float]:
        return {dict(row)["channel"]: value for row, value in telemetry.tables[name].items()}

    one.put(asked())
    ear.will(503)
    clock.advance(3.0)
    one.drain()
    assert shown("retuned_channel_messages_waiting") == {"webhook": 1.0, "slack": 0.0}
    oldest = shown("retuned_channel_oldest_waiting_timestamp_seconds")
    assert oldest == {"webhook": NOW.timestamp()}, "since it was queued, not since it was tried"
    one.drain()
    assert shown("retuned_channel_messages_waiting") == {"webhook": 0.0, "slack": 0.0}
    assert shown("retuned_channel_oldest_waiting_timestamp_seconds") == {}


@pytest.mark.parametrize("drip", [b"", b"HTTP/1.1 200 OK\r\nx-long: ", HEAD])
def test_a_peer_that_is_silent_or_drips_has_no_more_time_than_the_whole_message(
    drip: bytes,
) -> None:
    began_s = time.monotonic()
    with hanging(drip=drip, every_s=0.005) as away:
        answer = send(away, Call(body=b"{}"), within_s=1.0)
        took_s = time.monotonic() - began_s
    assert not answer.taken
    assert "within 1 s" in answer.detail
    assert 0.9 < took_s < 50.0, "it hangs for a minute"


def test_a_channel_that_hangs_delays_the_others_by_one_deadline(ear: Ear, clock: FakeClock) -> None:
    with hanging() as away:
        slack = SlackHook(url=lambda: away, sender=partial(send, within_s=0.2))
        one = made(clock, slack, hook(ear))
        for number in range(16):
            one.put(asked(id=f"sha256:{number:064x}"))
        began_s = time.monotonic()
        assert one.drain() == 16
        assert time.monotonic() - began_s < 60.0
    assert len(ear.took) == 16


def test_the_thread_ends_when_it_is_stopped(ear: Ear, clock: FakeClock) -> None:
    one = made(clock, hook(ear))
    one.start(lambda _: [], every_s=3600.0)
    one.stop()
    assert not any(each.name == "notify" for each in threading.enumerate())

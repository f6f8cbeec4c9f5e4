"""The outbox: nothing is lost in a crash, nothing is closed before it was opened, once is once."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.notify.heard import NOW, PLACE, Ear, asked, closed, listening, proposal

from retuned.channels import notices
from retuned.channels.delivering import deliver, say, show
from retuned.channels.hooks import SIGNATURE, TIMESTAMP, signature_of
from retuned.channels.outbox import FILE, Outbox
from retuned.channels.posting import Answer
from retuned.channels.records import Notice
from retuned.channels.sinks import Alertmanager, Hook, PagerDuty, Sink, SlackBot, SlackHook
from retuned.clock import FakeClock
from retuned.errors import UnreadableInput
from retuned.telemetry.prometheus import FakeTelemetry


@pytest.fixture
def ear() -> Iterator[Ear]:
    with listening() as found:
        yield found


@pytest.fixture
def outbox(tmp_path: Path) -> Iterator[Outbox]:
    found = Outbox(tmp_path, now=NOW)
    yield found
    found.close()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(NOW)


def pager(ear: Ear) -> PagerDuty:
    return PagerDuty(key=lambda: "routing", url=ear.url)


def flush(outbox: Outbox, clock: FakeClock, *sinks: Sink) -> int:
    telemetry = FakeTelemetry()
    return sum(deliver(outbox, sink, now=clock.now, telemetry=telemetry) for sink in sinks)


def actions(ear: Ear) -> list[str]:
    return [took.body["event_action"] for took in ear.took]


def test_what_is_said_again_is_kept_and_sent_once(
    outbox: Outbox, ear: Ear, clock: FakeClock
) -> None:
    sink = pager(ear)
    assert [say(outbox, asked(), [sink], now=NOW) for _ in range(3)] == [1, 0, 0]
    assert [flush(outbox, clock, sink) for _ in range(3)] == [1, 0, 0]
    assert actions(ear) == ["trigger"]


def test_what_was_not_sent_survives_the_process(tmp_path: Path, ear: Ear, clock: FakeClock) -> None:
    first = Outbox(tmp_path, now=NOW)
    say(first, asked(), [pager(ear)], now=NOW)
    del first  # killed: nothing is closed
    second = Outbox(tmp_path, now=NOW + timedelta(hours=1))
    assert second.begun() == NOW
    assert flush(second, clock, pager(ear)) == 1
    second.close()


def test_a_kill_between_sending_and_marking_sends_the_same_again(
    outbox: Outbox, ear: Ear, clock: FakeClock
) -> None:
    sink = pager(ear)
    say(outbox, asked(), [sink], now=NOW)

    class Killed(BaseException):
        pass

    def dying(notice: object, *, now: object) -> object:
        type(sink).send(sink, notice, now=now)  # type: ignore[arg-type]
        raise Killed

    class Dying:
        name, again_s = sink.name, None
        takes = staticmethod(sink.takes)
        send = staticmethod(dying)

    with pytest.raises(Killed):
        deliver(outbox, Dying(), now=clock.now, telemetry=FakeTelemetry())  # type: ignore[arg-type]
    say(outbox, closed(), [sink], now=NOW)
    for _ in range(2):
        flush(outbox, clock, sink)
    assert actions(ear) == ["trigger", "trigger", "resolve"], "it may have arrived, so it is closed"
    assert len({took.body["dedup_key"] for took in ear.took}) == 1


def test_what_nobody_was_told_is_not_closed_either(
    outbox: Outbox, ear: Ear, clock: FakeClock
) -> None:
    sink = pager(ear)
    say(outbox, asked(), [sink], now=NOW)
    say(outbox, closed(), [sink], now=NOW)
    assert flush(outbox, clock, sink) == 0
    assert ear.took == []


def test_a_close_waits_for_what_it_closes(outbox: Outbox, ear: Ear, clock: FakeClock) -> None:
    sink = pager(ear)
    ear.will(503)
    say(outbox, asked(), [sink], now=NOW)
    assert flush(outbox, clock, sink) == 0
    say(outbox, closed(), [sink], now=NOW)
    assert flush(outbox, clock, sink) == 0, "the open comes first, and rests"
    clock.advance(5.0)
    assert flush(outbox, clock, sink) == 2
    assert actions(ear) == ["trigger", "trigger", "resolve"]


def test_asked_settled_and_asked_again_are_three_messages(
    outbox: Outbox, ear: Ear, clock: FakeClock
) -> None:
    sink = pager(ear)
    for word in ("ask", "close", "ask"):
        round = outbox.rounds(asked().subject)
        say(outbox, asked(round) if word == "ask" else closed(round), [sink], now=NOW)
        flush(outbox, clock, sink)
    assert actions(ear) == ["trigger", "resolve", "trigger"]
    assert list(outbox.opened()) == [asked().subject]


def test_a_channel_that_is_away_is_asked_less_and_less_and_keeps_no_other_back(
    outbox: Outbox, ear: Ear, clock: FakeClock
) -> None:
    away, there = pager(ear), SlackHook(url=lambda: ear.url)
    dead = PagerDuty(key=lambda: "k", url="http://127.0.0.1:9")
    say(outbox, asked(), [away, there], now=NOW)
    tries = 0
    for _ in range(3600):
        before = outbox.counts()
        flush(outbox, clock, dead, there)
        tries += before != outbox.counts()
        clock.advance(1.0)
    assert outbox.counts() == {("pagerduty", "waiting"): 1, ("slack", "sent"): 1}
    assert len(ear.took) == 1
    waiting = outbox.due("pagerduty", now=clock.now() + timedelta(hours=1))
    assert waiting is not None
    assert 8 <= waiting.attempts <= 14, "5 s, 10 s, ... 900 s"


def test_who_asks_to_be_left_alone_is(outbox: Outbox, ear: Ear, clock: FakeClock) -> None:
    sink = pager(ear)
    ear.will(429, retry_after="120")
    say(outbox, asked(), [sink], now=NOW)
    flush(outbox, clock, sink)
    clock.advance(119.0)
    assert flush(outbox, clock, sink) == 0
    clock.advance(1.0)
    assert flush(outbox, clock, sink) == 1


@pytest.mark.parametrize("status", [301, 400, 401, 403, 404])
def test_a_refusal_is_tried_again_seldom_and_a_redirect_is_not_followed(
    outbox: Outbox, ear: Ear, clock: FakeClock, status: int
) -> None:
    sink = pager(ear)
    ear.will(status, location=f"{ear.url}/elsewhere")
    say(outbox, asked(), [sink], now=NOW)
    flush(outbox, clock, sink)
    clock.advance(899.0)
    assert flush(outbox, clock, sink) == 0
    clock.advance(1.0)
    assert flush(outbox, clock, sink) == 1
    assert {took.path for took in ear.took} == {"/v2/enqueue"}


def test_what_is_of_no_use_any_more_is_not_sent(outbox: Outbox, ear: Ear, clock: FakeClock) -> None:
    sink = pager(ear)
    say(outbox, asked(), [sink], now=NOW)
    clock.advance(25 * 3600.0)
    assert flush(outbox, clock, sink) == 0
    assert outbox.counts() == {("pagerduty", "given-up"): 1}


def test_alertmanager_is_told_again_while_it_stands_and_once_that_it_is_over(
    outbox: Outbox, ear: Ear, clock: FakeClock
) -> None:
    sink = Alertmanager(url=ear.url)
    say(outbox, asked(), [sink], now=NOW)
    for _ in range(600):
        flush(outbox, clock, sink)
        clock.advance(1.0)
    assert len(ear.took) == 5, "every two minutes"
    say(outbox, closed(now=clock.now()), [sink], now=clock.now())
    for _ in range(600):
        flush(outbox, clock, sink)
        clock.advance(1.0)
    assert len(ear.took) == 6
    (last,) = ear.took[-1].body
    assert last["endsAt"] >= last["startsAt"]


def test_slacks_answer_is_read_whatever_its_status(
    outbox: Outbox, ear: Ear, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    sink = SlackBot(token=lambda: "xoxb-secret", channel="C012", url=ear.url)
    ear.will(200, body=b'{"ok": false, "error": "channel_not_found"}')
    say(outbox, asked(), [sink], now=NOW)
    assert flush(outbox, clock, sink) == 0
    assert "channel_not_found" in caplog.text
    assert "xoxb-secret" not in caplog.text
    clock.advance(900.0)
    assert flush(outbox, clock, sink) == 1
    assert ear.took[0].headers["authorization"] == "Bearer xoxb-secret"
    assert ear.took[0].path == "/api/chat.postMessage"


def test_a_webhook_arrives_signed_now_and_with_its_key(
    outbox: Outbox, ear: Ear, clock: FakeClock
) -> None:
    sink = Hook(url=ear.url, secret=lambda: "key")
    ear.will(500)
    say(outbox, asked(), [sink], now=NOW)
    flush(outbox, clock, sink)
    clock.advance(5.0)
    flush(outbox, clock, sink)
    first, second = ear.took
    assert first.headers["idempotency-key"] == second.headers["idempotency-key"]
    assert int(second.headers[TIMESTAMP]) == int(first.headers[TIMESTAMP]) + 5
    for took in ear.took:
        now_s = int(took.headers[TIMESTAMP])
        assert took.headers[SIGNATURE] == signature_of(took.raw, secret=b"key", now_s=now_s)


def test_an_answer_without_end_is_cut(outbox: Outbox, ear: Ear, clock: FakeClock) -> None:
    sink = pager(ear)
    ear.will(400, body=b"x" * 10_000_000)
    say(outbox, asked(), [sink], now=NOW)
    assert flush(outbox, clock, sink) == 0


def test_a_secret_that_cannot_be_read_waits_for_its_file(
    outbox: Outbox, ear: Ear, clock: FakeClock
) -> None:
    secrets = [UnreadableInput("no-secret", where="pagerduty_key", message="is not there")]

    def key() -> str:
        if secrets:
            raise secrets.pop()
        return "k"

    sink = PagerDuty(key=key, url=ear.url)
    say(outbox, asked(), [sink], now=NOW)
    assert flush(outbox, clock, sink) == 0
    clock.advance(900.0)
    assert flush(outbox, clock, sink) == 1


def test_a_token_is_used_once_until_it_is_forgotten(outbox: Outbox) -> None:
    until = NOW + timedelta(minutes=10)
    assert outbox.use("a", until=until, now=NOW)
    assert not outbox.use("a", until=until, now=NOW + timedelta(minutes=9))
    assert outbox.use("a", until=until, now=NOW + timedelta(minutes=11))


def test_old_messages_are_removed_and_new_ones_stay(
    outbox: Outbox, ear: Ear, clock: FakeClock
) -> None:
    sink = pager(ear)
    say(outbox, asked(), [sink], now=NOW)
    flush(outbox, clock, sink)
    outbox.forget(now=NOW + timedelta(days=89))
    assert outbox.counts()
    outbox.forget(now=NOW + timedelta(days=91))
    assert not outbox.counts()


def test_a_damaged_file_is_named_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"no database at all" * 100)
    with pytest.raises(UnreadableInput, match="move it aside"):
        Outbox(tmp_path, now=NOW)


def test_only_its_owner_reads_the_file(outbox: Outbox) -> None:
    assert outbox.path.stat().st_mode & 0o077 == 0


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["ask", "close", "tell", "send", "fail", "wait"])), max_size=25
    )
)
def test_whatever_happens_a_pager_closes_what_it_opened_and_ends_with_what_holds(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str]]
) -> None:
    outbox = Outbox(tmp_path_factory.mktemp("outbox"), now=NOW)
    clock, seen, telemetry = FakeClock(NOW), list[str](), FakeTelemetry()

    class Remembering:
        name, again_s = "pagerduty", None
        fails = False

        def takes(self, notice: object) -> bool:
            return True

        def send(self, notice: Notice, *, now: object) -> object:
            if not self.fails and notice.standing != "tell":
                seen.append(str(notice.standing))
            return Answer(taken=not self.fails, again=True)

    sink = Remembering()
    for (step,) in steps:
        round = outbox.rounds(asked().subject)
        if step == "ask":
            say(outbox, asked(round), [sink], now=clock.now())  # type: ignore[list-item]
        elif step == "close" and outbox.opened():
            say(outbox, closed(round), [sink], now=clock.now())  # type: ignore[list-item]
        elif step == "tell":
            told = notices.swapped(proposal(), place=PLACE, now=clock.now())
            say(outbox, told, [sink], now=clock.now())  # type: ignore[list-item]
        elif step == "wait":
            clock.advance(1000.0)
        else:
            sink.fails = step == "fail"
            deliver(outbox, sink, now=clock.now, telemetry=telemetry)  # type: ignore[arg-type]
    sink.fails = False
    for _ in range(60):
        deliver(outbox, sink, now=clock.now, telemetry=telemetry)  # type: ignore[arg-type]
        clock.advance(100.0)
    stands = bool(outbox.opened())
    outbox.close()
    assert ("close", "close") not in itertools.pairwise(seen)
    assert not seen or seen[0] == "open"
    assert (bool(seen) and seen[-1] == "open") == stands, "in the end it knows what holds"


def test_what_becomes_of_messages_is_counted_and_what_waits_is_shown_with_its_age(
    outbox: Outbox, ear: Ear, clock: FakeClock
) -> None:
    sink, telemetry = pager(ear), FakeTelemetry()

    def step() -> None:
        deliver(outbox, sink, now=clock.now, telemetry=telemetry)
        show(outbox, ("pagerduty", "slack"), telemetry=telemetry)

    def counted(outcome: str) -> float:
        labels = {"channel": "pagerduty", "outcome": outcome}
        return telemetry.total("retuned_channel_messages_total", **labels)

    def shown(name: str) -> dict[str, float]:
        return {dict(row)["channel"]: value for row, value in telemetry.tables[name].items()}

    say(outbox, asked(), [sink], now=NOW)
    ear.will(503)
    clock.advance(3.0)
    step()
    assert (counted("sent"), counted("failed")) == (0.0, 1.0)
    assert shown("retuned_channel_messages_waiting") == {"pagerduty": 1.0, "slack": 0.0}
    oldest = shown("retuned_channel_oldest_waiting_timestamp_seconds")
    assert oldest == {"pagerduty": NOW.timestamp()}, "since it was written, not since it was tried"
    clock.advance(10.0)
    step()
    assert (counted("sent"), counted("failed")) == (1.0, 1.0)
    assert shown("retuned_channel_messages_waiting") == {"pagerduty": 0.0, "slack": 0.0}
    assert shown("retuned_channel_oldest_waiting_timestamp_seconds") == {}
    say(outbox, asked(1), [sink], now=clock.now())
    clock.advance(90 * 86_400.0)
    step()
    assert counted("given-up") == 1.0

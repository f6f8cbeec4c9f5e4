"""From a real loop to a channel, a word in Slack, a swap, and the channel told how it ended."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.notify.heard import Ear, listening
from tests.notify.test_arrivals import SECRET, TEAM, pressed
from tests.standalone.local_world import KERNEL, WINNER, World

from retuned.notify.slack import APPROVE, signature_of
from retuned.settings import Settings
from retuned.standalone.context import RecordKind
from retuned.standalone.notifications import channelled
from retuned.store.approvals import Approvals


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    assert made.unexpected() == 0
    made.store.close()


@pytest.fixture
def ear() -> Iterator[Ear]:
    with listening() as found:
        yield found


def settings(world: World, ear: Ear, monkeypatch: pytest.MonkeyPatch) -> Settings:
    for name, text in (("A_HOOK", ear.url), ("A_SECRET", SECRET), ("A_KEY", "a-webhook-secret")):
        monkeypatch.setenv(name, text)
    return Settings(
        state_dir=world.folder / "state",
        slack_webhook="env:A_HOOK",
        slack_signing_secret="env:A_SECRET",
        slack_team=TEAM,
        slack_users={"U2CERLKJA": "nobody"},
        webhook_secret="env:A_KEY",
        webhook_url=ear.url,
        channels_listen="127.0.0.1:0",
        review_url="https://review.example/",
    )


def propose(world: World) -> str:
    for m in (8, 8, 8, 8, 8, 256, 256, 256, 256):
        world.window(m)
        world.loop.turn()
    for _ in range(4):
        world.clock.advance(2.0)
        world.loop.turn()
    (stored,) = world.store.list(RecordKind.PROPOSAL, phase="AwaitingApproval")
    return stored.id


def until(ear: Ear, count: int) -> None:
    """Wait until so many messages have come."""

    deadline_s = time.monotonic() + 120.0
    while len(ear.took) < count:
        assert time.monotonic() < deadline_s, [took.body for took in ear.took]
        time.sleep(0.02)


def said(ear: Ear, word: str) -> list[Any]:
    return [took.body for took in ear.took if word in took.raw.decode()]


def press(world: World, place: str, message: Any) -> httpx.Response:
    """Press the button of a message, as Slack tells of it."""
    buttons = message["blocks"][-1]["elements"]
    (value,) = [each["value"] for each in buttons if each["action_id"] == APPROVE]
    body = pressed(value=json.loads(value), reply="")
    stamp = str(int(world.clock.now().timestamp()))
    headers = {
        "x-slack-request-timestamp": stamp,
        "x-slack-signature": signature_of(body, secret=SECRET, timestamp=stamp),
    }
    return httpx.post(f"http://{place}/slack", content=body, headers=headers, timeout=60.0)


def test_from_drift_to_a_message_a_word_a_swap_and_an_incident_that_resolves(
    world: World, ear: Ear, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with channelled(
        settings(world, ear, monkeypatch), clock=world.clock, telemetry=world.telemetry
    ) as place:
        id = propose(world)
        until(ear, 2)
        (message,) = said(ear, '"blocks"')
        (incident,) = said(ear, '"standing": "open"')
        assert incident["subject"] == id
        assert incident["summary"] == message["blocks"][1]["text"]["text"]
        assert incident["review_url"] == f"https://review.example/proposals/{id[7:]}"

        assert press(world, place, message).status_code == 200
        (word,) = Approvals(world.store).decisions(id)
        assert (word.user, word.channel) == ("nobody", "slack")
        for _ in range(3):
            world.clock.advance(2.0)
            world.loop.turn()
        assert world.server.slots()[0].active == WINNER.digest
        until(ear, 6)
        (resolved,) = said(ear, '"standing": "close"')
        assert resolved["subject"] == id
        assert "nobody" in resolved["summary"]
        assert len(said(ear, '"blocks"')) == 3, "asked, settled, swapped in"

        world.server.counts[KERNEL] = {
            "swapped_launches": 50, "shadow_checks": 9, "shadow_mismatches": 1,
        }  # fmt: skip
        world.loop.steer()
        until(ear, 8)
        assert "Rolled back (shadow-mismatch" in ear.took[-1].raw.decode()
    for secret in (SECRET, "a-webhook-secret", ear.url):
        mine = "\n".join(r.getMessage() for r in caplog.records if r.name.startswith("retuned"))
        assert secret not in mine


def test_what_was_not_sent_is_sent_on_the_next_pass_and_a_restart_repeats_it_once(
    world: World, ear: Ear, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = settings(world, ear, monkeypatch)
    ear.answers = [(503, {}, b"")] * 2
    with channelled(wanted, clock=world.clock, telemetry=world.telemetry):
        propose(world)
        until(ear, 4)
    world.clock.advance(60.0)
    with channelled(wanted, clock=world.clock, telemetry=world.telemetry):
        until(ear, 6)
    incidents = said(ear, '"standing": "open"')
    assert len(incidents) == 3, "one was refused, one was taken, one repeated"
    assert len({each["key"] for each in incidents}) == 1
    assert len(said(ear, '"blocks"')) == 3


def test_a_proposal_that_nobody_answers_is_said_to_expire_and_then_to_have(
    world: World, ear: Ear, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = settings(world, ear, monkeypatch)
    id = propose(world)
    with channelled(wanted, clock=world.clock, telemetry=world.telemetry):
        until(ear, 2)
        world.clock.advance(timedelta(hours=23).total_seconds())
        until(ear, 4)
        assert [each["event"] for each in said(ear, '"standing": "open"')] == [
            "awaiting-approval",
            "expiring",
        ]
        world.clock.advance(timedelta(hours=2).total_seconds())
        world.loop.steer()
        until(ear, 6)
        (resolved,) = said(ear, '"standing": "close"')
        assert (resolved["subject"], "Expired" in resolved["summary"]) == (id, True)


def test_with_every_channel_away_the_loop_goes_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    nobody = Ear(url="http://127.0.0.1:9")
    with channelled(
        settings(world, nobody, monkeypatch), clock=world.clock, telemetry=world.telemetry
    ):
        propose(world)
        world.approve_what_waits()
        for _ in range(3):
            world.clock.advance(2.0)
            world.loop.turn()
        assert world.server.slots()[0].active == WINNER.digest

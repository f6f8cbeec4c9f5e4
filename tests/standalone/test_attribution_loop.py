"""Alarms in the loop: swaps are tried off first, and an alarm says what was found."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from tests.standalone.local_world import KERNEL, WINNER, World
from tests.standalone.test_live_proof_loop import SLO, Live, counted, policy, settled, swapped
from tests.standalone.test_steering import freeze

from retuned.errors import TemporaryError
from retuned.notify.messages import Event, Place, Severity
from retuned.notify.sender import Sender
from retuned.stages.watch.attribution import HOLD_S, TRY_S
from retuned.standalone.context import RecordKind
from retuned.standalone.daemon import Loop
from retuned.standalone.facts import quarantined
from retuned.standalone.notifications import notices_of


@pytest.fixture
def live(world: World) -> Live:
    made = Live(world)
    world.loop = Loop(replace(world.loop.ctx, live_steps=made))
    return made


def promoted(world: World, live: Live, *, mode: str = "required") -> None:
    """Promote a swap that makes steps faster."""
    live.effect = -0.04
    assert swapped(world, policy(mode=mode)) == "Proving"
    world.loop.measure()
    assert settled(world) == "Promoted"


def alarmed(world: World) -> None:
    """Let the same work take three times as long until an alarm is raised."""
    for _ in range(6):
        world.window(8, slow=3.0)
        world.loop.observe()
        if any(each.body["action"] == "alarm" for each in world.store.list(RecordKind.DRIFT)):
            return
    raise AssertionError("no alarm was raised")


def alarms(world: World) -> list[str]:
    """Return the sentences of the alarms that were sent."""
    found = [each for each in world.store.events() if each.what == "drift-alarm"]
    return [str(each.detail["sentence"]) for each in found]


def outcome(world: World) -> str:
    (stored,) = world.store.list(RecordKind.ATTRIBUTION)
    return stored.phase


def standing(world: World) -> bool:
    """Whether metrics show the alarm."""
    rows = world.telemetry.tables["retuned_drift_standing"]
    return rows[frozenset({("action", "alarm")})] == 1.0


def test_a_swap_that_is_the_cause_goes_back_and_the_alarm_says_so(world: World, live: Live) -> None:
    promoted(world, live)
    live.effect = 0.05
    alarmed(world)
    world.loop.steer()
    assert alarms(world) == [], "it waits until the swap was tried off"
    world.loop.measure()
    assert outcome(world) == "swap"
    (said,) = alarms(world)
    assert f"the swap of {KERNEL} is the cause: steps take" in said
    assert said.endswith("% longer with it; it rolls back.")
    assert "clocks" not in said
    assert world.server.slots()[0].bypassed, "the original serves until the order is rolled back"
    assert settled(world) == "RolledBack"
    assert world.server.slots()[0].active is None
    (back,) = [each for each in world.store.events() if each.what == "rolling-back"]
    assert back.detail["reason"] == "attribution-slower"
    assert WINNER.digest in quarantined(world.loop.ctx)
    sender = Sender((), clock=world.clock, telemetry=world.telemetry)
    sender.begun = world.clock.now() - timedelta(days=1)
    found = notices_of(world.store, sender, Place(), world.clock.now())
    (notice,) = [each for each in found if each.event is Event.ROLLED_BACK]
    assert notice.severity is Severity.CRITICAL
    assert "attribution-slower" in notice.summary


def test_where_swaps_are_not_the_cause_the_alarm_names_the_others(world: World, live: Live) -> None:
    promoted(world, live)
    alarmed(world)
    world.loop.measure()
    assert outcome(world) == "not-swaps"
    (said,) = alarms(world)
    assert "tried off and are not the cause" in said
    assert said.endswith("so check clocks, driver and neighbours.")
    assert settled(world) == "Promoted"
    assert not world.server.slots()[0].bypassed


def test_it_needs_no_pilot_after_a_proof(world: World, live: Live) -> None:
    promoted(world, live)
    live.effect = 0.05
    alarmed(world)
    began = world.clock.now()
    world.loop.measure()
    assert (world.clock.now() - began).total_seconds() < 30.0


def test_where_the_policy_observes_the_alarm_says_how_to_roll_back(
    world: World, live: Live
) -> None:
    promoted(world, live, mode="observe")
    live.effect = 0.05
    alarmed(world)
    world.loop.measure()
    (said,) = alarms(world)
    assert "roll it back with `retuned rollback" in said
    assert settled(world) == "Promoted"
    assert not world.server.slots()[0].bypassed


def test_an_alarm_waits_a_minute_at_most(world: World, live: Live) -> None:
    promoted(world, live)
    alarmed(world)
    world.clock.advance(HOLD_S / 2.0)
    world.loop.steer()
    assert alarms(world) == []
    assert not standing(world)
    world.clock.advance(HOLD_S / 2.0)
    world.loop.steer()
    (said,) = alarms(world)
    assert said.endswith("is the cause is being measured.")
    assert standing(world)
    world.loop.measure()
    (later,) = [each for each in world.store.events() if each.what == "drift-attributed"]
    assert "are not the cause" in str(later.detail["sentence"])
    assert len(alarms(world)) == 1


def test_without_traffic_the_alarm_is_sent_and_says_that_it_is_unknown(
    world: World, live: Live
) -> None:
    promoted(world, live)
    live.per_s = 0.01
    alarmed(world)
    wait, sent = live.wait, list[int]()

    def waits(seconds: float) -> None:
        wait(seconds)
        world.loop.steer()
        if alarms(world) and not sent:
            sent.append(1)
            (stored,) = world.store.list(RecordKind.ATTRIBUTION)
            age = world.clock.now() - stored.created_at
            assert age <= timedelta(seconds=HOLD_S + 1.0)

    live.wait = waits  # type: ignore[method-assign]
    world.loop.measure()
    assert sent
    assert outcome(world) == "unknown"
    assert settled(world) == "Promoted"


def test_a_breach_of_service_levels_leaves_the_cause_unknown(world: World, live: Live) -> None:
    promoted(world, live)
    counted(world, live, lambda _: True)
    world.policies = (policy(**SLO),)
    alarmed(world)
    world.loop.measure()
    assert outcome(world) == "trying"
    assert not world.server.slots()[0].bypassed
    world.clock.advance(TRY_S)
    world.loop.measure()
    assert outcome(world) == "unknown"
    assert settled(world) == "Promoted"


def test_a_server_that_does_not_answer_leaves_the_cause_unknown(world: World, live: Live) -> None:
    promoted(world, live)
    alarmed(world)
    live.silent, live.lost = True, TemporaryError("no answer", delay_s=1.0)
    world.loop.measure()
    assert outcome(world) == "trying"
    world.clock.advance(TRY_S)
    world.loop.measure()
    assert outcome(world) == "unknown"
    (said,) = alarms(world)
    assert "unknown (no-answer)" in said


def test_an_alarm_on_a_server_without_swaps_is_sent_immediately(world: World) -> None:
    world.policies = ()
    for _ in range(5):
        world.window(8)
        world.loop.observe()
    alarmed(world)
    (said,) = alarms(world)
    assert said.endswith("so check clocks, driver and neighbours first.")
    assert standing(world)


def test_an_old_swap_of_another_kernel_is_not_tried(world: World, live: Live) -> None:
    promoted(world, live)
    world.clock.advance(timedelta(days=2).total_seconds())
    world.loop.ctx.catalog.recognise = lambda *_: None  # type: ignore[method-assign]
    alarmed(world)
    assert world.store.list(RecordKind.ATTRIBUTION) == []
    assert len(alarms(world)) == 1


def test_a_freeze_ends_the_trial_with_the_swap_on(world: World, live: Live) -> None:
    promoted(world, live)
    alarmed(world)
    freeze(world)
    world.loop.measure()
    assert outcome(world) == "unknown"
    (said,) = alarms(world)
    assert "unknown (interrupted)" in said
    assert not world.server.slots()[0].bypassed


def test_a_daemon_that_is_killed_in_a_trial_continues_it(world: World, live: Live) -> None:
    promoted(world, live)
    live.effect = 0.05
    alarmed(world)
    live.dies_at = live.reads + 40
    with pytest.raises(KeyboardInterrupt):
        world.loop.measure()
    assert outcome(world) == "trying"
    world.loop = Loop(world.loop.ctx)
    world.loop.measure()
    assert outcome(world) == "swap"
    assert settled(world) == "RolledBack"


def test_without_steps_the_alarm_is_sent_without_a_trial(world: World, live: Live) -> None:
    promoted(world, live)
    live.reason = "not-switchable"
    alarmed(world)
    world.loop.measure()
    (said,) = alarms(world)
    assert "unknown (not-switchable)" in said

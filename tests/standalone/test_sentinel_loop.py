"""Sentinel in the loop: pairs far apart, a day's proof, and the rollback of what harms."""

from __future__ import annotations

import random
from dataclasses import replace
from types import SimpleNamespace

import pytest
from tests.standalone.local_world import KERNEL, WINNER, World
from tests.standalone.test_attribution_loop import promoted
from tests.standalone.test_live_proof_loop import SLO, Live, counted, policy, settled
from tests.standalone.test_steering import freeze

from retuned.errors import CandidateError
from retuned.node import sentinel
from retuned.stages.watch.proof import DAY_S
from retuned.standalone.context import RecordKind
from retuned.standalone.daemon import Loop
from retuned.standalone.facts import quarantined
from retuned.standalone.proofs import repeated_proof
from retuned.standalone.records import committed

PERIOD_S = 1_250.0


@pytest.fixture
def live(world: World) -> Live:
    made = Live(world)
    world.loop = Loop(replace(world.loop.ctx, live_steps=made))
    return made


@pytest.fixture(autouse=True)
def _moments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw the same moments in each run: coarse steps of time miss some periods."""
    chance = random.Random(11)
    monkeypatch.setattr(sentinel, "secrets", SimpleNamespace(SystemRandom=lambda: chance))


def passes(world: World, seconds: float, *, every_s: float = 250.0) -> None:
    """Let time pass with the daemon at work; leave out what only costs time in a test."""
    until_s = world.clock.monotonic_s() + seconds
    while world.clock.monotonic_s() < until_s:
        world.clock.advance(every_s)
        world.loop.measure()
        world.loop.steer()


def pairs(world: World) -> int:
    found = world.store.list(RecordKind.REPEATED_PROOF)
    return sum(
        p["kind"] == "long" and p["void"] is None for s in found for p in s.body["state"]["pairs"]
    )


def test_a_promoted_swap_is_measured_once_a_period(world: World, live: Live) -> None:
    promoted(world, live)
    world.loop.measure()
    (plan,) = world.store.list(RecordKind.SENTINEL)
    assert pairs(world) == 0, "the moment is drawn before its period begins"
    assert 0.0 <= plan.body["at_s"] - world.clock.now().timestamp() <= PERIOD_S
    passes(world, 8 * PERIOD_S)
    assert 5 <= pairs(world) <= 9
    (slot,) = world.server.slots()
    assert (slot.active, slot.bypassed) == (WINNER.digest, False)
    assert not live.recording
    assert set(world.phases(RecordKind.REPEATED_PROOF)) == {"proving"}


def test_what_harms_later_goes_back_and_pages(world: World, live: Live) -> None:
    promoted(world, live)
    live.effect = 0.08
    passes(world, 14 * PERIOD_S)
    assert settled(world) == "RolledBack"
    assert world.server.slots()[0].active is None
    (back,) = [each for each in world.store.events() if each.what == "rolling-back"]
    assert str(back.detail["reason"]).startswith("sentinel-slow")
    assert WINNER.digest in quarantined(world.loop.ctx)
    (record,) = world.store.list(RecordKind.REPEATED_PROOF)
    assert world.store.get_blob(record.body["evidence"])


def test_a_day_is_one_proof(world: World, live: Live) -> None:
    promoted(world, live)
    passes(world, DAY_S + 3 * PERIOD_S)
    first, second = world.store.list(RecordKind.REPEATED_PROOF)
    assert (first.phase, second.phase) == ("helps", "proving")
    (said,) = [each for each in world.store.events() if each.what == "sentinel-helps"]
    assert "steps take" in str(said.detail["detail"])
    assert settled(world) == "Promoted"


@pytest.mark.parametrize("later", [True, False], ids=["came later", "was there before"])
def test_an_effect_that_another_swap_has_changed_is_told(
    world: World, live: Live, monkeypatch: pytest.MonkeyPatch, later: bool
) -> None:
    promoted(world, live)
    (mine,) = committed(world.store).values()
    other = mine.order.model_copy(update={"id": "other", "definition": "other_kernel"})
    monkeypatch.setattr(
        repeated_proof,
        "committed",
        lambda _store: {KERNEL: mine, "other_kernel": replace(mine, order=other)},
    )
    world.store.add(RecordKind.ORDER, "other", {}, phase="done")
    if not later:
        world.store.advance(RecordKind.LIVE_PROOF, mine.order.proposal, expect="helps", to="helps")
    live.effect = -0.01
    passes(world, DAY_S + 3 * PERIOD_S)
    said = [each for each in world.store.events() if each.what == "swap-interaction"]
    assert len(said) == later
    if later:
        assert said[0].detail["others"] == ["other_kernel"]
        assert "before they came: helps" in str(said[0].detail["detail"])


@pytest.mark.parametrize("rule", [{"sentinel": 0.0}, {"mode": "off"}])
def test_the_policy_ends_it(world: World, live: Live, rule: dict[str, object]) -> None:
    promoted(world, live)
    world.policies = (policy(**rule),)
    passes(world, 3 * PERIOD_S)
    assert world.store.list(RecordKind.SENTINEL) == []


def test_a_breach_of_service_levels_ends_the_pair_and_leaves_the_swap_on(
    world: World, live: Live
) -> None:
    promoted(world, live)
    busy = [True]
    counted(world, live, lambda _: busy[0])
    world.policies = (policy(**SLO),)
    passes(world, 4 * PERIOD_S)
    assert pairs(world) == 0
    (slot,) = world.server.slots()
    assert (slot.active, slot.bypassed) == (WINNER.digest, False)
    busy[0] = False
    passes(world, 4 * PERIOD_S)
    assert pairs(world) >= 2
    assert settled(world) == "Promoted"


def test_a_restarted_server_begins_another_day(world: World, live: Live) -> None:
    promoted(world, live)
    passes(world, 3 * PERIOD_S)
    live.lost = CandidateError("server-restarted", detail="4711.sock")
    passes(world, 2 * PERIOD_S)
    live.lost = None
    before = pairs(world)
    passes(world, 4 * PERIOD_S)
    assert pairs(world) >= before + 2
    assert settled(world) == "Promoted"
    assert not world.server.slots()[0].bypassed


def test_while_frozen_no_pair_runs(world: World, live: Live) -> None:
    promoted(world, live)
    freeze(world)
    passes(world, 3 * PERIOD_S)
    assert pairs(world) == 0
    assert not world.server.slots()[0].bypassed


def test_a_daemon_that_is_killed_in_a_pair_switches_the_swap_on_again(
    world: World, live: Live
) -> None:
    promoted(world, live)
    live.dies_at = live.reads + 10
    with pytest.raises(KeyboardInterrupt):
        passes(world, 3 * PERIOD_S)
    world.server._bypassed.add(KERNEL)
    world.loop = Loop(world.loop.ctx)
    world.loop.measure()
    assert not world.server.slots()[0].bypassed
    passes(world, 3 * PERIOD_S)
    assert pairs(world) >= 2


def test_its_effect_is_shown(world: World, live: Live) -> None:
    promoted(world, live)
    passes(world, 6 * PERIOD_S)
    world.loop.show()
    rows = world.telemetry.tables["retuned_sentinel_effect_ratio"]
    assert rows[frozenset({("kernel", KERNEL)})] == pytest.approx(0.96, abs=0.01)

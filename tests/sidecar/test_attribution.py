"""A sidecar tries its swaps off before it tells an alarm, and tells it within a minute."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.sidecar.sidecar_world import CLEAN, FIRST, PodWorld
from tests.sidecar.test_live_proofs import ORDER, Pod, meanwhile

from retuned.api.agent import AlarmOrder, DriftPost, PodProof, ProofPost
from retuned.node.attribution import ATTRIBUTION
from retuned.node.context import DRIFT
from retuned.node.windows import HELD
from retuned.sidecar.main import Sidecar
from retuned.sidecar.store import TRIAL
from retuned.stages.gate import LiveProof
from retuned.stages.watch.attribution import HOLD_S, trial_settings
from retuned.stages.watch.proof import replay


def leave(**rule: Any) -> AlarmOrder:
    body = {"mode": "required", "longBlocks": 0} | rule
    return AlarmOrder(order=ORDER.id, name="swp-a", rule=LiveProof.model_validate(body))


@pytest.fixture
def world(tmp_path: Path) -> Pod:
    found = Pod(tmp_path)
    found.publish(FIRST)
    found.operator.allow_trials(leave())
    found.order(ORDER)
    found.swapper.counts["gemm"] = dict(CLEAN)
    assert found.active() == FIRST
    return found


def alarmed(world: PodWorld) -> None:
    """Let the same work take three times as long until an alarm is raised."""
    for _ in range(5):
        world.trace()
        world.turn(60.0)
    for _ in range(8):
        world.trace(slow=3.0)
        world.turn(60.0)
        if any(each.body["action"] == "alarm" for each in world.ctx.store.list(DRIFT)):
            return
    raise AssertionError("no alarm was raised")


def told(world: PodWorld) -> list[str]:
    """Return the sentences of the alarms that the operator was told."""
    return [e.report.sentence for e in world.said(DriftPost) if e.report.action == "alarm"]


def try_off(world: Pod) -> None:
    world.sidecar.prove(threading.Event())


def outcome(world: Pod) -> str:
    (stored,) = world.ctx.store.list(ATTRIBUTION)
    return stored.phase


def trial(world: Pod) -> PodProof:
    (found,) = world.posted().trials
    return found


def test_a_swap_that_is_the_cause_is_named_and_reported_with_its_pairs(world: Pod) -> None:
    world.live.effect = 0.05
    alarmed(world)
    assert told(world) == [], "it waits until the swap was tried off"
    try_off(world)
    assert outcome(world) == "swap"
    world.turn()
    (said,) = told(world)
    assert "the swap of gemm is the cause: steps take" in said
    assert said.endswith("% longer with it; it rolls back.")
    wire = ProofPost.model_validate_json(world.posted().model_dump_json())
    (found,) = wire.trials
    assert (found.order, found.proposal, found.epoch) == (ORDER.id, ORDER.proposal, ORDER.epoch)
    assert found.claim is not None
    assert str(replay(found.claim, trial_settings(leave().rule)).verdict) == "harms"
    try_off(world)
    assert world.is_off(), "the original serves until the rollback comes"
    found_swap = frozenset({("outcome", "swap")})
    assert world.telemetry.counters["retuned_alarm_attributions_total", found_swap] == 1


def test_where_swaps_are_not_the_cause_the_alarm_names_the_others(world: Pod) -> None:
    alarmed(world)
    try_off(world)
    assert outcome(world) == "not-swaps"
    world.turn()
    (said,) = told(world)
    assert "tried off and are not the cause" in said
    assert not world.is_off()
    claim = trial(world).claim
    assert claim is not None
    assert str(claim.verdict) == "no-measurable-effect"
    world.turn(3700.0)
    assert world.posted().trials == (), "what shows no harm is reported for an hour"
    assert len(told(world)) == 1


def test_where_the_policy_observes_the_alarm_has_the_command(world: Pod) -> None:
    world.operator.allow_trials(leave(mode="observe"))
    world.live.effect = 0.05
    alarmed(world)
    try_off(world)
    world.turn()
    (said,) = told(world)
    assert said.endswith("roll it back with `kubectl retuned rollback swp-a`.")
    assert not world.is_off()


def test_an_alarm_waits_a_minute_at_most(world: Pod) -> None:
    alarmed(world)
    world.turn(HOLD_S / 2.0)
    assert told(world) == []
    world.turn(HOLD_S / 2.0)
    (said,) = told(world)
    assert said.endswith("is the cause is being measured.")
    try_off(world)
    world.turn()
    assert len(told(world)) == 1, "the answer follows as a trial"
    assert trial(world).claim is not None


def test_a_restart_loses_no_alarm(world: Pod) -> None:
    alarmed(world)
    world.start()
    assert world.ctx.store.ids(DRIFT, phase=HELD)
    world.turn(HOLD_S)
    assert len(told(world)) == 1


def test_an_operator_that_is_away_hears_the_alarm_when_it_is_back(world: Pod) -> None:
    alarmed(world)
    world.start()
    world.operator.away = True
    try_off(world)
    assert outcome(world) == "trying", "whether it may is not known before the first answer"
    world.turn(HOLD_S)
    world.operator.away = False
    world.turn()
    assert len(told(world)) == 1
    try_off(world)
    assert outcome(world) == "not-swaps"


def test_what_the_operator_does_not_allow_is_not_tried(world: Pod) -> None:
    world.operator.allow_trials()
    alarmed(world)
    reads = world.live.reads
    try_off(world)
    assert outcome(world) == "unknown"
    assert world.live.reads == reads
    world.turn()
    (said,) = told(world)
    assert "is the cause is unknown (not-measured)" in said
    assert world.posted().trials == ()


def test_leave_that_is_taken_back_ends_the_trial_with_the_swap_on(world: Pod) -> None:
    alarmed(world)

    def taken_back() -> None:
        world.operator.allow_trials()
        world.sidecar.listen(wait_s=0.0)

    meanwhile(world, taken_back, after=20)
    try_off(world)
    assert outcome(world) == "unknown"
    assert not world.is_off()
    world.turn()
    assert "(interrupted)" in told(world)[0]


def test_a_sidecar_that_is_killed_in_a_trial_continues_it(world: Pod) -> None:
    world.live.effect = 0.05
    alarmed(world)
    world.live.dies_at = world.live.reads + 60
    with pytest.raises(KeyboardInterrupt):
        try_off(world)
    world.start()
    world.turn()
    try_off(world)
    assert outcome(world) == "swap"
    claim = trial(world).claim
    assert claim is not None
    assert str(replay(claim, trial_settings(leave().rule)).verdict) == "harms"
    assert "abandoned" in {str(each.void) for each in claim.pairs}


def killed_with_the_swap_off(world: Pod) -> None:
    wait = world.live.wait

    def waits(seconds: float) -> None:
        wait(seconds)
        if world.is_off():
            raise KeyboardInterrupt

    world.live.wait = waits  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        try_off(world)
    world.live.wait = wait  # type: ignore[method-assign]


def test_a_swap_that_a_killed_trial_left_off_is_switched_on(
    world: Pod, monkeypatch: pytest.MonkeyPatch
) -> None:
    alarmed(world)
    with monkeypatch.context() as patched:  # a process that is killed leaves nothing in order
        patched.setattr("retuned.node.live_proof.ProofRunner._left", lambda *_: None)
        killed_with_the_swap_off(world)
    assert world.is_off()
    world.operator.allow_trials()
    world.start()
    world.turn()
    try_off(world)
    assert not world.is_off()
    assert world.ctx.store.ids(TRIAL)


def test_an_alarm_on_a_server_without_swaps_is_told_at_once(tmp_path: Path) -> None:
    world = Pod(tmp_path)
    alarmed(world)
    assert len(told(world)) == 1
    assert world.ctx.store.list(ATTRIBUTION) == []


def test_without_steps_or_levels_the_cause_is_unknown(world: Pod) -> None:
    world.operator.allow_trials(leave(slo={"maxQueue": 4}))
    alarmed(world)
    try_off(world)
    world.turn()
    assert "unknown (no-service-levels)" in told(world)[0]


def test_a_sidecar_without_steps_tells_that_it_is_unknown(world: Pod) -> None:
    world.sidecar = Sidecar(replace(world.ctx, live_steps=None))
    alarmed(world)
    try_off(world)
    world.turn()
    assert "unknown (not-switchable)" in told(world)[0]

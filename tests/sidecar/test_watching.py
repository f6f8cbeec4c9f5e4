"""A way back needs nobody: it is taken by the sidecar itself, and told when somebody listens."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.sidecar.sidecar_world import CLEAN, FIRST, SECOND, PodWorld, back, swap

from retuned.api.agent import DriftPost, OrderDone, Outcome, ProfileReport
from retuned.stages.swap import CanaryStep
from retuned.stages.watch import WatchAction

HARM: dict[str, Any] = {**CLEAN, "shadow_mismatches": 1, "worst_ratio": 9.0}


@pytest.fixture
def world(tmp_path: Path) -> PodWorld:
    found = PodWorld(tmp_path)
    found.publish(FIRST)
    found.publish(SECOND)
    return found


def test_clean_checks_are_told_as_reason_to_keep(world: PodWorld) -> None:
    world.order(swap())
    world.swapper.counts["gemm"] = dict(CLEAN)
    world.turn(5.0)
    world.turn(15.0)
    report = world.slot().report
    assert report is not None
    assert report.action is WatchAction.KEEP


def test_harm_is_undone_within_one_look_and_told(world: PodWorld) -> None:
    world.order(swap())
    world.swapper.counts["gemm"] = dict(HARM)
    world.sidecar.steer()
    assert world.active() is None, "nobody was asked"
    world.turn()
    assert ("swap-p1-2", Outcome.ROLLED_BACK, "shadow-mismatch") in world.outcomes()
    slot = world.slot()
    assert slot.report is not None
    assert (slot.proposal, slot.report.action) == ("p1", WatchAction.ROLLBACK)
    assert (slot.active, slot.epoch) == (None, 3)


def test_what_the_runtime_took_back_by_itself_is_made_official(world: PodWorld) -> None:
    world.order(swap())
    world.swapper.counts["gemm"] = {**CLEAN, "tripped": "shadow-mismatch"}
    world.turn()
    assert world.active() is None
    assert ("swap-p1-2", Outcome.ROLLED_BACK, "tripped") in world.outcomes()


def test_harm_is_told_with_each_look_until_another_order_comes(world: PodWorld) -> None:
    world.order(swap())
    world.swapper.counts["gemm"] = dict(HARM)
    world.turn()
    world.start()  # a sidecar that is restarted knows it still
    world.turn()
    report = world.slot().report
    assert report is not None
    assert report.reason == "shadow-mismatch"
    world.order(swap(SECOND, epoch=4, proposal="p2"))
    slot = world.slot()
    assert (slot.proposal, slot.active) == ("p2", SECOND)
    assert slot.report is None or slot.report.action is WatchAction.WAIT


def test_a_proposal_that_did_harm_here_is_not_carried_out_here_again(world: PodWorld) -> None:
    world.order(swap())
    world.swapper.counts["gemm"] = dict(HARM)
    world.turn()
    world.swapper.counts.clear()
    world.order(swap(epoch=7))  # by an operator that has not heard of it
    assert world.active() is None
    assert world.outcomes()[-1] == ("swap-p1-7", Outcome.REFUSED, "failed-here")


def test_the_operators_own_way_back_after_ours_changes_nothing(world: PodWorld) -> None:
    forward = swap()
    world.order(forward)
    world.swapper.counts["gemm"] = dict(HARM)
    world.turn()
    world.order(back(forward, epoch=4))
    assert world.active() is None
    assert world.outcomes()[-1][1] is Outcome.DONE


def test_a_way_back_leads_to_what_was_there_before(world: PodWorld) -> None:
    world.order(swap())
    world.order(swap(SECOND, epoch=3, proposal="p2", previous=FIRST))
    world.swapper.counts["gemm"] = dict(HARM)
    world.sidecar.steer()
    assert world.active() == FIRST


def test_a_way_back_never_leads_to_what_did_harm_here(world: PodWorld) -> None:
    world.order(swap())
    world.swapper.counts["gemm"] = dict(HARM)
    world.turn()
    world.swapper.counts.clear()
    world.order(swap(SECOND, epoch=5, proposal="p2", previous=FIRST))
    assert world.active() == SECOND
    world.swapper.counts["gemm"] = dict(HARM)
    world.turn()
    assert world.active() is None


def test_harm_from_what_a_way_back_led_to_ends_at_the_original(world: PodWorld) -> None:
    world.order(swap())
    world.order(swap(SECOND, epoch=3, proposal="p2", previous=FIRST))
    for _ in range(2):
        world.swapper.counts["gemm"] = dict(HARM)
        world.turn()
    assert world.active() is None


def test_a_swap_that_no_launch_runs_goes_back(world: PodWorld) -> None:
    world.order(swap())
    world.swapper.counts["gemm"] = {"fallback_launches": 100_000}
    for _ in range(8):
        world.turn(10.0)
    assert world.active() is None
    assert ("swap-p1-2", Outcome.ROLLED_BACK, "not-engaged") in world.outcomes()


def test_one_slot_that_does_harm_leaves_the_other_in_force(world: PodWorld) -> None:
    world.publish(SECOND, name="norm")
    world.order(swap(), swap(SECOND, epoch=2, proposal="p2", name="norm"))
    world.swapper.counts["gemm"] = dict(HARM)
    world.turn()
    assert (world.active("gemm"), world.active("norm")) == (None, SECOND)


def test_a_canary_over_launches_takes_its_steps_without_the_operator(world: PodWorld) -> None:
    step = CanaryStep(fraction=0.1, min_checks=10, min_s=5.0)
    world.order(swap().model_copy(update={"canary": (step,)}))
    world.operator.away = True
    bucket = {"bucket": (4,), "launches": 1_000, "checks": 50, "step_checks": 50}
    world.swapper.counts["gemm"] = {**CLEAN, "fraction_s": 30.0, "buckets": (bucket,)}
    world.turn()
    samples = {each.definition: each for each in world.swapper.samples()}
    assert samples["gemm"].fraction == 1.0


def test_an_hour_without_the_operator_loses_no_watch_no_way_back_and_no_report(
    world: PodWorld,
) -> None:
    world.order(swap())
    before = len(world.said(ProfileReport))
    world.operator.away = True
    for minute in range(60):
        world.trace(launches=300)
        if minute >= 30:  # other traffic, all of a sudden
            world.trace("attention", launches=2_000, number=1)
        if minute == 40:
            world.swapper.counts["gemm"] = dict(HARM)
        if minute == 45:
            world.start()  # and the sidecar is restarted in the middle of it
        world.turn(60.0)
    assert world.active() is None, "the way back waited for nobody"
    assert world.said(OrderDone)[1:] == []
    world.operator.away = False
    world.turn()
    assert ("swap-p1-2", Outcome.ROLLED_BACK, "shadow-mismatch") in world.outcomes()
    assert len(world.said(ProfileReport)) - before >= 58
    assert world.said(DriftPost), "the new traffic was noticed meanwhile"
    starts = [each.profile.window_start_ns for each in world.said(ProfileReport)]
    assert starts == sorted(set(starts)), "each once, in order"
    assert len(world.ctx.spool) == 0


def test_clocks_that_differ_by_hours_change_nothing(world: PodWorld) -> None:
    world.operator.now = world.clock.now() + timedelta(hours=7)
    world.order(swap())
    assert world.active() == FIRST
    world.clock.set_wall(world.clock.now() - timedelta(hours=3))  # and somebody sets the pod's back
    world.swapper.counts["gemm"] = dict(CLEAN)
    world.turn(5.0)
    world.turn(15.0)
    report = world.slot().report
    assert report is not None
    assert report.action is WatchAction.KEEP
    world.swapper.counts["gemm"] = dict(HARM)
    world.turn()
    assert world.active() is None
    gauges = {name: value for (name, _), value in world.telemetry.gauges.items()}
    assert gauges["retuned_clock_skew_seconds"] < -3600.0, "people are shown it"

"""What the loop believes after it has learned something, and when it stops spending."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from tests.standalone.local_world import KERNEL, LOST, WON, World, auto_policy

from retuned.contract import Guard, Workload
from retuned.errors import TemporaryError
from retuned.ports import Finding
from retuned.stages.drift import DriftAction, DriftReport
from retuned.stages.gate import KernelTuningPolicy, TuningFreeze
from retuned.stages.hypothesis import Hypothesis, ShapeCost, hypothesize
from retuned.stages.profile import Signature, SignatureStat, WorkloadProfile
from retuned.stages.swap import SwapKind, SwapOrder
from retuned.standalone import experiments, hypotheses
from retuned.standalone.context import Context, RecordKind

SISTER = "linear_sister"


def swap_in(ctx: Context, guard: Guard) -> None:
    """Write the order that a swap leaves behind."""
    order = SwapOrder(
        id="order-1",
        kind=SwapKind.SWAP,
        proposal="p",
        target="demo",
        definition=KERNEL,
        artifact=WON.solution.digest,
        guard=guard,
        epoch=1,
        shadow_every=50,
        previous=None,
    )
    ctx.store.add(RecordKind.ORDER, order.id, order.model_dump(mode="json"), phase="done")


def window(*rows: int) -> WorkloadProfile:
    stats = tuple(
        SignatureStat(
            signature=Signature(kernel=f"retuned::{KERNEL}", dims=((m, 64), (64, 64))),
            launches=10,
            gpu_time_ns=10_000_000,
            median_ns=1_000_000,
        )
        for m in rows
    )
    return WorkloadProfile(window_start_ns=0, window_ns=10**9, observed_ns=10**9, stats=stats)


def belief(definition: str = KERNEL, structures: tuple[str, ...] = ("panels",)) -> Hypothesis:
    report = DriftReport(
        detected=True,
        action=DriftAction.RETUNE,
        reasons=(),
        distance=0.5,
        window_start_ns=0,
        sentence="longer prompts",
    )
    cost = ShapeCost(
        workload=Workload(definition=definition, axes={"M": 256}, weight=10.0),
        gpu_time_ns=500_000_000,
        median_ns=1_000_000,
        floor_ns=900_000,
    )
    (made,) = hypothesize(
        {definition: [cost]},
        report=report,
        total_gpu_time_ns=10**9,
        start={definition: structures},
    )
    return made


def conclude(ctx: Context, tested: Hypothesis, found: Finding) -> None:
    """Run an experiment on a belief that finds just this."""
    ctx.store.add(RecordKind.HYPOTHESIS, tested.id, tested.model_dump(mode="json"), phase="open")
    plan = experiments.open_experiment(ctx)
    assert plan is not None
    assert plan.definition == tested.definition
    experiments.run_experiment(ctx, plan)


def test_an_untested_belief_learns_from_a_win_in_its_family_though_it_stays_the_same_try(
    world: World,
) -> None:
    ctx = world.loop.ctx
    waiting = belief(SISTER)
    ctx.store.add(RecordKind.HYPOTHESIS, waiting.id, waiting.model_dump(mode="json"), phase="open")
    tested = belief().model_copy(update={"expected_saving": 0.4})
    conclude(ctx, tested, WON)
    stored = ctx.store.get(RecordKind.HYPOTHESIS, waiting.id)
    assert stored is not None
    assert stored.phase == "open"
    assert WON.verdict.speedup is not None
    assert stored.body["expected_gain_ratio"] == pytest.approx(WON.verdict.speedup.lower)
    assert stored.body["expected_saving"] > waiting.expected_saving
    assert KERNEL in stored.body["because"]


def test_the_family_is_spared_a_try_that_found_nothing(world: World) -> None:
    ctx = world.loop.ctx
    waiting = belief(SISTER, structures=("rows",))
    hypotheses.open_belief(ctx, waiting)
    tried = belief(structures=("rows",)).model_copy(update={"expected_saving": 0.4})
    conclude(ctx, tried, LOST)
    assert [s.phase for s in ctx.store.list(RecordKind.HYPOTHESIS) if s.id == waiting.id] == [
        "outdated"
    ]
    sisters = [
        Hypothesis.model_validate(s.body)
        for s in ctx.store.list(RecordKind.HYPOTHESIS, phase="open")
        if s.body["definition"] == SISTER
    ]
    assert [each.structures for each in sisters] == [("panels",)]
    assert f"brought nothing on {KERNEL}" in sisters[0].because


def test_a_win_short_of_the_belief_is_proposed_at_once_and_the_search_goes_on(
    world: World,
) -> None:
    ctx = world.loop.ctx
    hoped = belief().model_copy(update={"expected_saving": 0.9, "expected_gain_ratio": 4.0})
    conclude(ctx, hoped, WON)
    assert [s.phase for s in ctx.store.list(RecordKind.EXPERIMENT)] == ["won"]
    (refined,) = ctx.store.list(RecordKind.HYPOTHESIS, phase="open")
    assert refined.body["attempts"][0]["reason"] == "short-of-belief"


def test_no_experiment_begins_when_the_day_s_time_is_spent(world: World) -> None:
    ctx = world.loop.ctx
    conclude(ctx, belief(), WON)
    hypotheses.open_belief(ctx, belief(SISTER))
    limits = replace(ctx.settings, experiment_s_per_day=1.0)
    for _ in range(3):
        assert experiments.open_experiment(replace(ctx, settings=limits)) is None
    said = [event for event in ctx.store.events() if event.what == "budget-spent"]
    assert len(said) == 1, "said once, not at every look"
    assert "2 s of candidates" in str(said[0].detail["sentence"])
    assert experiments.open_experiment(ctx) is not None


def test_no_experiment_begins_behind_a_stop_sign_until_it_ends(world: World) -> None:
    ctx = world.loop.ctx
    hypotheses.open_belief(ctx, belief())
    until = world.clock.now() + timedelta(hours=2)
    freeze = TuningFreeze(id="release", user="ada", at=world.clock.now(), until=until)
    ctx.store.add(RecordKind.FREEZE, freeze.id, freeze.model_dump(mode="json"), phase="active")
    assert experiments.open_experiment(ctx) is None
    world.clock.advance(2 * 3600.0)
    assert experiments.open_experiment(ctx) is not None


def test_a_belief_that_was_dropped_untested_may_be_believed_again(world: World) -> None:
    ctx = world.loop.ctx
    for dropped in ("outdated", "abandoned"):
        hypotheses.open_belief(ctx, belief())
        assert ctx.store.advance(RecordKind.HYPOTHESIS, belief().id, expect="open", to=dropped)
    hypotheses.open_belief(ctx, belief())
    assert world.phases(RecordKind.HYPOTHESIS) == ["open"]


def test_only_shapes_that_the_live_variant_serves_are_tuned_against_it(world: World) -> None:
    ctx = world.loop.ctx
    before, _ = hypotheses.costs_of(ctx, window(2, 64, 256), counts={})
    assert [cost.workload.axes["M"] for cost in before[KERNEL]] == [2, 64, 256]
    swap_in(ctx, Guard(bounds={"M": (64, 256)}))
    after, _ = hypotheses.costs_of(ctx, window(2, 64, 256), counts={})
    assert [cost.workload.axes["M"] for cost in after[KERNEL]] == [64, 256]


def test_a_gain_that_is_in_force_is_not_hoped_for_again(world: World) -> None:
    ctx = world.loop.ctx
    conclude(ctx, belief(), WON)
    assert hypotheses.gains(ctx, [KERNEL, SISTER]).keys() == {KERNEL, SISTER}
    swap_in(ctx, Guard(bounds={"M": (64, 256)}))
    assert hypotheses.gains(ctx, [KERNEL, SISTER]).keys() == {SISTER}


def test_beside_a_variant_in_force_only_what_was_not_tried_is_tried(world: World) -> None:
    ctx = world.loop.ctx
    assert hypotheses.first_structures(ctx, KERNEL) == ("rows",), "the source that runs"
    conclude(ctx, belief(structures=("panels",)), WON)
    assert hypotheses.first_structures(ctx, KERNEL) == ("panels",), "where it was won"
    swap_in(ctx, Guard(bounds={"M": (64, 256)}))
    assert hypotheses.first_structures(ctx, KERNEL) == ("rows",), "the one that is left"


def test_a_shape_that_slots_counted_but_no_trace_saw_is_not_forgotten(world: World) -> None:
    shapes, total_ns = hypotheses.costs_of(
        world.loop.ctx, window(2, 64), counts={KERNEL: {"2": 900, "64": 90, "256": 50, "128": 1}}
    )
    known = {cost.workload.axes["M"]: cost for cost in shapes[KERNEL]}
    assert known.keys() == {2, 64, 256}, "one launch is nothing to go by"
    assert known[256].workload.weight == pytest.approx(50.0), "per second"
    assert known[256].gpu_time_ns == 50 * known[256].median_ns > 0
    assert total_ns == sum(cost.gpu_time_ns for cost in shapes[KERNEL])


def test_a_window_has_the_counts_of_the_slots_and_the_times_of_the_trace(world: World) -> None:
    for number in range(3):  # a window closes when the next one has begun
        world.server.launches[KERNEL] = {(8,): 1000 + 5000 * number}
        world.window(8)
        world.loop.observe()
    first, second = [s.body for s in world.store.list(RecordKind.WINDOW)]
    assert first["counts"] == {}, "nothing to compare with"
    assert second["counts"] == {KERNEL: {"8": 5000}}
    (sampled,) = first["profile"]["stats"]
    (counted,) = second["profile"]["stats"]
    assert sampled["launches"] == 400
    assert counted["launches"] == 5000
    assert counted["gpu_time_ns"] == pytest.approx(sampled["gpu_time_ns"] * 5000 / 400, rel=0.01)
    assert second["profile"]["observed_ns"] == second["profile"]["window_ns"]


def test_batches_that_the_disk_had_no_room_for_are_not_lost(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> bool:
        raise TemporaryError("the disk is full", delay_s=1.0)

    world.window(8)
    world.window(8)
    with monkeypatch.context() as patched:
        patched.setattr(type(world.store), "add", full)
        with pytest.raises(TemporaryError):
            world.loop.observe()
    world.loop.observe()
    assert len(world.store.list(RecordKind.BATCH)) == 2


def under(world: World, spec: dict[str, object]) -> None:
    """Let another policy hold from now on."""
    body = auto_policy().model_dump(mode="json", by_alias=True)
    world.policies = (
        KernelTuningPolicy.model_validate({**body, "spec": {**body["spec"], **spec}}),
    )


def test_a_policy_forbids_experiments_and_limits_their_size(world: World) -> None:
    ctx = world.loop.ctx
    hypotheses.open_belief(ctx, belief(structures=()))
    under(world, {"experiments": {"maxConcurrent": 0}})
    assert experiments.open_experiment(ctx) is None
    under(world, {"experiments": {"budget": {"gpuHoursPerDay": 0.0}}})
    assert experiments.open_experiment(ctx) is None
    under(world, {"experiments": {"budget": {"maxTrials": 2}}})
    plan = experiments.open_experiment(ctx)
    assert plan is not None
    assert plan.budget.max_candidates == 2


def test_a_policy_says_how_long_harm_is_remembered(world: World) -> None:
    ctx = world.loop.ctx
    limits = ctx.policy_limits(KERNEL)
    assert limits is not None
    under(world, {"rollout": {"autoRollback": {"quarantine": "2h"}}})
    changed = ctx.policy_limits(KERNEL)
    assert changed is not None
    assert changed.quarantine == timedelta(hours=2) != limits.quarantine
    world.policies = ()
    assert ctx.policy_limits(KERNEL) is None


def test_a_process_that_misses_an_answer_does_not_bring_its_whole_life_into_one_window(
    world: World,
) -> None:
    for total in (9_000, 15_000, 7_000, 21_000, 26_000, 31_000):  # one of two is silent once
        world.server.launches[KERNEL] = {(8,): total}
        world.window(8)
        world.loop.observe()
    counts = [s.body["counts"].get(KERNEL) for s in world.store.list(RecordKind.WINDOW)]
    assert counts == [None, None, None, {"8": 5_000}, {"8": 5_000}]


def test_after_hours_without_windows_the_counters_say_nothing_of_the_first(world: World) -> None:
    for number, hours in enumerate((0, 0, 8, 0)):
        world.clock.advance(hours * 3600.0)
        world.server.launches[KERNEL] = {(8,): 1_000 * (1 + number) ** 4}
        world.window(8)
        world.loop.observe()
    counts = [s.body["counts"].get(KERNEL) for s in world.store.list(RecordKind.WINDOW)]
    assert counts[1] is not None
    assert counts[2] is None


@pytest.mark.parametrize("said", ["ifIncumbent", "off"])
def test_a_plan_asks_of_rows_what_the_policy_says(world: World, said: str) -> None:
    ctx = world.loop.ctx
    body = auto_policy().model_dump(mode="json", by_alias=True)
    body["spec"]["validation"]["batchInvariance"] = said
    world.policies = (KernelTuningPolicy.model_validate(body),)
    tested = belief()
    ctx.store.add(RecordKind.HYPOTHESIS, tested.id, tested.model_dump(mode="json"), phase="open")
    plan = experiments.open_experiment(ctx)
    assert plan is not None
    assert plan.batch_invariant is (said == "ifIncumbent")

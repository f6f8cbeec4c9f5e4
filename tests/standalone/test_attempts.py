"""What an experiment says to its belief, and what of it is kept and used later."""

from __future__ import annotations

import pytest
from tests.standalone.local_world import (
    ENVIRONMENT,
    INCUMBENT,
    KERNEL,
    LOST,
    WON,
    Lab,
    World,
    solution,
)

from retuned.contract import Solution, Workload
from retuned.control.outcome import attempt_of
from retuned.ports import Finding
from retuned.stages.experiment import ExperimentPlan, Turn, TurnOutcome
from retuned.stages.hypothesis import Hypothesis
from retuned.stages.verdict import Interval, Reason, ShapeResult, Status, Verdict
from retuned.standalone import experiments
from retuned.standalone.context import Context, RecordKind
from retuned.standalone.findings import earlier_findings

SHAPES = tuple(Workload(definition=KERNEL, axes={"M": rows}) for rows in (1, 64))
PLAN = ExperimentPlan(
    id="sha256:" + "a" * 64,
    hypothesis="h",
    definition=KERNEL,
    workloads=SHAPES,
    incumbent=INCUMBENT.digest,
    environment=ENVIRONMENT,
)


def failed(structure: str, number: int, reason: Reason) -> Finding:
    tried = solution(f"{structure}{number}", structure)
    verdict = Verdict(
        status=Status.REJECT,
        reason=reason,
        gate="G4",
        candidate=tried.digest,
        incumbent=INCUMBENT.digest,
    )
    return Finding(solution=tried, verdict=verdict, seconds=2.0)


def measured(tried: Solution, ratios: dict[int, float]) -> Finding:
    shapes = tuple(
        ShapeResult(
            axes={"M": rows},
            weight=1.0,
            incumbent_us=100.0 if rows == 64 else 25.0,
            candidate_us=100.0 / ratio,
            speedup=Interval(lower=ratio * 0.98, point=ratio, upper=ratio * 1.01, confidence=0.95),
        )
        for rows, ratio in ratios.items()
    )
    verdict = Verdict(
        status=Status.REJECT,
        reason=Reason.SLOWER,
        gate="G6",
        candidate=tried.digest,
        incumbent=INCUMBENT.digest,
        shapes=shapes,
        speedup=Interval(lower=0.9, point=0.95, upper=0.99, confidence=0.95),
    )
    return Finding(solution=tried, verdict=verdict, seconds=3.0)


def test_reasons_are_counted_and_structures_that_never_worked_are_named() -> None:
    found = [
        failed("tiles", 1, Reason.WRONG_OUTPUT),
        failed("tiles", 2, Reason.OUT_OF_BOUNDS),
        failed("split", 1, Reason.OVER_LIMIT),
        LOST,
    ]
    attempt = attempt_of(PLAN, found, None)
    assert attempt.hopeless == ("tiles",)
    assert attempt.reasons["over-limit"] == 1
    assert sum(attempt.reasons.values()) == 4
    assert attempt.seconds == 7.0
    assert attempt.reason == "slower"


def test_shapes_at_which_all_finalists_lost_are_named_with_their_share() -> None:
    found = [
        measured(solution("x", "panels"), {1: 0.8, 64: 1.2}),
        measured(solution("y", "panels"), {1: 0.7, 64: 0.9}),
    ]
    attempt = attempt_of(PLAN, found, None)
    assert attempt.lost == SHAPES[:1]
    assert attempt.lost_share == pytest.approx(0.2)


def test_one_finalist_that_did_not_lose_keeps_the_shape() -> None:
    found = [
        measured(solution("x", "panels"), {1: 0.8, 64: 1.2}),
        measured(solution("y", "panels"), {1: 1.0, 64: 0.9}),
    ]
    assert attempt_of(PLAN, found, None).lost == ()


def test_nothing_tried_is_an_attempt_without_numbers() -> None:
    attempt = attempt_of(PLAN, [], None)
    assert (attempt.reason, attempt.seconds, attempt.reasons) == ("no-candidates", 0.0, {})


def test_a_win_that_falls_short_says_so() -> None:
    assert attempt_of(PLAN, [LOST, WON], WON).reason == "short-of-belief"


def belief(**more: object) -> Hypothesis:
    body = {
        "id": "sha256:" + "b" * 64,
        "definition": KERNEL,
        "workloads": SHAPES,
        "share": 0.5,
        "expected_gain_ratio": 1.5,
        "expected_saving": 0.15,
        "because": "a test",
        **more,
    }
    return Hypothesis.model_validate(body)


def run(ctx: Context, tested: Hypothesis) -> ExperimentPlan:
    ctx.store.add(RecordKind.HYPOTHESIS, tested.id, tested.model_dump(mode="json"), phase="open")
    plan = experiments.open_experiment(ctx)
    assert plan is not None
    experiments.run_experiment(ctx, plan)
    return plan


def done(ctx: Context, plan: ExperimentPlan) -> dict[str, object]:
    (event,) = [e for e in ctx.store.events(id=plan.id) if e.what == "experiment-done"]
    return dict(event.detail)


def test_turns_are_stored_with_the_experiment_and_told_in_its_history(world: World) -> None:
    turn = Turn(
        number=1,
        generator="search",
        because="no other generator is left",
        outcome=TurnOutcome.TRIED,
        proposed=(LOST.solution.digest,),
        tried=1,
        gain_ratio=1.25,
        seconds=4.0,
    )
    ctx = world.loop.ctx
    assert isinstance(ctx.bench, Lab)
    ctx.bench.asked = (turn,)
    plan = run(ctx, belief())
    stored = ctx.store.get(RecordKind.TURNS, plan.id)
    assert stored is not None
    assert [Turn.model_validate(each) for each in stored.body["turns"]] == [turn]
    assert done(ctx, plan)["asked"] == "search: 1 turn, 1 candidates, 1.25x in 4 s"


def test_an_experiment_says_why_no_other_follows(world: World) -> None:
    ctx = world.loop.ctx
    small = belief(
        structures=("rows",), share=0.009, expected_gain_ratio=4.0, expected_saving=0.0067
    )
    plan = run(ctx, small)
    detail = done(ctx, plan)
    assert detail["next"] == "saving-too-small"
    assert detail["why"]


def test_an_experiment_says_what_follows(world: World) -> None:
    ctx = world.loop.ctx
    plan = run(ctx, belief(structures=("rows",)))
    assert done(ctx, plan)["next"] == "refined"
    (refined,) = ctx.store.list(RecordKind.HYPOTHESIS, phase="open")
    attempt = refined.body["attempts"][0]
    assert attempt["reasons"] == {"slower": 1}
    assert attempt["seconds"] == 1.0


def test_the_next_experiment_is_told_what_was_found(world: World) -> None:
    ctx = world.loop.ctx
    first = run(ctx, belief(structures=("rows",)))
    following = PLAN.model_copy(update={"workloads": first.workloads})
    told = earlier_findings(ctx.store, following, family=lambda _name: "linear")
    assert [each.finding.solution.digest for each in told] == [LOST.solution.digest]
    assert told[0].environment == first.environment
    assert told[0].workloads == first.workloads
    assert told[0].arch == ""


def test_other_operators_and_the_plan_itself_are_no_earlier_experiments(world: World) -> None:
    ctx = world.loop.ctx
    plan = run(ctx, belief(structures=("rows",)))
    assert earlier_findings(ctx.store, plan, family=lambda _name: "linear") == []
    assert earlier_findings(ctx.store, PLAN, family=lambda name: name * (name != KERNEL)) == []


def test_findings_from_another_environment_come_with_its_architecture(world: World) -> None:
    ctx = world.loop.ctx
    run(ctx, belief(structures=("rows",)))
    elsewhere = PLAN.model_copy(update={"environment": "sha256:" + "c" * 64})
    (told,) = earlier_findings(ctx.store, elsewhere, family=lambda _name: "linear")
    assert told.environment == ENVIRONMENT

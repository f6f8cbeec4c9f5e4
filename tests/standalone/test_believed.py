"""What the store's findings make the next experiment believe."""

from __future__ import annotations

from pathlib import Path

from tests.expect import raises_naming
from tests.standalone.local_world import ENVIRONMENT, KERNEL, LOST, WINNER, WON, World
from tests.standalone.test_beliefs import belief, conclude

from retuned.contract import digest_of
from retuned.experiment.child import LabProcess
from retuned.experiment.fake import FakeBench
from retuned.lab.generators.priors import Expectation
from retuned.stages.experiment import ExperimentPlan, Turn, TurnOutcome
from retuned.standalone.context import Context, RecordKind
from retuned.standalone.findings import priors_for

HERE = {"family": lambda _name: "linear", "language": "cpu_cpp", "arch": "cpu"}


def coming(ctx: Context, **changed: object) -> ExperimentPlan:
    (done,) = ctx.store.list(RecordKind.EXPERIMENT)
    plan = ExperimentPlan.model_validate(done.body)
    return plan.model_copy(update={"id": "coming", **changed})


def test_a_structure_that_won_is_expected_to_win_again(world: World) -> None:
    ctx = world.loop.ctx
    conclude(ctx, belief(), WON)
    priors = priors_for(ctx.store, coming(ctx), **HERE)  # type: ignore[arg-type]
    assert priors is not None
    assert [each.structure for each in priors.structures] == ["panels", "rows"]
    expect = Expectation(priors)
    assert expect.mean("panels", WINNER.params) > 0.0 > expect.mean("rows", LOST.solution.params)


def test_what_another_operator_or_an_unknown_device_found_is_not_believed(world: World) -> None:
    ctx = world.loop.ctx
    conclude(ctx, belief(), WON)
    plan = coming(ctx)
    other = {**HERE, "family": lambda name: name if name == KERNEL else "other"}
    elsewhere = plan.model_copy(update={"definition": "attention"})
    assert priors_for(ctx.store, elsewhere, **other) is None  # type: ignore[arg-type]
    moved = plan.model_copy(update={"environment": digest_of("new driver")})
    assert priors_for(ctx.store, moved, **HERE) is None  # type: ignore[arg-type]
    assert plan.environment == ENVIRONMENT


def test_a_resumed_plan_begins_with_the_beliefs_it_began_with(world: World) -> None:
    ctx = world.loop.ctx
    conclude(ctx, belief(), WON)
    plan = coming(ctx)
    body = plan.model_dump(mode="json")
    ctx.store.add(RecordKind.EXPERIMENT, plan.id, body, phase="running")
    before = priors_for(ctx.store, plan, **HERE)  # type: ignore[arg-type]
    found = {
        "solution": LOST.solution.model_dump(mode="json"),
        "verdict": LOST.verdict.model_dump(mode="json"),
        "seconds": 1.0,
    }
    ctx.store.add(RecordKind.FINDING, f"{plan.id}/{LOST.solution.digest}", found, phase="final")
    world.clock.advance(86_400 * 90)
    assert priors_for(ctx.store, plan, **HERE) == before  # type: ignore[arg-type]


def test_turns_of_earlier_experiments_say_whom_to_ask_first(world: World) -> None:
    ctx = world.loop.ctx
    conclude(ctx, belief(), WON)
    (done,) = ctx.store.list(RecordKind.EXPERIMENT)
    turns = [
        Turn(
            number=number,
            generator=name,
            because="t",
            outcome=TurnOutcome.TRIED,
            gain_ratio=gain,
            seconds=10.0,
        )
        for number, (name, gain) in enumerate((("search", 1.0), ("recipes", 1.4)), start=1)
    ]
    body = {"turns": [turn.model_dump(mode="json") for turn in turns]}
    ctx.store.add(RecordKind.TURNS, done.id, body, phase="final")
    priors = priors_for(ctx.store, coming(ctx), **HERE)  # type: ignore[arg-type]
    assert priors is not None
    assert [each.generator for each in priors.generators] == ["recipes", "search"]
    ctx.store.advance(
        RecordKind.TURNS, done.id, expect="final", to="final", body={"turns": "damaged"}
    )
    priors = priors_for(ctx.store, coming(ctx), **HERE)  # type: ignore[arg-type]
    assert priors is not None
    assert priors.generators == ()


def test_the_lab_is_told_what_is_believed(world: World, tmp_path: Path) -> None:
    ctx = world.loop.ctx
    conclude(ctx, belief(), WON)
    asked = []
    lab = LabProcess(
        tmp_path,
        cores=lambda: (),
        solution=lambda _digest: None,
        builder=FakeBench(script={}, root=tmp_path),
        priors=lambda plan: asked.append(plan.id),
    )
    lab.stop()
    plan = coming(ctx)
    with raises_naming(Exception, "stopped"):
        next(iter(lab.run(plan, known={})))
    assert asked == ["coming"]

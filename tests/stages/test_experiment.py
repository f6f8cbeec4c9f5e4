"""Plans: the same belief about the same world is the same plan, and anything else is another."""

from __future__ import annotations

from retuned.contract import Workload
from retuned.stages.experiment import Budget, ExperimentPlan, plan
from retuned.stages.hypothesis import Hypothesis

A, B = "sha256:" + "a" * 64, "sha256:" + "b" * 64


def belief(*rows: int, structures: tuple[str, ...] = ()) -> Hypothesis:
    return Hypothesis(
        id="h",
        definition="linear",
        workloads=tuple(Workload(definition="linear", axes={"M": m}, weight=m) for m in rows),
        share=0.5,
        expected_gain_ratio=2.0,
        expected_saving=0.25,
        because="a test",
        structures=structures,
    )


def made(*rows: int, incumbent: str = A, environment: str = B, seconds: float = 60.0) -> str:
    budget = Budget(max_seconds=seconds)
    return plan(belief(*rows), incumbent=incumbent, environment=environment, budget=budget).id


def test_the_order_of_shapes_does_not_make_another_experiment() -> None:
    assert made(1, 64) == made(64, 1)


def test_anything_that_changes_what_is_measured_makes_another_experiment() -> None:
    ids = [
        made(1, 64),
        made(1, 65),
        made(1, 64, incumbent=B),
        made(1, 64, environment=A),
        made(1, 64, seconds=61.0),
        plan(belief(1, 64, structures=("panels",)), incumbent=A, environment=B).id,
    ]
    assert len(set(ids)) == len(ids)


def test_a_plan_survives_being_written_and_read() -> None:
    first = plan(belief(1, 64), incumbent=A, environment=B)
    assert ExperimentPlan.model_validate_json(first.model_dump_json()) == first
    assert first.workloads[0].weight == 1


def test_plans_of_earlier_versions_are_recognised() -> None:
    """Else an upgrade pays for every experiment again."""
    hypothesis = Hypothesis(
        id="h",
        definition="d",
        workloads=(Workload(definition="d", axes={"M": 1}),),
        share=0.5,
        expected_gain_ratio=2.0,
        expected_saving=0.25,
        because="a test",
    )
    known = "sha256:2d4b756b2e424beda918afec2ffa1daf4c305f23bd102c564a19eeeee8d27fd6"
    one, other = "sha256:" + "a" * 64, "sha256:" + "b" * 64
    assert plan(hypothesis, incumbent=one, environment=other).id == known
    free = plan(hypothesis, incumbent=one, environment=other, batch_invariant=False)
    assert free.id != known

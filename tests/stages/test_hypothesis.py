"""Beliefs: formed only when asked, ranked by saving, paid once, given up in time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.expect import raises_naming

from retuned.contract import Workload
from retuned.stages.drift import DriftAction, DriftReport
from retuned.stages.hypothesis import (
    Attempt,
    Hypothesis,
    HypothesisSettings,
    ShapeCost,
    hypothesize,
    refine,
)

SECOND = 1_000_000_000


def report(action: DriftAction = DriftAction.RETUNE) -> DriftReport:
    return DriftReport(
        detected=True,
        action=action,
        reasons=(),
        distance=0.3,
        window_start_ns=0,
        sentence="longer prompts",
    )


def cost(definition: str, rows: int, *, share: float, floor: float = 0.25) -> ShapeCost:
    return ShapeCost(
        workload=Workload(definition=definition, axes={"M": rows}, weight=10.0),
        gpu_time_ns=int(share * SECOND),
        median_ns=1_000_000,
        floor_ns=int(floor * 1_000_000),
    )


def believe(
    definition: str = "linear", *, rows: int = 64, share: float = 0.5, floor: float = 0.25
) -> Hypothesis:
    (found,) = hypothesize(
        {definition: [cost(definition, rows, share=share, floor=floor)]},
        report=report(),
        total_gpu_time_ns=SECOND,
    )
    return found


@pytest.mark.parametrize("action", [a for a in DriftAction if a is not DriftAction.RETUNE])
def test_only_a_report_that_asks_for_it_leads_to_hypotheses(action: DriftAction) -> None:
    shapes = {"linear": [cost("linear", 64, share=0.5)]}
    assert hypothesize(shapes, report=report(action), total_gpu_time_ns=SECOND) == ()


def test_a_kernel_as_short_as_its_launch_is_not_believed_in() -> None:
    tiny = cost("rmsnorm", 2, share=0.5).workload
    shapes = {
        "rmsnorm": [
            ShapeCost(workload=tiny, gpu_time_ns=SECOND // 2, median_ns=6000, floor_ns=1000)
        ]
    }
    assert hypothesize(shapes, report=report(), total_gpu_time_ns=SECOND) == ()


def test_a_floor_that_launches_beat_was_guessed_and_tells_as_little_as_none() -> None:
    unknown, beaten = believe(floor=0.0), believe(floor=1.45)
    assert (beaten.expected_saving, beaten.because) == (unknown.expected_saving, unknown.because)
    assert beaten.expected_saving > 0.0


def test_the_kernel_that_saves_most_comes_first() -> None:
    found = hypothesize(
        {
            "norm": [cost("norm", 64, share=0.1)],
            "linear": [cost("linear", 64, share=0.6), cost("linear", 128, share=0.1)],
        },
        report=report(),
        total_gpu_time_ns=SECOND,
    )
    assert [each.definition for each in found] == ["linear", "norm"]
    assert found[0].share == pytest.approx(0.7)
    assert found[0].expected_saving == pytest.approx(0.7 * (1 - 1 / found[0].expected_gain_ratio))


def test_the_same_belief_has_the_same_id_though_its_numbers_moved() -> None:
    first, second = believe(share=0.5), believe(share=0.48)
    assert first.id == second.id
    known = hypothesize(
        {"linear": [cost("linear", 64, share=0.5)]},
        report=report(),
        total_gpu_time_ns=SECOND,
        known={first.id},
    )
    assert known == ()
    assert believe(rows=65).id != first.id


def test_a_kernel_at_its_roofline_is_left_alone() -> None:
    shapes = {"linear": [cost("linear", 64, share=0.9, floor=1.0)]}
    assert hypothesize(shapes, report=report(), total_gpu_time_ns=SECOND) == ()


def test_an_earlier_experiment_is_believed_more_than_a_roofline() -> None:
    (found,) = hypothesize(
        {"linear": [cost("linear", 64, share=0.5, floor=0.01)]},
        report=report(),
        total_gpu_time_ns=SECOND,
        priors={"linear": 1.3},
    )
    assert found.expected_gain_ratio == pytest.approx(1.3)


def test_only_the_costliest_shapes_are_taken() -> None:
    costs = [cost("linear", rows, share=0.01 * rows) for rows in range(1, 9)]
    (found,) = hypothesize({"linear": costs}, report=report(), total_gpu_time_ns=SECOND)
    assert [workload.axes["M"] for workload in found.workloads] == [8, 7, 6, 5]


def test_shapes_that_take_more_than_the_window_are_an_error() -> None:
    with raises_naming(ValueError, "linear", "1500000000 ns", "1000000000 ns"):
        hypothesize(
            {"linear": [cost("linear", 1, share=1.5)]}, report=report(), total_gpu_time_ns=SECOND
        )


@given(st.floats(0.01, 1.0), st.floats(0.01, 1.0))
def test_refinement_believes_less_each_time_and_ends(share: float, floor: float) -> None:
    settings = HypothesisSettings(min_saving=0.0001, max_attempts=3)
    found = hypothesize(
        {"linear": [cost("linear", 64, share=share, floor=floor)]},
        report=report(),
        total_gpu_time_ns=SECOND,
        settings=settings,
    )
    steps, belief = 0, found[0] if found else None
    while belief is not None:
        refined = refine(
            belief, Attempt(experiment=f"e{steps}", reason="slower"), settings=settings
        )
        if refined is not None:
            assert refined.expected_saving < belief.expected_saving
            assert refined.id != belief.id
            assert len(refined.attempts) == steps + 1
        belief, steps = refined, steps + 1
    assert steps <= settings.max_attempts


def test_refinement_tries_the_structures_that_were_not_tried() -> None:
    belief = believe().model_copy(update={"structures": ("row-dots",)})
    refined = refine(
        belief,
        Attempt(experiment="e", reason="not-faster-enough"),
        structures=("row-dots", "panels", "packed-panels"),
    )
    assert refined is not None
    assert refined.structures == ("panels", "packed-panels")
    assert "panels" in refined.because


def test_refinement_stops_where_the_saving_would_not_pay() -> None:
    belief = believe(share=0.02, floor=0.4)
    assert refine(belief, Attempt(experiment="e", reason="slower")) is None


def test_in_another_world_it_is_another_belief() -> None:
    def believed(world: str) -> Hypothesis:
        (found,) = hypothesize(
            {"linear": [cost("linear", 64, share=0.5)]},
            report=report(),
            total_gpu_time_ns=SECOND,
            worlds={"linear": world},
        )
        return found

    assert believed("one").id == believed("one").id != believed("other").id

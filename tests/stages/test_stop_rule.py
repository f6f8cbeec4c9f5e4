"""Trying again ends where it costs more than it can save, and every failure has a consequence."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retuned.contract import Workload
from retuned.stages.hypothesis import (
    Attempt,
    Hypothesis,
    HypothesisSettings,
    Lesson,
    StopReason,
    consider,
    hopeless,
    lesson_of,
    outlook,
    refine,
)
from retuned.stages.hypothesis.refine import REFUSED, SLOW, STARVED, STUCK, UNCLEAR, WRONG
from retuned.stages.verdict import Reason

SHAPES = tuple(Workload(definition="linear", axes={"M": rows}) for rows in (1, 16, 256))


def belief(*, share: float = 0.5, gain: float = 1.5, **more: object) -> Hypothesis:
    body = {
        "id": "h",
        "definition": "linear",
        "workloads": SHAPES,
        "share": share,
        "expected_gain_ratio": gain,
        "expected_saving": share * (1 - 1 / gain),
        "because": "a test",
        **more,
    }
    return Hypothesis.model_validate(body)


def attempt(**more: object) -> Attempt:
    return Attempt.model_validate({"experiment": "e", "reason": "slower", **more})


def test_another_try_that_costs_more_than_it_saves_is_not_made_and_says_so() -> None:
    settings = HypothesisSettings(horizon_s=3600.0, min_saving=0.001)
    answer = consider(belief(share=0.02), attempt(seconds=600.0), settings=settings)
    assert answer.hypothesis is None
    assert answer.stop is StopReason.COSTS_MORE
    assert "costs 600 s of device time" in answer.sentence
    assert answer.outlook is not None
    assert not answer.outlook.pays


def test_the_same_try_pays_where_more_devices_or_more_time_gain_by_it() -> None:
    tried = attempt(seconds=600.0)
    for settings in (
        HypothesisSettings(horizon_s=3600.0, min_saving=0.001, devices=512),
        HypothesisSettings(horizon_s=30 * 86_400.0, min_saving=0.001),
        HypothesisSettings(horizon_s=3600.0, min_saving=0.001, experiment_weight=0.0),
    ):
        assert refine(belief(share=0.02), tried, settings=settings) is not None


def test_an_idle_device_saves_little() -> None:
    settings = HypothesisSettings(horizon_s=3600.0, min_saving=0.001)
    tried = attempt(seconds=60.0)
    assert refine(belief(busy_ratio=1.0), tried, settings=settings) is not None
    assert refine(belief(busy_ratio=0.01), tried, settings=settings) is None


@given(st.floats(0.0, 1.0), st.integers(0, 20), st.floats(0.0, 1.0), st.floats(1.0, 1e5))
def test_each_failure_makes_success_less_likely_and_the_numbers_add_up(
    saving: float, failures: int, busy: float, cost_s: float
) -> None:
    settings = HypothesisSettings()
    found = outlook(saving, failures=failures, busy_ratio=busy, cost_s=cost_s, settings=settings)
    later = outlook(
        saving, failures=failures + 1, busy_ratio=busy, cost_s=cost_s, settings=settings
    )
    assert later.chance < found.chance <= 0.5
    assert found.saved_s == pytest.approx(saving * busy * settings.horizon_s)
    assert found.pays == (found.chance * found.saved_s > found.cost_s)


def test_before_a_try_was_made_its_cost_is_the_settings_guess() -> None:
    settings = HypothesisSettings(experiment_s=77.0)
    found = outlook(0.1, failures=0, busy_ratio=1.0, cost_s=0.0, settings=settings)
    assert found.cost_s == 77.0


def test_the_other_ends_have_their_reasons_too() -> None:
    spent = consider(belief(), attempt(), settings=HypothesisSettings(max_attempts=1))
    assert (spent.hypothesis, spent.stop) == (None, StopReason.ATTEMPTS_SPENT)
    small = consider(belief(share=0.005), attempt())
    assert (small.hypothesis, small.stop) == (None, StopReason.SAVING_TOO_SMALL)
    assert "% of kernel time" in small.sentence


def test_structures_of_which_nothing_worked_are_not_tried_again() -> None:
    refined = refine(belief(), attempt(hopeless=("tiles",)), structures=("rows", "tiles", "split"))
    assert refined is not None
    assert refined.structures == ("rows", "split")
    assert "no variant of tiles worked" in refined.because


def test_shapes_at_which_every_finalist_lost_are_left_to_the_incumbent() -> None:
    refined = refine(belief(), attempt(lost=SHAPES[:1], lost_share=0.4))
    assert refined is not None
    assert refined.workloads == SHAPES[1:]
    assert refined.share == pytest.approx(0.3)
    assert "at fewer shapes (1 were lost)" in refined.because


def test_a_lost_shape_between_others_stays_because_a_guard_is_a_box() -> None:
    refined = refine(belief(), attempt(lost=SHAPES[1:2], lost_share=0.1))
    assert refined is not None
    assert refined.workloads == belief().workloads


def test_where_all_shapes_were_lost_none_is_left_out() -> None:
    refined = refine(belief(), attempt(lost=SHAPES, lost_share=1.0))
    assert refined is not None
    assert refined.workloads == SHAPES
    assert refined.share == 0.5


def test_too_large_candidates_lead_to_smaller_tiles() -> None:
    refined = refine(belief(), attempt(reasons={"over-limit": 5, "slower": 1}))
    assert refined is not None
    assert "with smaller tiles" in refined.because


@pytest.mark.parametrize(
    ("reasons", "lesson"),
    [
        ({"over-limit": 3}, Lesson.SMALLER_TILES),
        ({"out-of-memory": 3, "wrong-output": 1}, Lesson.SMALLER_TILES),
        ({"wrong-output": 2, "compile-failed": 1}, Lesson.OTHER_STRUCTURE),
        ({"wrong-output": 2, "slower": 1}, Lesson.OTHER_PARAMETERS),
        ({"not-faster-enough": 4, "slower": 1}, Lesson.NOTHING_LEFT),
        ({"lost-search": 4}, Lesson.OTHER_PARAMETERS),
        ({"timed-out": 3}, Lesson.OTHER_STRUCTURE),
        ({"wrong-output": 2, "timed-out": 5}, Lesson.OTHER_STRUCTURE),
        ({"timed-out": 5, "slower": 1}, Lesson.OTHER_PARAMETERS),
        ({"over-limit": 3, "timed-out": 2}, Lesson.SMALLER_TILES),
        ({"unheard-of": 9}, Lesson.OTHER_PARAMETERS),
        ({}, Lesson.OTHER_PARAMETERS),
    ],
)
def test_each_mix_of_reasons_has_its_lesson(reasons: dict[str, int], lesson: Lesson) -> None:
    assert lesson_of(reasons) is lesson


def test_one_failure_condemns_no_structure() -> None:
    assert hopeless({"tiles": {"wrong-output": 1}}) == ()


def test_a_structure_that_never_ends_is_left_alone_as_one_that_is_wrong() -> None:
    outcomes = {"tiles": {"timed-out": 2}, "rows": {"timed-out": 2, "slower": 1}}
    assert hopeless(outcomes) == ("tiles",)


def test_no_reason_of_a_verdict_has_two_meanings_and_none_is_misspelt() -> None:
    groups = (WRONG, REFUSED, STARVED, STUCK, SLOW, UNCLEAR)
    neutral = {"faster", "harness-failed"}
    known = {str(reason) for reason in Reason} - neutral
    for code in sorted(known):
        assert sum(code in group for group in groups) <= 1, code
    assert set().union(*groups) <= {str(reason) for reason in Reason}

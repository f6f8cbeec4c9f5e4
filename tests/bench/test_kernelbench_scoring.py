"""fast_p as the paper defines it: over all problems, correct and faster than p."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.expect import raises_naming

from retuned_bench.kernelbench.problem import (
    BadDescription,
    definition_name,
    definition_of,
    read_description,
)
from retuned_bench.kernelbench.run import Score, fast, table

SPEEDUPS = st.one_of(st.none(), st.floats(min_value=0.01, max_value=100.0))
SCORES = st.lists(st.builds(Score, correct=st.booleans(), speedup=SPEEDUPS), min_size=1)
HEAD = {"name": "x", "dtype": "float32", "shape": [4, 8], "scalar": False}


@given(SCORES, st.floats(min_value=0.0, max_value=10.0), st.floats(min_value=0.0, max_value=10.0))
def test_fast_p_falls_with_p_and_never_exceeds_the_share_of_correct_ones(
    scores: list[Score], one: float, other: float
) -> None:
    low, high = sorted((one, other))
    correct = sum(score.correct for score in scores) / len(scores)
    assert 0.0 <= fast(scores, high) <= fast(scores, low) <= correct == fast(scores, 0.0)


def test_a_problem_without_a_kernel_counts_in_the_denominator() -> None:
    scores = [Score(correct=True, speedup=3.0), *[Score(correct=False)] * 3]
    assert table(scores, [1, 0]) == {"fast_0": 0.25, "fast_1": 0.25}


def test_as_fast_as_p_is_not_faster_and_a_wrong_kernel_is_never_fast() -> None:
    assert fast([Score(correct=True, speedup=2.0)], 2.0) == 0.0
    assert fast([Score(correct=False, speedup=9.0)], 0.0) == 0.0


def test_a_correct_kernel_without_a_time_counts_for_fast_0_alone() -> None:
    assert table([Score(correct=True)], [0, 0.5]) == {"fast_0": 1.0, "fast_0.5": 0.0}


def test_no_problems_have_no_share() -> None:
    assert fast([], 0.0) == 0.0


@pytest.mark.parametrize(
    "change",
    [
        {"name": "x y"},
        {"name": "../x"},
        {"dtype": "complex64"},
        {"shape": [-1]},
        {"shape": ["4"] * 13},
        {"more": 1},
    ],
)
def test_a_description_that_is_none_is_refused(change: dict[str, object]) -> None:
    good = {"inputs": [HEAD], "weights": [], "outputs": [{**HEAD, "name": "out"}]}
    read_description(good)
    with pytest.raises(BadDescription):
        read_description({**good, "inputs": [{**HEAD, **change}]})


def test_two_tensors_of_one_name_are_refused() -> None:
    outputs = [{**HEAD, "name": "out"}]
    with raises_naming(BadDescription, "name"):
        read_description({"inputs": [HEAD], "weights": [HEAD], "outputs": outputs})


def test_axes_of_one_length_are_one_axis_and_numbers_have_none() -> None:
    outputs = [{**HEAD, "name": "out"}]
    number = {**HEAD, "name": "n", "shape": [1], "scalar": True}
    described = read_description({"inputs": [HEAD, number], "weights": [], "outputs": outputs})
    definition = definition_of("level2/7_x", "text", described)
    assert definition.lengths({}) == {"n4": 4, "n8": 8}
    assert definition.inputs["n"].shape == ()
    assert definition.reference == "text"


@given(st.text(min_size=1, max_size=300))
def test_every_path_makes_a_name(path: str) -> None:
    name = definition_name(path)
    assert name.startswith("kernelbench.")
    assert len(name) <= 128
    assert name.isascii()

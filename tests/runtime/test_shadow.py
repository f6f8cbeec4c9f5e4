from __future__ import annotations

import math
import random
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from retuned.runtime.shadow.sampler import (
    RATIO_CAP,
    Comparison,
    Sampler,
    Stats,
    bucket,
    compare_tensors,
    fingerprint,
)


def checked(sampler: Sampler, key: tuple[int, ...], launches: int) -> list[int]:
    """Numbers of the launches that would be checked."""
    stratum, found = sampler.stratum(key), []
    for number in range(launches):
        due = stratum.ran >= stratum.check_at
        stratum.ran += 1
        if due:
            found.append(number)
            sampler.advance(stratum)
    return found


@given(st.integers(1, 60), st.integers(0, 2**32))
def test_the_first_launch_and_exactly_one_of_every_block_is_checked(every: int, seed: int) -> None:
    numbers = checked(Sampler(every, random.Random(seed)), (4,), 1 + 20 * every)
    assert numbers[0] == 0
    assert [(n - 1) // every for n in numbers[1:]] == list(range(20))


def test_checks_do_not_fall_into_step_with_the_layers_of_a_model() -> None:
    """With 25 layers a step and one check in 50, a fixed period would always check one layer."""
    numbers = checked(Sampler(50, random.Random(1)), (4,), 100_000)
    assert {number % 25 for number in numbers} == set(range(25))


def test_every_shape_bucket_is_checked_for_itself() -> None:
    sampler = Sampler(1000, random.Random(1))
    for key in [(1,), (16,), (300,)]:
        assert checked(sampler, key, 10) == [0]
    assert bucket((5, 300)) == bucket((7, 511)) != bucket((8, 300))
    assert sampler.ran() == 30


def compare(ours: Any, theirs: Any, tolerance: float = 1e-3) -> Comparison:
    return compare_tensors([torch.as_tensor(ours)], [torch.as_tensor(theirs)], tolerance)


def test_the_ratio_is_the_largest_difference_in_units_of_tolerance_times_rms() -> None:
    theirs = torch.tensor([3.0, -3.0, 3.0, -3.0])
    ours = theirs.clone()
    ours[2] += 0.006
    assert compare(ours, theirs).ratio == pytest.approx(2.0, rel=1e-3)
    assert compare(theirs, theirs) == Comparison(nonfinite=False, ratio=0.0)


@pytest.mark.parametrize(
    ("ours", "theirs", "agree"),
    [
        ([1.0, math.nan], [1.0, math.nan], True),
        ([1.0, math.inf], [1.0, math.inf], True),
        ([1.0, -math.inf], [1.0, math.inf], False),
        ([1.0, math.nan], [1.0, math.inf], False),
        ([1.0, math.inf], [1.0, 2.0], False),
        ([1.0, 2.0], [1.0, math.nan], False),
        ([math.nan, math.nan], [math.nan, math.nan], True),
        ([math.nan, 1.0], [1.0, math.nan], False),
    ],
)
def test_nan_and_inf_must_be_in_the_same_places(
    ours: list[float], theirs: list[float], agree: bool
) -> None:
    comparison = compare(ours, theirs)
    assert comparison.nonfinite is not agree
    assert comparison.ratio == 0.0


def test_differences_beside_agreeing_infinities_still_count() -> None:
    assert compare([math.inf, 1.1], [math.inf, 1.0]).ratio == pytest.approx(100, rel=1e-3)


def test_where_the_incumbent_is_zero_nothing_is_allowed() -> None:
    assert compare([0.0, 1e-9], [0.0, 0.0]).ratio == RATIO_CAP
    assert compare([0.0, 0.0], [0.0, 0.0]).ratio == 0.0


def test_integers_must_be_equal_and_halves_are_compared_in_full() -> None:
    assert compare([1, 2], [1, 2]).ratio == 0.0
    assert compare([1, 2], [1, 3]).ratio == RATIO_CAP
    big = torch.full((4,), 60000.0, dtype=torch.float16)
    assert compare(big, big).ratio == 0.0
    assert compare(torch.empty(0), torch.empty(0)).ratio == 0.0


def test_outputs_of_another_form_cannot_be_compared() -> None:
    with pytest.raises(ValueError, match="output"):
        compare(torch.zeros(2), torch.zeros(3))
    with pytest.raises(ValueError, match="output"):
        compare(torch.zeros(2), torch.zeros(2, dtype=torch.float64))
    with pytest.raises(ValueError, match="outputs instead"):
        compare_tensors([], [torch.zeros(1)], 1e-3)


def test_the_fingerprint_sees_any_byte_of_a_small_tensor_and_windows_of_a_large_one() -> None:
    small, large = torch.zeros(1000), torch.zeros(1 << 20)
    before = fingerprint([small, large])
    for index in (0, 499, 999):
        small[index] += 1
        assert fingerprint([small, large]) != before
        small[index] = 0
    large[-1] = 1
    assert fingerprint([small, large]) != before
    large.zero_()
    large[: 1 << 19] = 1
    assert fingerprint([small, large]) != before


def test_statistics_add_up() -> None:
    stats = Stats()
    for ratio in (0.5, 2.0, 0.1):
        stats.check(Comparison(nonfinite=False, ratio=ratio))
    stats.check(Comparison(nonfinite=True, ratio=0.0))
    assert (stats.checks, stats.mismatches, stats.nonfinite) == (4, 1, 1)
    assert stats.worst_ratio == 2.0
    assert 0.5 < stats.mean_ratio < 0.6
    assert [stats.error(), stats.error()] == [1, 2]
    stats.skip("shape")
    assert stats.ineligible == {"shape": 1}

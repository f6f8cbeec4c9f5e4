"""What is reduced to a handful of numbers is judged as whole tensors are."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from retuned.runtime.shadow import reduction
from retuned.runtime.shadow.comparison import RATIO_CAP, Comparison, compare_tensors, form_of
from retuned.runtime.shadow.reduction import NUMBERS, Judged, check_alike, judged, measure

FLOATS = ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn"]


def reduced(ours: Any, theirs: Any, tolerance: float = 1e-3) -> Judged:
    """Judge as a check made aside does."""
    check_alike(ours, theirs)
    numbers = [measure(torch, a, b, tolerance) for a, b in zip(ours, theirs, strict=True)]
    assert all(each.shape == (NUMBERS,) for each in numbers)
    forms = [(form_of(torch, each), each.numel()) for each in theirs]
    return judged(forms, torch.cat(numbers).tolist(), tolerance)


def same(one: Comparison, other: Comparison) -> bool:
    close = [
        math.isclose(a, b, rel_tol=1e-3, abs_tol=1e-9)
        for a, b in ((one.ratio, other.ratio), (one.rms_ratio, other.rms_ratio))
    ]
    return one.nonfinite == other.nonfinite and all(close)


ODD = st.sampled_from([math.nan, math.inf, -math.inf, 0.0, 1.0])


@settings(deadline=None, max_examples=150)
@given(
    st.sampled_from(FLOATS),
    st.integers(0, 40),
    st.integers(0, 2**31),
    st.sampled_from([0.0, 1e-6, 1e-3, 0.1, 30.0]),
    st.lists(st.tuples(st.integers(0, 39), ODD, ODD), max_size=3),
)
def test_numbers_judge_as_tensors_do(
    dtype: str, size: int, seed: int, off: float, planted: list[tuple[int, float, float]]
) -> None:
    generator = torch.Generator().manual_seed(seed)
    theirs = torch.randn(size, generator=generator, dtype=torch.float64)
    ours = theirs + off * torch.randn(size, generator=generator, dtype=torch.float64)
    for place, mine, other in planted:
        if place < size:
            ours[place], theirs[place] = mine, other
    ours, theirs = ours.to(getattr(torch, dtype)), theirs.to(getattr(torch, dtype))
    expected = compare_tensors([ours], [theirs], 1e-3)
    found = reduced([ours], [theirs]).comparison
    assert same(found, expected), (found, expected)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "bool"])
@pytest.mark.parametrize("places", [[], [3], [3, 5], list(range(150))])
def test_whole_numbers_too(dtype: str, places: list[int]) -> None:
    theirs = torch.zeros(200, dtype=getattr(torch, dtype))
    ours = theirs.clone()
    ours[places] = 1
    found = reduced([ours], [theirs])
    assert same(found.comparison, compare_tensors([ours], [theirs], 1e-3))
    assert found.mismatched == len(places)


def test_an_output_in_parts_is_one_output(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = torch.randn(1000, generator=torch.Generator().manual_seed(3)).to(torch.bfloat16)
    ours = (theirs.float() * 1.02).to(torch.bfloat16)
    whole = reduced([ours], [theirs])
    monkeypatch.setattr(reduction, "PART", 7)
    parts = reduced([ours], [theirs])
    assert same(parts.comparison, whole.comparison)
    assert parts.mismatched == whole.mismatched > 0
    assert same(whole.comparison, compare_tensors([ours], [theirs], 1e-3))


def test_any_layout_is_compared_element_by_element() -> None:
    theirs = torch.randn(8, 6)
    ours = theirs.t().contiguous().t()
    assert ours.stride() != theirs.stride()
    assert reduced([ours], [theirs]).comparison == Comparison(nonfinite=False, ratio=0.0)


def test_the_worst_of_several_outputs_counts_and_nan_in_any() -> None:
    one, nan = torch.ones(4), torch.tensor([1.0, math.nan, 1.0, 1.0])
    assert reduced([one, one * 1.01], [one, one]).comparison.ratio == pytest.approx(10, rel=1e-3)
    found = reduced([one, nan], [one, one])
    assert found.comparison == Comparison(nonfinite=True, ratio=0.0)
    assert found.mismatched == 1


def test_a_difference_too_large_for_its_type_is_over_everything() -> None:
    most = torch.finfo(torch.float32).max
    ours, theirs = torch.tensor([most, 1.0]), torch.tensor([-most, 1.0])
    assert reduced([ours], [theirs]).comparison.ratio == RATIO_CAP
    assert compare_tensors([ours], [theirs], 1e-3).ratio == RATIO_CAP


def test_outputs_of_another_form_are_refused_before_anything_is_queued() -> None:
    for ours, theirs in (
        ([torch.zeros(2)], [torch.zeros(3)]),
        ([torch.zeros(2)], [torch.zeros(2, dtype=torch.float64)]),
        ([], [torch.zeros(2)]),
    ):
        with pytest.raises(ValueError, match="differ in number, shape or element type"):
            check_alike(ours, theirs)


@pytest.mark.parametrize(
    "numbers", [[0.0] * 7, [0.0] * 7 + [-1.0], [math.nan] + [0.0] * 7, [0.0] * 16]
)
def test_numbers_that_nothing_can_have_measured_are_refused(numbers: list[float]) -> None:
    form = form_of(torch, torch.zeros(1))
    with pytest.raises(ValueError, match="numbers"):
        judged([(form, 1)], numbers, 1e-3)

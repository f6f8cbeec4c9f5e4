"""Outputs of a candidate against those of the server's choice: what must not pass."""

from __future__ import annotations

import math

import pytest
import torch
from tests.expect import raises_code

from retuned.runtime.schema import Refused
from retuned.tunables.child import FAR, difference
from retuned.tunables.tune import MAX_ERROR, MAX_WORST


def passes(one: torch.Tensor, other: torch.Tensor) -> bool:
    error, worst = difference(one, other)
    return error <= MAX_ERROR and worst <= MAX_WORST


def test_equal_outputs_have_no_distance() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.int32, torch.bool):
        output = torch.arange(8).to(dtype)
        assert difference(output, output.clone()) == (0.0, 0.0)
    assert difference(torch.empty(0), torch.empty(0)) == (0.0, 0.0)


def test_whole_numbers_must_be_equal() -> None:
    one = torch.arange(1000)
    other = one.clone()
    other[7] += 1
    assert difference(one, other) == (FAR, FAR)


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_what_is_not_finite_in_both_hides_no_other_difference(value: float) -> None:
    one = torch.ones(100)
    one[0] = value
    other = one.clone()
    assert passes(one, other)
    other[50] = 7.0
    assert not passes(one, other)


@pytest.mark.parametrize("pair", [(math.inf, -math.inf), (math.inf, math.nan), (1.0, math.nan)])
def test_places_that_are_not_finite_must_agree(pair: tuple[float, float]) -> None:
    one, other = torch.ones(100), torch.ones(100)
    one[0], other[0] = pair
    assert difference(one, other) == (FAR, FAR)


def test_an_output_that_is_mostly_not_finite_proves_nothing() -> None:
    output = torch.full((100,), math.nan)
    output[:49] = 1.0
    with raises_code(Refused, "outputs-not-finite"):
        difference(output, output)


@pytest.mark.parametrize(
    ("dtype", "off", "within"),
    [
        (torch.bfloat16, 0.004, True),
        (torch.bfloat16, 0.03, False),
        (torch.float32, 1e-4, True),
        (torch.float32, 0.008, False),
        (torch.float64, 1e-7, True),
        (torch.float64, 1e-5, False),
    ],
)
def test_a_wider_type_must_be_closer(dtype: torch.dtype, off: float, within: bool) -> None:
    one = torch.linspace(1.0, 2.0, 100, dtype=dtype)
    other = (one.double() * (1.0 + off)).to(dtype)
    assert passes(one, other) is within


def test_one_wrong_element_among_many_does_not_pass() -> None:
    one = torch.ones(1_000_000, dtype=torch.bfloat16)
    other = one.clone()
    other[123] = 2.0
    assert not passes(one, other)

"""Outputs in float64, and what a candidate may differ from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from tests.expect import raises_code

from retuned.errors import CandidateError
from retuned.tunables.child import FAR
from retuned.tunables.references import Rows, Weights, distance, expert_rows
from retuned.tunables.tune import Distance, checked

EXPERTS, WIDTH, HIDDEN, TOKENS, TOP_K = 5, 6, 8, 9, 2


def experts(scales: tuple[float, float] = (1.0, 1.0)) -> tuple[Rows, torch.Tensor]:
    """Return rows in float64, and the whole layer as a dense product over all experts."""
    chance = torch.Generator().manual_seed(0)
    first = torch.randn(EXPERTS, 2 * WIDTH, HIDDEN, generator=chance)
    second = torch.randn(EXPERTS, HIDDEN, WIDTH, generator=chance)
    hidden = torch.randn(TOKENS, HIDDEN, generator=chance)
    chosen = torch.stack([torch.randperm(EXPERTS, generator=chance)[:TOP_K] for _ in range(TOKENS)])
    shares = torch.rand(TOKENS, TOP_K, generator=chance)
    rows = expert_rows(
        torch, hidden, Weights(first, second, scales), chosen=chosen, shares=shares, seed=1
    )
    both = torch.einsum("th,ewh->tew", hidden, first * scales[0])
    inner = both[..., :WIDTH] * both[..., :WIDTH].sigmoid() * both[..., WIDTH:]
    each = torch.einsum("tew,ehw->teh", inner, second * scales[1])
    gate = torch.zeros(TOKENS, EXPERTS).scatter(1, chosen, shares)
    return rows, torch.einsum("teh,te->th", each, gate)


@pytest.mark.parametrize("scales", [(1.0, 1.0), (0.5, 3.0)])
def test_rows_of_experts_are_those_of_the_dense_sum(scales: tuple[float, float]) -> None:
    rows, whole = experts(scales)
    assert len(rows.at) == 4
    assert rows.at[-1] == TOKENS - 1
    assert rows.values.dtype == torch.float64
    assert distance(whole, rows) < 1e-5
    assert distance(whole.roll(1, 0), rows) > 0.1


def test_a_distance_from_what_is_not_finite_is_no_number() -> None:
    rows, whole = experts()
    whole[-1, 0] = float("nan")
    assert not distance(whole, rows) <= 1.0


class Child:
    """A child that has compared one configuration."""

    def __init__(self, **said: Any) -> None:
        self.said = {"intact": True, "error": 1e-3, "worst": 1e-3, "spread": 0.0, **said}

    def restart(self) -> None:
        raise AssertionError("nothing ends this child")

    def ask(self, request: Mapping[str, Any], *, limit_s: float) -> dict[str, Any]:
        return self.said


@pytest.mark.parametrize(
    ("own", "found"),
    [
        (2e-3, 2e-3),
        (1e-9, 4e-3),  # rounding of the outputs alone
        (0.04, 0.079),  # experts in fp8
        (0.9, 0.9),  # the reference is of another launch
    ],
)
def test_a_candidate_as_close_to_float64_as_the_servers_choice_is_right(
    own: float, found: float
) -> None:
    child = Child(float64={"own": own, "found": found})
    assert checked(child, 0, {}, seed=1) == Distance(error=1e-3, own_float64=own, float64=found)


@pytest.mark.parametrize(
    ("own", "found"), [(2e-3, 4.1e-3), (1e-9, 4.1e-3), (0.04, 0.081), (1e-3, FAR)]
)
def test_a_candidate_farther_from_float64_is_wrong(own: float, found: float) -> None:
    """Its distance from the server's own choice alone would pass."""
    with raises_code(CandidateError, "wrong-result"):
        checked(Child(float64={"own": own, "found": found}), 0, {}, seed=1)


def test_a_kernel_without_a_known_function_is_compared_with_the_server_alone() -> None:
    assert checked(Child(float64=None), 0, {}, seed=1) == Distance(error=1e-3)


def test_the_farthest_of_several_is_kept() -> None:
    one = Distance(error=3e-3, own_float64=2e-3, float64=2e-3)
    two = Distance(error=1e-3, own_float64=3e-3, float64=3e-3)
    assert one.farthest(two) == Distance(error=3e-3, own_float64=3e-3, float64=3e-3)
    assert Distance().farthest(two) == two
    assert two.farthest(Distance(error=2e-3)).float64 == 3e-3

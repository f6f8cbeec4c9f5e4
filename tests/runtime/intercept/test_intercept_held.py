"""Another source takes launches like those it was validated with, and no others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.runtime.intercept import strangers
from tests.runtime.intercept.test_intercept_swapping import AFFINE, World

from retuned.runtime.intercept.hook import Interceptor
from retuned.runtime.schema import Refused

SOURCE = '''"""Other sources for `shifted`, `affine` and `optional` of the strangers."""

import triton
import triton.language as tl


@triton.jit
def moved(x, out, n, by, TILE: tl.constexpr):
    at = tl.arange(0, TILE)
    tl.store(out + at, tl.load(x + at, mask=at < n) + by, mask=at < n)


@triton.jit
def by_three(x, out, n, TILE: tl.constexpr):
    at = tl.arange(0, TILE)
    tl.store(out + at, tl.load(x + at, mask=at < n) + 3, mask=at < n)


@triton.jit
def by_length(x, out, n, TILE: tl.constexpr):
    at = tl.arange(0, TILE)
    tl.store(out + at, tl.load(x + at, mask=at < n) + n, mask=at < n)


@triton.jit
def moved_by_constant(x, out, n, by: tl.constexpr, TILE: tl.constexpr):
    at = tl.arange(0, TILE)
    tl.store(out + at, tl.load(x + at, mask=at < n) + by, mask=at < n)


@triton.jit
def of_length(x, out, n: tl.constexpr, by, TILE: tl.constexpr):
    at = tl.arange(0, TILE)
    tl.store(out + at, tl.load(x + at, mask=at < n) + by, mask=at < n)


@triton.jit
def without_bias(x, out, n, TILE: tl.constexpr):
    at = tl.arange(0, TILE)
    tl.store(out + at, tl.load(x + at, mask=at < n), mask=at < n)
'''


@pytest.fixture
def world(hook: Interceptor, tmp_path: Path) -> World:
    return World(hook, tmp_path)


def shifted(n: int, *, by: Any = 3) -> None:
    x = torch.arange(n, dtype=torch.float32)
    strangers.shifted[(1,)](x, torch.zeros_like(x), n, by, BLOCK=16)


def optional(n: int, bias: Any) -> None:
    x = torch.arange(n, dtype=torch.float32)
    strangers.optional[(1,)](x, bias, torch.zeros_like(x), n, BLOCK=16)


def delivered(world: World, entry: str, *, kernel: str = "shifted", **rule: Any) -> tuple[str, str]:
    return world.artifact(
        kernel,
        definition=AFFINE,
        source=SOURCE,
        entry=entry,
        params={"TILE": 16},
        grid=["1"],
        intercept={
            "code": "artifact",
            "axes": {"N": "n"},
            "bind": {"x": "x_ptr", "out": "y_ptr"},
            **rule,
            "constexprs": {"BLOCK": 16} | rule.get("constexprs", {}),
        },
    )


def refusal(world: World, artifact: tuple[str, str]) -> Refused:
    with pytest.raises(Refused) as refused:
        world.swap(artifact)
    return refused.value


def ineligible(world: World) -> dict[str, int]:
    return dict(world.sample()["ineligible_launches"])


@pytest.mark.parametrize("entry", ["by_three", "moved_by_constant"])
def test_a_source_that_holds_an_argument_fixed_needs_a_rule_for_it(
    world: World, entry: str
) -> None:
    shifted(10, by=0.5)
    problem = refusal(world, delivered(world, entry))
    assert problem.reason == "launch-mismatch"
    assert "['by']" in problem.detail


@pytest.mark.parametrize("entry", ["by_three", "moved_by_constant", "moved"])
def test_with_the_rule_only_launches_with_that_value_are_taken(world: World, entry: str) -> None:
    for by in (3, 4):
        shifted(10, by=by)
    world.swap(delivered(world, entry, constexprs={"by": 3}))
    for other in (3, 4, 3, 3.0, True):
        shifted(10, by=other)
    assert world.sample()["swapped_launches"] == 2
    assert ineligible(world) == {"constexpr": 3}


def test_a_whole_number_that_nothing_fixes_is_the_servers(world: World) -> None:
    for by in (0.5, 3):
        shifted(10, by=by)
    world.swap(delivered(world, "moved"))
    for by in (0.5, 1, 3, 16, True, 0.25):
        shifted(10, by=by)
    assert world.sample()["swapped_launches"] == 2
    assert ineligible(world) == {"other-arguments": 4}


def test_where_only_whole_numbers_were_seen_nothing_is_for_the_source(world: World) -> None:
    shifted(10, by=3)
    assert refusal(world, delivered(world, "moved")).reason == "kernel-unseen"


def test_a_rule_over_lengths_fixes_a_whole_number_too(world: World) -> None:
    shifted(10, by=10)
    shifted(12, by=12)
    world.swap(delivered(world, "by_length", ints={"by": "N"}))
    for n, by in ((10, 10), (12, 12), (12, 10), (10, 1)):
        shifted(n, by=by)
    assert world.sample()["swapped_launches"] == 2
    assert ineligible(world)["other-arguments"] >= 1


def test_one_code_serves_every_length_as_where_it_was_validated(world: World, device: Any) -> None:
    shifted(10, by=0.5)
    world.swap(delivered(world, "moved"))
    for n in (10, 1, 16, 7):
        shifted(n, by=0.5)
    assert world.sample()["swapped_launches"] == 4, "none waited for a compiler"
    (found,) = world.host._seating.seats["lifted_affine"].resident.values()
    (plan,) = found._plans.values()  # type: ignore[attr-defined]
    assert len(plan.ready) == 4
    if device is not None:
        assert len({id(each.compiled) for each in plan.ready.values()}) == 1


def test_a_source_whose_code_depends_on_a_length_has_one_for_each(
    world: World, device: Any
) -> None:
    for n in (10, 7):
        shifted(n, by=0.5)
    world.swap(delivered(world, "of_length"))
    for n in (10, 7, 9):
        shifted(n, by=0.5)
    assert world.sample()["swapped_launches"] == 2
    assert ineligible(world) == {"not-compiled": 1}
    (found,) = world.host._seating.seats["lifted_affine"].resident.values()
    (plan,) = found._plans.values()  # type: ignore[attr-defined]
    if device is not None:
        assert len({id(each.compiled) for each in plan.ready.values()}) == 2


def test_numbers_of_other_widths_have_other_code(world: World, device: Any) -> None:
    if device is None:
        pytest.skip("the interpreter has no code")
    shifted(10, by=0.5)
    world.swap(delivered(world, "moved"))
    x = torch.arange(10, dtype=torch.float32)
    strangers.shifted[(1,)](x, torch.zeros_like(x), 2**33, 0.5, BLOCK=16)
    assert ineligible(world) == {"not-compiled": 1}


def test_a_source_made_for_none_is_not_for_a_tensor(world: World) -> None:
    bias = torch.ones(16)
    optional(10, None)
    optional(10, bias)
    world.swap(delivered(world, "without_bias", kernel="optional", constexprs={"bias_ptr": None}))
    for given in (None, bias, None):
        optional(10, given)
    assert world.sample()["swapped_launches"] == 2
    assert ineligible(world) == {"constexpr": 1}


def test_a_source_that_ignores_a_tensor_needs_it_to_be_none(world: World) -> None:
    optional(10, None)
    problem = refusal(world, delivered(world, "without_bias", kernel="optional"))
    assert problem.reason == "launch-mismatch"
    assert "['bias_ptr']" in problem.detail

"""Lengths that Triton compiles alike share one code: those that are new wait for no compiler."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.runtime.intercept.strangers import launch_affine
from tests.runtime.intercept.test_intercept_swapping import World

from retuned.runtime.artifacts.compile_budget import CompileBudget
from retuned.runtime.intercept import compiled as codes
from retuned.runtime.intercept import compiled as ready
from retuned.runtime.intercept import variant
from retuned.runtime.intercept.compiled import MAX_SIGNATURES, Codes
from retuned.runtime.intercept.hook import Interceptor
from retuned.runtime.intercept.plan import Plan
from retuned.runtime.intercept.variant import KernelVariant
from retuned.runtime.schema import Refused


@pytest.fixture
def world(hook: Interceptor, tmp_path: Path, interpreted: bool) -> World:
    if interpreted:
        pytest.skip(
            "the interpreter compiles nothing; the suite runs on a device in its other lane"
        )
    return World(hook, tmp_path)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The signatures that were led to the compiler."""
    found: list[Any] = []
    compile_it = Codes.compile

    def noted(self: Codes, signature: Any, *rest: Any) -> None:
        found.append(signature)
        compile_it(self, signature, *rest)

    monkeypatch.setattr(Codes, "compile", noted)
    return found


def plan_of(world: World) -> Plan:
    (seat,) = world.host._seating.seats.values()
    (one,) = seat.resident.values()
    assert isinstance(one, KernelVariant)
    (plan,) = one._plans.values()
    return plan


def test_new_lengths_of_known_codes_are_swapped_at_once_however_many_there_are(
    world: World, compiled: list[Any]
) -> None:
    for n in (1, 96, 100):
        launch_affine(n)
    world.swap(world.live_affine())
    compiled.clear()
    lengths = range(2, MAX_SIGNATURES + 100)
    for n in lengths:
        launch_affine(n)
    assert compiled == []
    sample = world.sample()
    assert sample["ineligible_launches"] == {}
    assert sample["swapped_launches"] == len(lengths)
    plan = plan_of(world)
    assert plan.codes.count == 3, "of 1, of what 16 divides, and of all others"
    assert len(plan.ready) <= MAX_SIGNATURES


def test_each_length_runs_what_triton_would_have_compiled_for_it(world: World, device: Any) -> None:
    for n in (1, 96, 100):
        launch_affine(n)
    world.swap(world.live_affine())
    plan = plan_of(world)
    for n in (1, 7, 16, 17, 48, 2**30, 2**31 + 8):
        raw = ("float32", "float32", n, 0.5, 16)
        code = plan.codes.code_of((n, float), _dtypes(raw), {})
        alike = [known for known in (1, 96, 100) if _same(plan, code, known)]
        wide = n >= 2**31
        assert alike == ([] if wide else [1] if n == 1 else [96] if n % 16 == 0 else [100])


def _dtypes(raw: tuple[Any, ...]) -> tuple[Any, ...]:
    import torch

    return (torch.float32, torch.float32, *raw[2:])


def _same(plan: Plan, code: Any, n: int) -> bool:
    return bool(plan.codes.code_of((n, float), _dtypes((None, None, n, 0.5, 16)), {}) == code)


def test_a_code_that_cannot_be_compiled_is_tried_once_for_all_its_lengths(
    world: World, compiled: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    launch_affine(100)
    world.swap(world.live_affine())
    compiled.clear()

    def refused(self: Codes, signature: Any, *_: Any) -> None:
        compiled.append(signature)
        raise Refused("compile-failed", detail="no code for what 16 divides")

    monkeypatch.setattr(Codes, "compile", refused)
    for n in (96, 112, 128, 144):
        launch_affine(n)
        world.host.housekeeping()
    assert compiled == [(96, float)]
    assert world.sample()["ineligible_launches"] == {"not-compiled": 4}


def test_a_triton_that_does_not_say_what_it_compiles_for_has_a_code_for_each_length(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ready, "specialisation_of", lambda *_: None)
    launch_affine(100)
    world.swap(world.live_affine())
    launch_affine(70)
    assert world.sample()["ineligible_launches"] == {"not-compiled": 1}
    world.host.housekeeping()
    launch_affine(70)
    assert world.sample()["swapped_launches"] == 1


@pytest.mark.parametrize("jit", [object(), type("Bare", (), {"device_caches": {0: ()}})()])
def test_what_is_no_triton_says_nothing(jit: Any) -> None:
    assert codes.specialisation_of(jit, [], {}) is None


def test_codes_are_bounded_and_what_failed_is_forgotten_in_the_end(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(variant, "MAX_CODES", 1)
    monkeypatch.setattr(variant, "MAX_FAILED", 1)
    launch_affine(100)
    world.swap(world.live_affine())
    for n in (96, 1):
        launch_affine(n)
        world.host.housekeeping()
    assert plan_of(world).codes.count == 1
    (seat,) = world.host._seating.seats.values()
    (one,) = seat.resident.values()
    assert isinstance(one, KernelVariant)
    assert len(one._failed) == 1


def test_codes_that_launches_ask_for_are_compiled_within_a_share_of_the_time(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = [0.0]
    compile_it = Codes.compile

    def slow(self: Codes, *given: Any) -> None:
        compile_it(self, *given)
        now_s[0] += 0.5

    launch_affine(100)
    world.swap(world.live_affine())
    monkeypatch.setattr(Codes, "compile", slow)
    world.host._compiling = CompileBudget(clock=lambda: now_s[0])
    for n in (96, 1):
        launch_affine(n)
    for _ in range(3):
        world.host.housekeeping()
    told = world.host.answer({"op": "status"})["compiling"]
    assert told == {"compiles": 1, "compile_s": 0.5, "longest_s": 0.5, "put_off": 2}
    now_s[0] += 0.5 / 0.05
    world.host.housekeeping()
    assert world.host.answer({"op": "status"})["compiling"]["compiles"] == 2

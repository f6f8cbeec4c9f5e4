"""A launch that is made as one before it is the launch that all questions would have led to."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.runtime.intercept import strangers
from tests.runtime.intercept.strangers import cdiv_grid, launch_affine
from tests.runtime.intercept.test_intercept_swapping import World

from retuned.runtime.core.tables import Table
from retuned.runtime.intercept import dispatch, fast_path
from retuned.runtime.intercept.fast_path import FAILED, MAX_FORMS, MAX_REPEATS, MISSED
from retuned.runtime.intercept.hook import Interceptor

LENGTH = 256


@pytest.fixture
def world(hook: Interceptor, tmp_path: Path, interpreted: bool) -> World:
    if interpreted:
        pytest.skip(
            "the interpreter compiles nothing; the suite runs on a device in its other lane"
        )
    return World(hook, tmp_path)


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What each launch that could be a repeated one was: ``missed``, ``failed`` or ``repeated``."""
    found: list[str] = []
    names = {id(MISSED): "missed", id(FAILED): "failed"}

    def repeat(*given: Any) -> Any:
        answer = fast_path.repeat(*given)
        found.append(names.get(id(answer), "repeated"))
        return answer

    monkeypatch.setattr(dispatch, "repeat", repeat)
    return found


X = torch.arange(2 * LENGTH, dtype=torch.float32)
Y = torch.zeros_like(X)


def launch(n: int = LENGTH, **other: Any) -> Any:
    given = {"x": X, "y": Y, "factor": 0.5, "block": 16, "grid": cdiv_grid(n)} | other
    options = given.get("options", {})
    return strangers.affine[given["grid"]](
        given["x"], given["y"], n, given["factor"], BLOCK=given["block"], **options
    )


def swapped(world: World, **order: Any) -> None:
    launch()
    world.swap(world.live_affine(grid=["cdiv(n, BLOCK)"], intercept=_ASKED), **order)
    launch()  # the first is checked
    launch()  # and this is remembered


_ASKED = {"code": "live", "axes": {"N": "n"}, "numels": {"x_ptr": "2 * N"}}


def table(world: World) -> Table:
    (slot,) = world.host._seating.slots()
    return slot.table


def test_the_third_launch_is_made_as_the_second_and_counted_as_it(
    world: World, device: Any, answers: list[str]
) -> None:
    swapped(world)
    before, counted = len(device.launches), world.sample()["swapped_launches"]
    compiled = launch()
    assert answers[-1] == "repeated"
    (made,) = device.launches[before:]
    assert (made["name"], made["grid"], made["num_warps"]) == ("affine", (LENGTH // 32, 1, 1), 2)
    assert made["args"] == (X, Y, LENGTH, 0.5, 32)
    assert compiled.metadata.num_warps == 2
    assert world.sample()["swapped_launches"] == counted + 1
    assert world.sample()["fallback_launches"] == 0
    assert world.host._seating.slots()[0].total() == counted + 1


@pytest.mark.parametrize(
    "other",
    [
        {"x": X.to(torch.float16)},
        {"x": torch.arange(2 * LENGTH + 1, dtype=torch.float32)[1:]},
        {"x": X[:LENGTH]},
        {"y": None},
        {"factor": 1},
        {"factor": True},
        {"block": 32},
        {"options": {"num_warps": 8}},
        {"n": LENGTH // 2},
        {"n": True},
    ],
    ids=str,
)
def test_what_decides_a_launch_makes_it_another(
    world: World, answers: list[str], other: dict[str, Any]
) -> None:
    swapped(world)
    count = world.sample()["swapped_launches"]
    with suppress(TypeError, AttributeError, ValueError, triton.CompilationError):
        launch(**other)  # what Triton does not take, its own launch says itself
    assert "repeated" not in answers
    taken = "block" in other  # of that the variant has its own
    assert world.sample()["swapped_launches"] == count + taken
    launch()
    assert answers[-1] == "repeated"


def test_a_number_the_code_takes_as_it_comes_is_handed_on_as_it_is(
    world: World, device: Any, answers: list[str]
) -> None:
    swapped(world)
    launch(factor=0.75)
    assert answers[-1] == "repeated"
    assert device.launches[-1]["args"][3] == 0.75


def test_no_launch_is_repeated_once_its_table_is_gone(
    world: World, device: Any, answers: list[str]
) -> None:
    swapped(world)
    launch()
    (slot,) = world.host._seating.slots()
    for flip in (
        lambda: slot.replace(slot.table.in_force, state="bypassed"),
        lambda: slot.replace(slot.table.in_force, state="tripped:test"),
        world.back,
    ):
        flip()
        answers.clear()
        launch()
        assert answers == []
        assert device.launches[-1]["num_warps"] == 4


def test_a_canary_and_what_distorts_are_asked_each_time(world: World, answers: list[str]) -> None:
    launch()
    delivered = world.live_affine(grid=["cdiv(n, BLOCK)"], intercept=_ASKED)
    world.swap(delivered, canary=[{"fraction": 0.5}, {"fraction": 1.0}])
    for _ in range(8):
        launch()
    assert table(world).repeats == {}
    (slot,) = world.host._seating.slots()
    order: Any = slot.table.in_force
    order.ramp(1.0, excluded=[])
    order.distortion = lambda launch: launch
    for _ in range(4):
        launch()
    assert table(world).repeats == {}
    order.distortion = None
    launch()
    launch()
    assert answers == ["repeated"]


def test_a_check_that_is_due_is_made(world: World, answers: list[str]) -> None:
    swapped(world, shadow_every=10)
    answers.clear()
    for _ in range(100):
        launch()
    checks = world.sample()["shadow_checks"]
    assert 8 <= checks <= 12
    assert answers.count("repeated") == 101 - checks
    assert world.sample()["swapped_launches"] == 102


def test_hooks_globals_captures_and_other_devices_end_repeating(
    world: World, answers: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    swapped(world)
    launch()
    ((name, form),) = table(world).repeats.items()

    def refused() -> bool:
        answers.clear()
        launch()
        return answers == ["missed"]

    jit = name[0].target()
    monkeypatch.setattr(jit, "pre_run_hooks", [lambda *_, **__: None])
    assert refused()
    monkeypatch.undo()
    for field in ("capturing", "elsewhere"):
        form = next(iter(table(world).repeats.values()))
        setattr(form, field, lambda: True)
        assert fast_path.repeat(table(world), *_arguments(jit)) is MISSED
        setattr(form, field, lambda: False)
        assert fast_path.repeat(table(world), *_arguments(jit)) is not MISSED
        setattr(form, field, None)
    form.codes.watched = [({"SCALE": 2}, "SCALE", 1)]
    assert fast_path.repeat(table(world), *_arguments(jit)) is MISSED


def _arguments(jit: Any) -> tuple[Any, ...]:
    grid = cdiv_grid(LENGTH)
    return jit._retuned_kernel, jit, (X, Y, LENGTH, 0.5), {"BLOCK": 16}, grid


def test_on_amd_a_tensor_beyond_32_bit_offsets_is_not_repeated(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    swapped(world)
    launch()
    ((name, form),) = table(world).repeats.items()
    arguments = _arguments(name[0].target())
    monkeypatch.setattr(fast_path, "MAX_STORAGE", X.untyped_storage().nbytes() - 1)
    assert fast_path.repeat(table(world), *arguments) is not MISSED
    form.limited = True
    assert fast_path.repeat(table(world), *arguments) is MISSED
    monkeypatch.undo()
    assert fast_path.repeat(table(world), *arguments) is not MISSED


def test_a_variant_that_raises_when_repeated_serves_the_servers_own_and_trips(
    world: World, device: Any, answers: list[str]
) -> None:
    swapped(world)
    launch()
    (form,) = table(world).repeats.values()
    ((key, (cell, stratum, ready, _)),) = form.repeats.items()

    def raising(_: object) -> None:
        raise RuntimeError("no such kernel image")

    form.repeats[key] = (cell, stratum, ready, raising)
    for errors in (1, 2, 3):
        compiled = launch()
        assert answers[-1] == "failed"
        assert compiled.metadata.num_warps == device.launches[-1]["num_warps"] == 4
        assert world.sample()["errors"] == errors
    assert world.sample()["tripped"] == "launch-errors"
    launch()
    assert answers[-3:] == ["failed"] * 3


def test_hooks_of_launches_hear_of_repeated_ones(world: World, answers: list[str]) -> None:
    swapped(world)
    told: list[str] = []

    def hook(metadata: Any) -> None:
        told.append(metadata.get()["name"])

    for chain in (triton.knobs.runtime.launch_enter_hook, triton.knobs.runtime.launch_exit_hook):
        chain.add(hook)
        try:
            launch()
        finally:
            chain.remove(hook)
        assert answers[-1] == "repeated"
        assert told.pop() == "affine"
        assert told == []
    launch()
    assert told == []


def test_where_tritons_own_way_to_launch_is_another_that_is_how_it_launches(
    world: World, device: Any, monkeypatch: pytest.MonkeyPatch, answers: list[str]
) -> None:
    monkeypatch.setattr(fast_path, "_is_as_known", lambda _: False)
    swapped(world)
    count = len(device.launches)
    launch()
    assert answers[-1] == "repeated"
    assert len(device.launches) == count + 1
    assert device.launches[-1]["args"] == (X, Y, LENGTH, 0.5, 32)


def test_tritons_own_way_to_launch_is_the_known_one(world: World) -> None:
    compiled = launch()
    assert fast_path._is_as_known(compiled[(1, 1, 1)])


def test_ways_of_giving_arguments_and_lengths_are_bounded(world: World) -> None:
    swapped(world)
    (form,) = table(world).repeats.values()
    for number in range(MAX_REPEATS - 1):
        form.repeats[number] = form.repeats[next(iter(form.repeats))]
    for number in range(MAX_FORMS - 1):
        table(world).repeats[number] = form
    strangers.affine[(16,)](X, Y, LENGTH, factor=0.5, BLOCK=16)
    assert len(table(world).repeats) == 1  # another way of giving the same
    assert len(form.repeats) == MAX_REPEATS
    table(world).repeats[strangers.affine._retuned_kernel, 4, "BLOCK"] = form
    launch(block=32)
    assert len(form.repeats) == 1


# --- any launches ---------------------------------------------------------------------------------

_LAUNCHES = st.fixed_dictionaries(
    {
        "n": st.sampled_from([LENGTH, LENGTH // 2, 16, 1, True]),
        "x": st.sampled_from([0, 1, 2]),
        "factor": st.sampled_from([0.5, 2.0, 1, True, float("nan"), -0.0]),
        "block": st.sampled_from([16, 32]),
        "grid": st.sampled_from(["rule", "numbers", "list"]),
        "given": st.sampled_from(["usual", "all by place", "all by name", "with options"]),
    }
)
_TENSORS = (X, X.to(torch.float16), torch.arange(2 * LENGTH + 1, dtype=torch.float32)[1:])


@dataclass(frozen=True)
class Made:
    """What a sequence of launches came to."""

    launches: list[tuple[Any, ...]]
    sample: dict[str, Any]
    total: int


def _made(world: World, device: Any, sequence: list[dict[str, Any]]) -> Made:
    count = len(device.launches)
    for each in sequence:
        n, x, block = each["n"], _TENSORS[each["x"]], each["block"]
        number = triton.cdiv(n, block)
        grid: Any = {"rule": cdiv_grid(n), "numbers": (number,), "list": [number, 1]}[each["grid"]]
        run: Callable[..., Any] = strangers.affine[grid]
        if each["given"] == "all by place":
            run(x, Y, n, each["factor"], block)
        elif each["given"] == "all by name":
            run(x_ptr=x, y_ptr=Y, n=n, factor=each["factor"], BLOCK=block)
        elif each["given"] == "with options":
            run(x, Y, n, each["factor"], BLOCK=block, num_warps=8)
        else:
            run(x, Y, n, each["factor"], BLOCK=block)
    made = [
        (one["grid"], one["num_warps"], *map(repr, one["args"])) for one in device.launches[count:]
    ]
    timed = ("epoch", "fraction_s", "shadow_s", "slowdown")
    sample = {name: value for name, value in world.sample().items() if name not in timed}
    # which of two buckets with as many launches comes first is not said
    buckets = [each for each in sample["buckets"] if each["launches"]]
    sample["buckets"] = sorted(buckets, key=lambda each: each["bucket"])
    return Made(made, sample, world.host._seating.slots()[0].total())


@pytest.fixture
def twice(world: World, device: Any) -> Callable[[list[dict[str, Any]], str], None]:
    """Launches a sequence with and without repeating, each under an order of its own."""
    variants: dict[str, tuple[str, str]] = {}

    def run(sequence: list[dict[str, Any]], grid: str) -> None:
        launch()
        launch(n=LENGTH // 2)
        if grid not in variants:
            rule: dict[str, Any] = {"code": "live", "axes": {"N": "n"}, "numels": _ASKED["numels"]}
            fields: dict[str, Any] = {"grid": ["cdiv(n, BLOCK)"]}
            if grid == "kept":
                fields, rule = {}, {"code": "live", "axes": {"N": "n"}, "grid": "kept"}
            elif grid == "by the server's":
                fields = {"grid": ["grid_0"]}
            variants[grid] = world.live_affine(intercept=rule, **fields)
        found = []
        for remembers in (True, False):
            with pytest.MonkeyPatch.context() as patch:
                if not remembers:
                    patch.setattr(dispatch, "remember", lambda *_: None)
                world.swap(variants[grid])
                before = world.host._seating.slots()[0].total()
                made = _made(world, device, sequence)
                found.append((made.launches, made.sample, made.total - before))
                assert remembers or not table(world).repeats
                world.back()
        assert found[0] == found[1]

    return run


@pytest.mark.parametrize("grid", ["a rule", "kept", "by the server's"])
@settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(sequence=st.lists(_LAUNCHES, min_size=4, max_size=24))
def test_any_launches_come_to_the_same_whether_they_are_remembered_or_not(
    twice: Callable[[list[dict[str, Any]], str], None], grid: str, sequence: list[dict[str, Any]]
) -> None:
    twice(sequence * 2, grid)


def test_kernels_with_a_slot_launch_as_before_after_it_is_closed(
    world: World, answers: list[str]
) -> None:
    swapped(world)
    launch()
    world.host.reset()
    answers.clear()
    launch()
    launch_affine(40)
    assert answers == []

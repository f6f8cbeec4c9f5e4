"""A check that is due costs those launches nothing that are none of the variant's.

On a GPU each sum waits for the device. A decode step of twenty layers whose rotary kernel is not
the variant's paid for forty of them in every step, for as long as its bucket's check was due.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.intercept.strangers import launch_affine
from tests.runtime.intercept.test_intercept_swapping import World

from retuned.runtime.intercept import checked_launch, variant
from retuned.runtime.intercept.hook import Interceptor
from retuned.runtime.shadow.input_copies import KEEPER


@pytest.fixture
def world(hook: Interceptor, tmp_path: Path) -> World:
    return World(hook, tmp_path)


@pytest.fixture
def paid(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was paid for checks, in order: sums of inputs, copies of them, memory of both sides."""
    found: list[str] = []

    def counted(name: str, run: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any, **kwargs: Any) -> Any:
            found.append(name)
            return run(*args, **kwargs)

        return noted

    monkeypatch.setattr(variant, "inputs_sum", counted("sum", checked_launch.inputs_sum))
    monkeypatch.setattr(KEEPER, "keep", counted("keep", KEEPER.keep))
    for module in (variant, checked_launch):
        name = "stored_to" if module is variant else "Copies"
        monkeypatch.setattr(module, name, counted("copies", getattr(module, name)))
    return found


def test_launches_of_other_constants_pay_for_no_check_that_is_due(
    world: World, paid: list[str]
) -> None:
    launch_affine(100)
    world.swap(world.other_affine())
    for _ in range(20):
        launch_affine(100, block=32)
    assert paid == []
    sample = world.sample()
    assert sample["ineligible_launches"] == {"constexpr": 20}
    assert sample["shadow_checks"] == 0
    launch_affine(100)
    assert "sum" in paid, "the first launch of the bucket that is the variant's is checked"
    assert world.sample()["shadow_checks"] == 1


def test_nor_do_they_once_the_bucket_was_checked_and_is_due_again(
    world: World, paid: list[str]
) -> None:
    launch_affine(100)
    world.swap(world.other_affine(), shadow_every=1)
    launch_affine(100)
    paid.clear()
    for _ in range(20):
        launch_affine(100, block=32)
    assert paid == []
    launch_affine(100)
    assert world.sample()["shadow_checks"] == 2


def test_launches_that_wait_for_their_code_pay_for_no_check_and_ask_for_it(
    world: World, paid: list[str]
) -> None:
    launch_affine(100)
    world.swap(world.live_affine())
    for _ in range(5):
        launch_affine(96, factor=0.25)
    assert paid == []
    assert world.sample()["ineligible_launches"] == {"not-compiled": 5}
    world.host.housekeeping()
    launch_affine(96, factor=0.25)
    assert world.sample()["shadow_checks"] == 1


def test_launches_that_store_too_much_to_be_checked_are_not_summed(
    world: World, paid: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("retuned.runtime.intercept.checked_launch.MAX_CHECK_BYTES", 100)
    launch_affine(100)
    world.swap(world.live_affine())
    for _ in range(3):
        launch_affine(100)
    assert "sum" not in paid
    assert world.sample()["ineligible_launches"] == {"output-too-large-to-check": 3}

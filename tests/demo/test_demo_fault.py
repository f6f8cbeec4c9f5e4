"""The injected fault: small, on one column, in a third of the launches, on the variant only."""

from __future__ import annotations

from typing import Any

import pytest
from tests.expect import raises_naming

from retuned.demo.fault import Dearer, FaultInjector, OneColumnWrong
from retuned.errors import UsageError
from retuned.runtime.core.active_order import Ineligible, Launch, Swapped
from retuned.runtime.core.orders import Order, parse_order
from retuned.runtime.core.slots import Slot
from retuned.runtime.shadow.sampler import TRIP_RATIO, compare_tensors

torch = pytest.importorskip("torch", reason="the fault changes tensors")

DEFINITION = {
    "name": "twice_h4",
    "op_type": "twice",
    "axes": {"M": {"type": "var"}, "H": {"type": "const", "value": 4}},
    "inputs": {"x": {"shape": ["M", "H"], "dtype": "float32"}},
    "outputs": {"y": {"shape": ["M", "H"], "dtype": "float32"}},
}


class Twice:
    """A variant in the form the runtime loads."""

    def launcher(self, key: tuple[int, ...]) -> Launch:
        return lambda inputs: inputs[0] * 2

    checked_launcher = launcher

    def capturing(self) -> None:
        return None

    def fingerprint(self, inputs: tuple[Any, ...]) -> object:
        return [tensor.sum().item() for tensor in inputs]


def _original(x: Any) -> Any:
    return x + x


def _order(shadow_every: int) -> Order:
    return parse_order(
        {
            "id": "one",
            "kind": "swap",
            "definition": "twice_h4",
            "artifact": "sha256:" + "0" * 64,
            "guard": {"bounds": {"M": [2, 100]}},
            "epoch": 1,
            "shadow_every": shadow_every,
        }
    )


def _slot(*, swapped: bool, shadow_every: int = 10**6) -> Slot:
    slot = Slot(DEFINITION, _original)
    if swapped:
        order = _order(shadow_every)
        slot.commit(Swapped(slot, order, variant=Twice(), compare=compare_tensors))
    return slot


def _wrong(slot: Slot, *, rows: int, launches: int) -> list[int]:
    x = torch.ones(rows, 4)
    return [n for n in range(launches) if not torch.equal(slot(x), _original(x))]


def test_one_output_in_three_is_off_in_one_column_by_twice_what_is_allowed() -> None:
    wrong = OneColumnWrong()
    launch = wrong(lambda inputs: inputs[0])
    outputs = [launch((torch.ones(4, 3),)) for _ in range(9)]
    changed = [n for n, output in enumerate(outputs) if not torch.equal(output, torch.ones(4, 3))]
    assert changed == [0, 3, 6]
    assert outputs[0][:, 0].tolist() == pytest.approx([1.002] * 4)
    assert torch.equal(outputs[0][:, 1:], torch.ones(4, 2))


def test_a_swapped_slot_turns_wrong_within_its_guard_only() -> None:
    slot = _slot(swapped=True)
    assert _wrong(slot, rows=5, launches=30) == []
    FaultInjector({"twice_h4": slot}).inject("twice_h4")
    assert len(_wrong(slot, rows=5, launches=30)) == 10
    assert len(_wrong(slot, rows=7, launches=30)) > 5, "shapes seen later are broken too"
    assert _wrong(slot, rows=1, launches=30) == [], "outside of the guard runs the incumbent"


def test_the_incumbent_is_right_again_after_a_rollback() -> None:
    slot = _slot(swapped=True)
    FaultInjector({"twice_h4": slot}).inject("twice_h4")
    back = parse_order(
        {"id": "two", "kind": "rollback", "definition": "twice_h4", "epoch": 2, "guard": {}}
    )
    slot.commit(Swapped(slot, back, variant=None, compare=compare_tensors))
    assert _wrong(slot, rows=5, launches=30) == []


def test_shadow_checks_find_the_fault_and_the_breaker_leaves_it_to_the_daemon() -> None:
    slot = _slot(swapped=True, shadow_every=4)
    assert _wrong(slot, rows=5, launches=40) == []
    FaultInjector({"twice_h4": slot}).inject("twice_h4")
    _wrong(slot, rows=5, launches=400)
    order = slot.table.in_force
    assert isinstance(order, Swapped)
    assert order.stats.mismatches > 0
    assert 1.0 < order.stats.worst_ratio < TRIP_RATIO
    assert slot.table.state == "swapped"


def test_a_slot_that_runs_its_original_is_refused() -> None:
    with raises_naming(UsageError, "'a'", "original"):
        FaultInjector({"a": _slot(swapped=False)}).inject("a")


def test_an_unknown_slot_is_refused_and_the_known_ones_are_named() -> None:
    with raises_naming(UsageError, "'z'"):
        FaultInjector({"a": _slot(swapped=True)}).inject("z")


class Ticking:
    """A clock that goes on by a second each time it is read; a launch may take more."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 1.0
        return self.now_s


def test_a_dear_launch_returns_the_same_and_takes_a_multiple_of_its_time() -> None:
    clock = Ticking()

    def launch(inputs: tuple[Any, ...]) -> Any:
        clock.now_s += 9.0
        return inputs[0]

    assert Dearer(4.0, clock=clock)(launch)(("x",)) == "x"
    assert clock.now_s == pytest.approx(1.0 + 4 * 10.0, abs=1.0)


def test_a_launch_that_the_variant_does_not_take_stays_one() -> None:
    refused = Ineligible("odd")
    assert Dearer(4.0)(lambda _: refused)(()) is refused
    assert OneColumnWrong()(lambda _: refused)(()) is refused


@pytest.mark.parametrize("told", [False, True])
def test_each_later_order_is_dear_and_switched_off_it_is_the_original(told: bool) -> None:
    slot, changes = _slot(swapped=False), list[str]()
    if told:
        slot.on_change = lambda: changes.append(slot.table.state)
    FaultInjector({"twice_h4": slot}).make_dearer(4.0)
    order = _order(10**6)
    slot.commit(Swapped(slot, order, variant=Twice(), compare=compare_tensors))
    active = slot.table.in_force
    assert isinstance(active, Swapped)
    assert isinstance(active.distortion, Dearer)
    assert _wrong(slot, rows=5, launches=30) == []
    assert active.swapped_launches == 30
    assert slot.replace(active, state="bypassed")
    assert _wrong(slot, rows=5, launches=30) == []
    assert active.swapped_launches == 30
    assert changes == (["swapped", "bypassed"] if told else [])

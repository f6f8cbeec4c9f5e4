"""Steps, the breaker and the lease, as the control socket has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from retuned.runtime.core.active_order import Swapped
from retuned.runtime.core.orders import parse_order
from retuned.runtime.core.reports import slot_sample
from retuned.runtime.core.slots import Slot
from retuned.runtime.core.supervisor import MAX_EXCLUDED, PROCESS_LIMIT, Breaker, Supervision
from retuned.runtime.schema import Refused
from retuned.runtime.shadow.sampler import Comparison

A, B = "sha256:" + "a" * 64, "sha256:" + "b" * 64


class Answering:
    def launcher(self, _: tuple[int, ...]) -> Callable[[tuple[Any, ...]], Any]:
        return lambda _: "variant"

    checked_launcher = launcher

    def capturing(self) -> None:
        return None

    def fingerprint(self, _: tuple[Any, ...]) -> object:
        return 0


def agreeing(*_: object) -> Comparison:
    return Comparison(nonfinite=False, ratio=0.0)


class Rows:
    shape = (4,)


class Process:
    """Some slots under supervision, at a time the test sets."""

    def __init__(self, *names: str) -> None:
        self.now_s = 0.0
        self.slots = {name: Slot(self._definition(name), lambda _: "original") for name in names}
        self.supervision = Supervision(self.slots.values, clock=lambda: self.now_s)

    def _definition(self, name: str) -> dict[str, Any]:
        tensor = {"shape": ["M"], "dtype": "float32"}
        axes = {"M": {"type": "var"}}
        body = {"name": name, "op_type": "copy", "axes": axes}
        return body | {"inputs": {"x": tensor}, "outputs": {"y": tensor}}

    def swap(self, name: str, artifact: str = A, *, epoch: int = 1, **fields: Any) -> Swapped:
        body = {
            "id": f"{name}-{epoch}",
            "kind": "swap",
            "definition": name,
            "artifact": artifact,
            "guard": {"bounds": {}},
            "epoch": epoch,
            "shadow_every": 50,
        }
        order = parse_order(body | fields)
        self.supervision.admit(order)
        swapped = Swapped(
            self.slots[name],
            order,
            variant=Answering(),
            compare=agreeing,
            on_trip=self.supervision.tripped,
            clock=lambda: self.now_s,
        )
        self.slots[name].commit(swapped)
        return swapped

    def serves(self, name: str) -> str:
        return str(self.slots[name](Rows()))


def refusal(do: Callable[[], object]) -> str:
    with pytest.raises(Refused) as caught:
        do()
    return caught.value.reason


def test_what_tripped_is_not_let_in_again_until_it_is_armed() -> None:
    process = Process("a", "b")
    process.swap("a").trip("shadow-mismatch", "")
    assert process.serves("a") == "original"
    assert refusal(lambda: process.swap("a", epoch=2)) == "breaker-open"
    process.swap("a", B, epoch=3)
    assert process.serves("a") == "variant", "another artifact did no harm"
    process.swap("b", A)
    assert process.serves("b") == "variant", "another kernel neither"
    assert process.supervision.rearm({"definition": "a"}) == {"was_open": True, "process": ""}
    process.swap("a", A, epoch=4)
    assert process.serves("a") == "variant"
    assert process.supervision.rearm({"definition": "a"})["was_open"] is False


def test_the_way_back_to_the_original_is_never_refused() -> None:
    process = Process("a")
    process.swap("a").trip("launch-errors", "")
    body = {"id": "x", "kind": "rollback", "definition": "a", "artifact": None, "epoch": 2}
    process.supervision.admit(parse_order(body | {"guard": {"bounds": {}}}))


def test_several_kernels_that_trip_take_the_whole_process_back() -> None:
    names = [f"k{number}" for number in range(PROCESS_LIMIT + 2)]
    process = Process(*names)
    orders = [process.swap(name) for name in names]
    for order in orders[: PROCESS_LIMIT - 1]:
        order.trip("shadow-nonfinite", "")
    assert process.serves(names[-1]) == "variant"
    orders[PROCESS_LIMIT - 1].trip("shadow-nonfinite", "")
    assert {process.serves(name) for name in names} == {"original"}
    assert slot_sample(process.slots[names[-1]])["tripped"] == "process-breaker"
    assert refusal(lambda: process.swap(names[-1], B, epoch=2)) == "breaker-open"
    assert process.supervision.rearm({"definition": names[-1]})["was_open"] is False
    assert refusal(lambda: process.swap(names[-1], B, epoch=2)) == "breaker-open"
    assert process.supervision.rearm({"definition": None}) == {"was_open": True, "process": ""}
    process.swap(names[-1], B, epoch=2)
    assert process.serves(names[-1]) == "variant"


def test_one_kernel_that_trips_again_and_again_is_one_kernel() -> None:
    breaker = Breaker(limit=2)
    for number in range(10):
        assert not breaker.open("a", f"artifact-{number}", reason="slow")
    assert breaker.process == ""
    assert breaker.open("b", "artifact", reason="slow")
    assert "2 kernels" in breaker.process
    assert breaker.state()["a"]["artifact-3"] == "slow"


def test_steps_are_taken_by_order_for_the_epoch_in_force_only() -> None:
    process = Process("a")
    process.swap("a", canary=[{"fraction": 0.01}], epoch=3)
    assert slot_sample(process.slots["a"])["fraction"] == 0.01
    asked = {"definition": "a", "epoch": 3, "fraction": 0.5, "excluded": [[9]]}
    answer = process.supervision.ramp(asked)
    assert answer["fraction"] == 0.5
    process.now_s += 7.0
    sample = slot_sample(process.slots["a"])
    assert (sample["fraction"], sample["fraction_s"]) == (0.5, 7.0)
    assert sample["excluded"] == [(9,)]
    assert refusal(lambda: process.supervision.ramp(asked | {"epoch": 2})) == "stale-epoch"
    assert refusal(lambda: process.supervision.ramp(asked | {"definition": "b"})) == "stale-epoch"


@pytest.mark.parametrize(
    "odd",
    [
        {"fraction": 1.1},
        {"fraction": None},
        {"fraction": "0.5"},
        {"excluded": "all"},
        {"excluded": [5]},
        {"excluded": [[-1]]},
        {"excluded": [[1]] * (MAX_EXCLUDED + 1)},
    ],
)
def test_an_odd_step_is_refused_and_changes_nothing(odd: dict[str, Any]) -> None:
    process = Process("a")
    process.swap("a", canary=[{"fraction": 0.25}])
    asked = {"definition": "a", "epoch": 1, "fraction": 0.5, "excluded": []} | odd
    assert refusal(lambda: process.supervision.ramp(asked)) in ("order-invalid", "bad-request")
    assert slot_sample(process.slots["a"])["fraction"] == 0.25


def orphan(process: Process, **fields: Any) -> Swapped:
    return process.swap("a", canary=[{"fraction": 0.25}], lease_s=600.0, **fields)


def test_a_canary_whose_daemon_does_not_come_back_holds_its_fraction() -> None:
    process = Process("a")
    orphan(process)
    process.now_s = 599.0
    process.supervision.tend()
    assert slot_sample(process.slots["a"])["orphaned"] is False
    process.now_s = 601.0
    process.supervision.tend()
    sample = slot_sample(process.slots["a"])
    assert (sample["orphaned"], sample["fraction"], sample["tripped"]) == (True, 0.25, "")
    assert [process.serves("a") for _ in range(1000)].count("variant") == 250
    process.supervision.heard()
    process.supervision.tend()
    assert slot_sample(process.slots["a"])["orphaned"] is False


def test_an_orphan_goes_back_by_itself_where_its_order_says_so() -> None:
    process = Process("a")
    orphan(process, orphan="rollback")
    process.now_s = 601.0
    process.supervision.tend()
    assert process.serves("a") == "original"
    assert slot_sample(process.slots["a"])["tripped"] == "orphaned"
    process.swap("a", epoch=2)
    assert process.serves("a") == "variant", "it did no harm, so the breaker is closed"


def test_a_swap_that_all_launches_run_is_no_orphan() -> None:
    process = Process("a")
    orphan(process, orphan="rollback").ramp(1.0, excluded=())
    process.now_s = 1e6
    process.supervision.tend()
    assert process.serves("a") == "variant"


def test_a_sample_tells_launches_and_checks_of_each_shape_bucket() -> None:
    process = Process("a")
    swapped = process.swap("a", canary=[{"fraction": 0.5}], shadow_every=10)
    for _ in range(1000):
        process.serves("a")
    (row,) = slot_sample(process.slots["a"])["buckets"]
    assert (row["bucket"], row["launches"]) == ([3], 1000)
    assert row["checks"] == row["step_checks"] == pytest.approx(50, abs=2)
    swapped.ramp(1.0, excluded=())
    (row,) = slot_sample(process.slots["a"])["buckets"]
    assert row["checks"] > 0
    assert row["step_checks"] == 0

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.expect import raises_naming

from retuned.runtime.core import slots as slots_module
from retuned.runtime.core import tables
from retuned.runtime.core.reports import slot_state
from retuned.runtime.core.slots import Slot
from retuned.runtime.schema import Refused, allows, parse_bounds, parse_spec


class Shaped:
    """Stands for a tensor: slots read nothing but its shape."""

    def __init__(self, *shape: int) -> None:
        self.shape = shape


class Order:
    """An order in force whose variant is a plain function."""

    def __init__(
        self,
        run: Callable[..., Any] | None,
        *,
        epoch: int = 1,
        bounds: tuple[tuple[int, int, int], ...] = (),
    ) -> None:
        self.mark = f"order-{epoch}"
        self.artifact = None if run is None else "sha256:" + "a" * 64
        self.epoch = epoch
        self.bounds = bounds
        self.routed: list[tuple[int, ...]] = []
        self._run = run

    def route(self, key: tuple[int, ...]) -> Callable[..., Any]:
        self.routed.append(key)
        assert self._run is not None
        return self._run


def definition(*, constant: bool = False, axes: int = 1) -> dict[str, Any]:
    names = ["M", "S", "B"][:axes]
    return {
        "name": "kernel",
        "op_type": "kernel",
        "axes": {name: {"type": "var"} for name in names} | {"K": {"type": "const", "value": 8}},
        "inputs": {
            "x": {"shape": [*names, "K"], "dtype": "float32"},
            "w": {"shape": ["K"], "dtype": "float32", "constant": constant},
        },
        "outputs": {"y": {"shape": [*names, "K"], "dtype": "float32"}},
    }


def original(*_: Any) -> str:
    return "original"


def swapped(*_: Any) -> str:
    return "swapped"


def test_a_slot_calls_the_original_and_counts_each_shape() -> None:
    slot = Slot(definition(), original)
    for length in (1, 4, 4, 4):
        assert slot(Shaped(length, 8), Shaped(8)) == "original"
    assert slot.launches() == {(1,): 1, (4,): 3}
    assert slot.total() == 4


@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("constant", [False, True])
def test_every_form_of_the_hot_path_swaps_within_the_guard(axes: int, constant: bool) -> None:
    slot = Slot(definition(constant=constant, axes=axes), original)
    weight = Shaped(8)
    slot.commit(Order(swapped, bounds=((0, 2, 4),)))
    rest = (3,) * (axes - 1)
    answers = [slot(Shaped(m, *rest, 8), weight) for m in (1, 2, 3, 4, 5)]
    assert answers == ["original", "swapped", "swapped", "swapped", "original"]
    assert set(slot.launches()) == {(m, *rest) for m in (1, 2, 3, 4, 5)}


@given(
    st.dictionaries(
        st.sampled_from(["M", "S"]),
        st.tuples(st.integers(0, 50), st.integers(0, 50)).map(lambda pair: sorted(pair)),
    ),
    st.tuples(st.integers(0, 60), st.integers(0, 60)),
)
def test_a_guard_allows_exactly_what_its_bounds_say(
    bounds: dict[str, list[int]], key: tuple[int, int]
) -> None:
    lengths = dict(zip(("M", "S"), key, strict=True))
    expected = all(low <= lengths[axis] <= high for axis, (low, high) in bounds.items())
    assert allows(parse_bounds({"bounds": bounds}, ("M", "S")), key) is expected


@pytest.mark.parametrize(
    "guard",
    [
        None,
        [],
        {"bounds": []},
        {"bounds": {"K": [1, 2]}},
        {"bounds": {"M": [2, 1]}},
        {"bounds": {"M": [1]}},
        {"bounds": {"M": [True, 4]}},
        {"bounds": {"M": [-1, 4]}},
        {"bounds": {"M": [0.5, 4]}},
        {"bounds": {"M": [1, 2**60]}},
        {"bounds": {"M": "14"}},
    ],
)
def test_a_guard_that_cannot_be_understood_is_refused(guard: Any) -> None:
    with pytest.raises(Refused) as caught:
        parse_bounds(guard, ("M",))
    assert caught.value.reason == "guard-invalid"


def test_the_guard_is_evaluated_once_per_shape() -> None:
    slot = Slot(definition(), original)
    order = Order(swapped)
    slot(Shaped(4, 8), Shaped(8))
    slot.commit(order)
    for _ in range(10):
        slot(Shaped(4, 8), Shaped(8))
        slot(Shaped(5, 8), Shaped(8))
    assert order.routed == [(4,), (5,)]


def test_shapes_beyond_the_limit_are_counted_together_and_still_guarded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slots_module, "MAX_KEYS", 3)
    slot = Slot(definition(), original)
    slot.commit(Order(swapped, bounds=((0, 5, 6),)))
    answers = [slot(Shaped(m, 8), Shaped(8)) for m in (1, 2, 3, 4, 5, 6, 7, 5)]
    assert answers == ["original"] * 4 + ["swapped", "swapped", "original", "swapped"]
    assert slot.launches() == {(1,): 1, (2,): 1, (3,): 1}
    assert slot.other == [5]
    assert slot.total() == 8


def test_a_shape_beyond_the_limit_is_routed_once_and_not_at_every_launch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slots_module, "MAX_KEYS", 2)
    slot = Slot(definition(), original)
    order = Order(swapped)
    slot.commit(order)
    for _ in range(10):
        for m in (1, 2, 3, 4):
            assert slot(Shaped(m, 8), Shaped(8)) == "swapped"
    assert order.routed == [(1,), (2,), (3,), (4,)]


def test_routes_are_bounded_however_many_shapes_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots_module, "MAX_KEYS", 4)
    monkeypatch.setattr(tables, "MAX_ROUTES", 8)
    slot = Slot(definition(), original)
    slot.commit(Order(swapped))
    for m in range(1, 100):
        assert slot(Shaped(m, 8), Shaped(8)) == "swapped"
        assert len(slot.table) <= 8
    assert slot.total() == 99


def test_a_flip_routes_the_usual_shapes_beforehand_and_no_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slots_module, "PREROUTED", 2)
    slot = Slot(definition(), original)
    for m, times in ((1, 1), (2, 9), (3, 5), (4, 2)):
        for _ in range(times):
            slot(Shaped(m, 8), Shaped(8))
    order = Order(swapped)
    slot.commit(order)
    assert order.routed == [(2,), (3,)]


def test_inputs_without_a_shape_are_the_originals_business() -> None:
    seen: list[tuple[Any, ...]] = []

    def accepts_anything(*inputs: Any) -> str:
        seen.append(inputs)
        return "original"

    slot = Slot(definition(), accepts_anything)
    slot.commit(Order(swapped))
    for inputs in [(), (None, None), (Shaped(), Shaped()), (object(),)]:
        assert slot(*inputs) == "original"
    assert len(seen) == 4
    assert slot.total() == 4


def test_what_the_original_raises_reaches_the_server_unchanged() -> None:
    def broken(*_: Any) -> None:
        raise KeyError("the server's own")

    slot = Slot(definition(), broken)
    with raises_naming(KeyError, "the server's own"):
        slot(Shaped(1, 8), Shaped(8))
    assert slot.launches() == {(1,): 1}


def test_a_slot_may_compute_its_key_itself() -> None:
    slot = Slot(definition(), original, key=lambda x, w: (x.shape[0] * 2,))
    slot(Shaped(4, 8), Shaped(8))
    assert slot.launches() == {(8,): 1}


def test_states_change_only_for_the_order_in_force_and_tripped_is_final() -> None:
    slot = Slot(definition(), original)
    first, second = Order(swapped, epoch=1), Order(swapped, epoch=2)
    slot.commit(first)
    assert slot.replace(first, state="bypassed")
    assert slot(Shaped(1, 8), Shaped(8)) == "original"
    assert slot.replace(first, state="swapped")
    assert slot(Shaped(1, 8), Shaped(8)) == "swapped"
    slot.commit(second)
    assert not slot.replace(first, state="bypassed")
    assert slot.replace(second, state="tripped:because")
    assert not slot.replace(second, state="swapped")
    assert slot(Shaped(1, 8), Shaped(8)) == "original"
    slot.commit(Order(swapped, epoch=3))
    assert slot(Shaped(1, 8), Shaped(8)) == "swapped"


def test_weights_are_followed_weakly_and_forgotten_when_they_die() -> None:
    slot = Slot(definition(constant=True), original)
    kept, lost = Shaped(8), Shaped(8)
    slot(Shaped(1, 8), kept)
    slot(Shaped(1, 8), lost)
    assert len(slot.constants()) == 2
    del lost
    gc.collect()
    assert slot.constants() == [(kept,)]


def test_weights_that_never_stay_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots_module, "MAX_CONSTANTS", 5)
    slot = Slot(definition(constant=True), original)
    keep = [Shaped(8) for _ in range(10)]
    for weight in keep:
        assert slot(Shaped(1, 8), weight) == "original"
    assert len(slot.constants()) == 5
    assert slot.total() == 10


def test_a_thousand_flips_under_load_lose_no_call_and_no_count() -> None:
    """Every call answers with one of the two variants; counts are exact."""
    slot = Slot(definition(), original)
    calls_each, wrong = 20_000, []
    started = threading.Barrier(4)

    def work() -> None:
        x, w = Shaped(4, 8), Shaped(8)
        started.wait()
        for _ in range(calls_each):
            answer = slot(x, w)
            if answer not in ("original", "swapped"):
                wrong.append(answer)

    def flip() -> None:
        started.wait()
        for epoch in range(1, 1001):
            slot.commit(Order(swapped if epoch % 2 else None, epoch=epoch))

    threads = [threading.Thread(target=work) for _ in range(3)] + [threading.Thread(target=flip)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert slot.total() == 3 * calls_each
    assert slot(Shaped(4, 8), Shaped(8)) == "original"


def test_slots_load_no_pytorch() -> None:
    script = (
        "import sys; from retuned.runtime import Slot; "
        "import retuned.runtime.core.host, retuned.runtime.core.attach; "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(st.sampled_from(["name", "op_type", "axes", "inputs", "outputs", None]), JSON)
def test_a_definition_from_a_stranger_is_read_or_refused(field: str | None, value: Any) -> None:
    body = value if field is None else definition() | {field: value}
    try:
        spec = parse_spec(body)
    except Refused:
        return
    assert spec.inputs
    assert all(spec.locate(axis) is not None for axis in spec.variable_axes)


def test_launches_in_a_report_leave_nothing_to_a_collection_of_garbage() -> None:
    """What survives a young collection brings a full one nearer, which stops a server."""
    slot = Slot(definition(), original)
    for m in range(1, 101):
        slot(Shaped(m, 8), Shaped(8))
    reported = slot_state(slot)["launches"]
    assert len(reported) == 100
    for _ in range(2):  # the keys first, then what holds them
        gc.collect()
    assert not any(gc.is_tracked(entry) for entry in reported)

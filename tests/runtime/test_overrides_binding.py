"""Bindings: which launches are a definition's, and operators of every form."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.expect import raises_naming

from retuned.runtime.core.attach import Runtime, attach
from retuned.runtime.core.slots import Slot
from retuned.runtime.schema import Refused, parse_spec
from retuned.runtime.torch_ops.binding import Binding, InputBinding, OutputBinding, View

NAMESPACE = "retuned_test_binding"
SCALE = Binding(
    operator=f"{NAMESPACE}::scale",
    schema=f"{NAMESPACE}::scale(Tensor x, Tensor weight, float factor=2.0) -> Tensor",
    op_type="scale",
    template="scale{form}_n{N}",
    axes=("M", "N"),
    variable=("M",),
    inputs=(
        InputBinding(name="x", argument="x", shape=("M", "N"), view=View.ROWS),
        InputBinding(name="weight", argument="weight", shape=("N",), constant=True),
    ),
    outputs=(OutputBinding(name="y", shape=("M", "N")),),
    equal=(("factor", 2.0),),
)
OUT = replace(
    SCALE,
    operator=f"{NAMESPACE}::scale.out",
    schema=f"{NAMESPACE}::scale.out(Tensor x, Tensor weight, float factor=2.0, *, bool safe=True, "
    "Tensor(a!) out) -> Tensor(a!)",
    outputs=(OutputBinding(name="y", argument="out", shape=("M", "N"), view=View.ROWS),),
    equal=(("factor", 2.0), ("safe", True)),
)
HEADS = Binding(
    operator=f"{NAMESPACE}::turn",
    schema=f"{NAMESPACE}::turn(Tensor! q, int width) -> ()",
    op_type="turn",
    template="turn{form}_q{Q}_d{D}",
    axes=("M", "Q", "D"),
    variable=("M",),
    inputs=(InputBinding(name="q", argument="q", shape=("M", "Q", "D"), view=View.HEADS),),
    outputs=(OutputBinding(name="r", argument="q", shape=("M", "Q", "D"), view=View.HEADS),),
    sized=(("D", "width"),),
)


def reason(work: Callable[[], object]) -> str:
    with pytest.raises(Refused) as caught:
        work()
    return caught.value.reason


@given(st.lists(st.integers(0, 50), min_size=1, max_size=4), st.integers(1, 64))
def test_all_dimensions_but_the_last_are_rows(leading: list[int], width: int) -> None:
    rows = 1
    for length in leading:
        rows *= length
    shapes = {"x": (*leading, width), "weight": (width,)}
    assert SCALE.lengths(shapes, {"factor": 2.0}) == {"M": rows, "N": width}


@given(st.integers(0, 50), st.integers(1, 16), st.integers(1, 64))
def test_heads_next_to_each_other_are_told_apart_by_their_width(m: int, q: int, d: int) -> None:
    found = HEADS.lengths({"q": (m, q * d)}, {"width": d})
    assert found == {"M": m, "Q": q, "D": d}
    assert HEADS.lengths({"q": (m, q, d)}, {"width": d}) == found


@pytest.mark.parametrize(
    ("shapes", "values", "expected"),
    [
        ({"x": (2, 4), "weight": (4,)}, {"factor": 2.5}, "value-differs"),
        ({"x": (2, 4), "weight": (4,)}, {}, "value-differs"),
        ({"x": (2, 4), "weight": (5,)}, {"factor": 2.0}, "shape-differs"),
        ({"x": (2, 4), "weight": (1, 4)}, {"factor": 2.0}, "shape-differs"),
        ({"x": (4,), "weight": (4,)}, {"factor": 2.0}, "shape-differs"),
        ({"x": (), "weight": (4,)}, {"factor": 2.0}, "shape-differs"),
        ({"x": (2, 4)}, {"factor": 2.0}, "shape-differs"),
    ],
)
def test_a_launch_of_another_kind_is_refused_with_the_reason(
    shapes: dict[str, tuple[int, ...]], values: dict[str, object], expected: str
) -> None:
    assert reason(lambda: SCALE.lengths(shapes, values)) == expected


@pytest.mark.parametrize("width", [0, -8, 3, True, None, "8", 2.0])
def test_a_head_of_no_length_is_refused(width: object) -> None:
    code = reason(lambda: HEADS.lengths({"q": (2, 16)}, {"width": width}))
    assert code in ("value-differs", "shape-differs")


def test_axes_that_nothing_shows_are_refused() -> None:
    hidden = replace(SCALE, axes=("M", "N", "Z"))
    shapes = {"x": (2, 4), "weight": (4,)}
    assert reason(lambda: hidden.lengths(shapes, {"factor": 2.0})) == "shape-differs"


def test_a_definition_is_one_that_the_runtime_reads() -> None:
    spec = parse_spec(SCALE.definition({"M": 3, "N": 4}, dtype="bfloat16"))
    assert (spec.name, spec.axes) == ("scale_bf16_n4", (("M", None), ("N", 4)))
    assert [tensor.dtype for tensor in (*spec.inputs, *spec.outputs)] == ["bfloat16"] * 3
    assert spec.constant_inputs == (1,)


def test_launches_are_told_apart_by_what_shows_their_axes() -> None:
    assert SCALE.shown() == ("x",)
    assert HEADS.shown() == ("q",)


# --- operators of every form --------------------------------------------------------------------


@pytest.fixture
def runtime() -> Iterator[Runtime]:
    made = attach(server="test")
    library = torch.library.Library(NAMESPACE, "FRAGMENT")
    for binding in (SCALE, OUT, HEADS):
        library.define(binding.schema.partition("::")[2])
    library.impl("scale", lambda x, weight, factor=2.0: x * weight * factor, "CPU")
    library.impl("scale.out", scale_out, "CPU")
    library.impl("turn", turn, "CPU")
    yield made
    made.close()
    library._destroy()


def scale_out(x: Any, weight: Any, factor: float = 2.0, *, safe: bool = True, out: Any) -> Any:
    return out.copy_(x * weight * factor)


def turn(q: Any, width: int) -> None:
    q.neg_()


class Doubling:
    """An order in force whose launches return twice what the original does."""

    order_id = mark = "order"
    artifact: str | None = "sha256:" + 64 * "0"
    epoch = 1
    bounds: tuple[tuple[int, int, int], ...] = ()

    def __init__(self, slot: Slot, error: Exception | None = None) -> None:
        self._slot, self._error = slot, error
        self.errors: list[Exception] = []

    def route(self, _: object) -> Callable[..., Any]:
        def run(*inputs: Any) -> Any:
            if self._error is not None:
                raise self._error
            return self._slot.original(*[value.clone() for value in inputs]) * 2

        return run

    def count_error(self, error: Exception) -> None:
        self.errors.append(error)


def slot_of(runtime: Runtime, name: str) -> Slot:
    return runtime._host._seating.seats[name].slot


def test_an_operator_that_returns_a_new_tensor_has_a_slot(runtime: Runtime) -> None:
    assert runtime.override(SCALE) == {f"{NAMESPACE}::scale/CPU": "on"}
    x, weight = torch.ones(2, 4), torch.arange(4.0)
    operator = getattr(torch.ops, NAMESPACE).scale
    assert torch.equal(operator(x, weight), 2 * weight.expand(2, 4))
    slot = slot_of(runtime, "scale_n4")
    slot.commit(Doubling(slot))
    assert torch.equal(operator(x, weight), 4 * weight.expand(2, 4))
    assert torch.equal(operator(x, weight, 2.0), 4 * weight.expand(2, 4)), "a default, given"
    assert torch.equal(operator(x, weight, factor=3.0), 3 * weight.expand(2, 4))
    assert slot.launches() == {(2,): 3}


def test_an_out_variant_gives_back_what_it_was_given(runtime: Runtime) -> None:
    assert runtime.override(OUT) == {f"{NAMESPACE}::scale.out/CPU": "on"}
    x, weight = torch.ones(2, 4), torch.arange(4.0)
    operator = getattr(torch.ops, NAMESPACE).scale.out
    for factor in (2, 4):
        out = torch.empty(2, 4)
        assert operator(x, weight, out=out).data_ptr() == out.data_ptr()
        assert torch.equal(out, factor * weight.expand(2, 4))
        slot = slot_of(runtime, "scale_n4")
        slot.commit(Doubling(slot))
    out = torch.empty(2, 4)
    operator(x, weight, safe=False, out=out)
    assert torch.equal(out, 2 * weight.expand(2, 4)), "another value is another launch"


def test_two_operators_of_one_definition_do_not_share_its_slot(runtime: Runtime) -> None:
    runtime.override(SCALE, OUT)
    x, weight, out = torch.ones(2, 4), torch.arange(4.0), torch.empty(2, 4)
    getattr(torch.ops, NAMESPACE).scale(x, weight)
    getattr(torch.ops, NAMESPACE).scale.out(x, weight, out=out)
    told = {each["operator"]: each for each in runtime._operators.states()}
    assert told[OUT.operator]["passed"] == {"slot-exists": 1}
    assert torch.equal(out, 2 * weight.expand(2, 4))


def test_heads_are_changed_in_place(runtime: Runtime) -> None:
    runtime.override(HEADS)
    operator = getattr(torch.ops, NAMESPACE).turn
    q = torch.ones(2, 6)
    operator(q, 3)
    assert torch.equal(q, -torch.ones(2, 6))
    slot = slot_of(runtime, "turn_q2_d3")
    slot.commit(Doubling(slot))
    operator(q, 3)
    assert torch.equal(q, 2 * torch.ones(2, 6))
    wide = torch.ones(2, 12)
    operator(wide[:, :6], 3)  # as a split of a projection lies
    assert torch.equal(wide, torch.cat([-2 * torch.ones(2, 6), torch.ones(2, 6)], dim=1))


def test_whatever_an_order_raises_the_original_serves_once(runtime: Runtime) -> None:
    runtime.override(HEADS)
    operator = getattr(torch.ops, NAMESPACE).turn
    operator(torch.ones(2, 6), 3)
    slot = slot_of(runtime, "turn_q2_d3")
    order = Doubling(slot, error=ValueError("odd"))
    slot.commit(order)
    q = torch.ones(2, 6)
    operator(q, 3)
    assert torch.equal(q, -torch.ones(2, 6))
    assert [str(error) for error in order.errors] == ["odd"]


def test_what_does_not_fit_is_not_handed_over(runtime: Runtime) -> None:
    runtime.override(OUT)
    operator = getattr(torch.ops, NAMESPACE).scale.out
    x, weight, out = torch.ones(2, 4), torch.arange(4.0), torch.empty(2, 4)
    operator(x, weight, out=out)
    slot = slot_of(runtime, "scale_n4")
    for odd in (torch.ones(4, 2), torch.ones(2, 4).double(), None, (out, out)):
        order = Doubling(slot)
        order.route = lambda _, odd=odd: lambda *_: odd  # type: ignore[method-assign, misc]
        slot.commit(order)
        operator(x, weight, out=out.zero_())
        assert torch.equal(out, 2 * weight.expand(2, 4))
        assert len(order.errors) == 1


def test_the_originals_own_error_is_the_servers_and_comes_once(runtime: Runtime) -> None:
    calls: list[object] = []

    def breaks(q: Any, width: int) -> None:
        calls.append(q)
        if len(calls) > 1:
            raise RuntimeError("the server's own")

    library = torch.library.Library(NAMESPACE, "FRAGMENT")
    library.define("broken(Tensor! q, int width) -> ()")
    library.impl("broken", breaks, "CPU")
    binding = replace(
        HEADS,
        operator=f"{NAMESPACE}::broken",
        schema=f"{NAMESPACE}::broken(Tensor! q, int width) -> ()",
    )
    runtime.override(binding)
    operator, q = getattr(torch.ops, NAMESPACE).broken, torch.ones(2, 6)
    operator(q, 3)
    slot = slot_of(runtime, "turn_q2_d3")
    order = Doubling(slot)
    order.route = lambda _: lambda *inputs: slot.original(*inputs)  # type: ignore[method-assign]
    for state in ("original", "swapped"):
        if state == "swapped":
            slot.commit(order)
        before = len(calls)
        with raises_naming(RuntimeError, "the server's own"):
            operator(q, 3)
        assert len(calls) == before + 1
    assert order.errors == []
    runtime.close()
    library._destroy()


def test_failures_of_ours_end_the_looking_after_a_few(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime.override(SCALE)
    (bound,) = runtime._operators._bound.values()
    operator, weight = getattr(torch.ops, NAMESPACE).scale, torch.arange(4.0)

    def odd(*_: object) -> None:
        raise ZeroDivisionError("a fault of ours")

    monkeypatch.setattr(bound, "_seated", odd)
    for rows in range(1, 7):
        assert torch.equal(operator(torch.ones(rows, 4), weight), 2 * weight.expand(rows, 4))
    assert (bound.faults, bound.state()["state"]) == (3, "faulty")


@pytest.mark.parametrize(
    "changed",
    [
        {"equal": (("factor", 2.0), ("no_such_argument", 1))},
        {"inputs": (SCALE.inputs[0],)},
        {"outputs": (OutputBinding(name="y", argument="x", shape=("M", "N"), view=View.ROWS),)},
        {
            "outputs": (
                OutputBinding(name="y", shape=("M", "N")),
                OutputBinding(name="z", shape=("M", "N")),
            )
        },
        {"outputs": (OutputBinding(name="y", shape=("M", "N"), view=View.ROWS),)},
    ],
)
def test_a_binding_that_leaves_something_open_is_refused(
    runtime: Runtime, changed: dict[str, Any]
) -> None:
    binding = replace(SCALE, **changed)
    assert runtime.override(binding) == {f"{NAMESPACE}::scale/CPU": "binding-invalid",
                                         f"{NAMESPACE}::scale/CUDA": "binding-invalid"}  # fmt: skip


def test_an_operator_of_another_schema_is_reported_and_left_alone(runtime: Runtime) -> None:
    binding = replace(SCALE, schema=SCALE.schema.replace("float factor=2.0", "float factor=1.0"))
    assert runtime.override(binding)[f"{NAMESPACE}::scale/CPU"] == "schema-differs"
    told = runtime._host.answer({"op": "hello"})["operators"]
    assert {"operator": SCALE.operator, "key": "CPU", "state": "schema-differs"} in told
    missing = replace(SCALE, operator=f"{NAMESPACE}::nothing")
    assert runtime.override(missing)[f"{NAMESPACE}::nothing/CPU"] == "operator-missing"


def test_a_runtime_that_is_off_takes_nothing_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RETUNED_RUNTIME", "off")
    runtime = attach(server="test")
    assert runtime.override(SCALE) == {SCALE.operator: "runtime-off"}
    runtime.close()


def test_a_second_runtime_finds_an_operator_taken(runtime: Runtime) -> None:
    other = attach(server="other")
    assert runtime.override(SCALE) == {f"{NAMESPACE}::scale/CPU": "on"}
    assert runtime.override(SCALE) == {f"{NAMESPACE}::scale/CPU": "on"}
    assert other.override(SCALE) == {f"{NAMESPACE}::scale/CPU": "overridden"}
    runtime.close()
    assert other.override(SCALE) == {f"{NAMESPACE}::scale/CPU": "on"}
    other.close()


class Noting:
    """Notes what is recorded into a graph."""

    def wrap(self, _: object, run: Callable[..., Any]) -> Callable[..., Any]:
        return run


def test_operands_that_are_read_and_written_are_not_noted_for_graphs(runtime: Runtime) -> None:
    runtime.override(SCALE, HEADS)
    getattr(torch.ops, NAMESPACE).scale(torch.ones(2, 4), torch.arange(4.0))
    getattr(torch.ops, NAMESPACE).turn(torch.ones(2, 6), 3)
    for name, noted in (("scale_n4", True), ("turn_q2_d3", False)):
        slot = slot_of(runtime, name)
        slot.note_captures(Noting())
        assert (slot.recorder is not None) is noted

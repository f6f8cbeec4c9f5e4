"""Which tensors a kernel may write, from its source: never too few."""

from __future__ import annotations

import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retuned.runtime.tunables.written import written_by

TENSORS = {"x_ptr", "y_ptr", "out_ptr", "state_ptr", "index_ptr"}


def kernel(body: str) -> str:
    text = textwrap.indent(textwrap.dedent(body), "    ")
    names = ", ".join(sorted(TENSORS))
    return f"@triton.jit\ndef kernel({names}, n, BLOCK: tl.constexpr):\n{text}\n"


@pytest.mark.parametrize(
    ("body", "written"),
    [
        ("tl.store(out_ptr + tl.arange(0, n), tl.load(x_ptr))", {"out_ptr"}),
        ("tl.atomic_add(out_ptr, tl.load(x_ptr))", {"out_ptr"}),
        ("place = out_ptr + n\nplace += 4\ntl.store(place, 0.0)", {"out_ptr"}),
        ("a, b = out_ptr, x_ptr\ntl.store(a, tl.load(b))", {"out_ptr"}),
        ("for at in range(n):\n    tl.store(state_ptr + at, 0)", {"state_ptr"}),
        ("p = x_ptr if n else y_ptr\ntl.store(p, 0)", {"x_ptr", "y_ptr"}),
        ("p = tl.where(n > 0, x_ptr, y_ptr)\ntl.store(p, 0)", {"x_ptr", "y_ptr"}),
        ("tl.store(out_ptr + tl.load(index_ptr), 0)", {"out_ptr"}),
        ("d = tl.make_tensor_descriptor(out_ptr, [n], [1], [16])\nd.store([0], 1)", {"out_ptr"}),
        (
            "b = tl.make_block_ptr(out_ptr, (n,), (1,), (0,), (16,), (0,))\ntl.store(b, 1)",
            {"out_ptr"},
        ),
        ("helper(state_ptr, tl.load(x_ptr))", {"state_ptr"}),
        ("helper(base=state_ptr + n)", {"state_ptr"}),
        ("if out_ptr is not None:\n    tl.store(y_ptr, 1)", {"y_ptr"}),
        ("tl.store(out_ptr, tl.load(x_ptr).to(y_ptr.dtype.element_ty))", {"out_ptr"}),
        ("while n > 0:\n    q = p\n    p = x_ptr\n    tl.store(q, 0)", {"x_ptr"}),
        ("libdevice.tanh(tl.load(x_ptr))", set()),
        ("epilogue.fn(out_ptr)", {"out_ptr"}),
        ("ops[0](out_ptr)", {"out_ptr"}),
        ("x_ptr.apply(out_ptr)", {"x_ptr", "out_ptr"}),
        ("tl.map_elementwise(put, out_ptr + n)", {"out_ptr"}),
        ("y = tl.load(x_ptr).to(tl.float32).sum()\ntl.store(out_ptr, y)", {"out_ptr"}),
        ("tl.inline_asm_elementwise('st', 'r', [x_ptr], tl.int32, True, 1)", {"x_ptr"}),
    ],
)
def test_what_a_kernel_writes_is_found_through_its_values(body: str, written: set[str]) -> None:
    found = written_by(kernel(body))
    assert found is not None
    assert found & TENSORS == written


@pytest.mark.parametrize(
    "source",
    [
        "",
        "not python",
        "x = 1",
        "def one(a):\n    pass\ndef two(b):\n    pass",
        "def kernel(*pointers):\n    tl.store(pointers[0], 1)",
        kernel("p = tl.load(index_ptr).to(tl.pointer_type(tl.float32))\ntl.store(p, 1)"),
        kernel("tl.store(tl.cast(n, tl.int64, bitcast=True), 1)"),
        kernel("p = tl.load(index_ptr).to(x_ptr.dtype)\ntl.store(p, 1)"),
        kernel("p = tl.load(index_ptr).to(x_ptr.dtype)\np.store([0], 1)"),
        kernel("tl.atomic_add(pointers[0], 1)"),
    ],
)
def test_what_cannot_be_followed_is_unknown(source: str) -> None:
    assert written_by(source) is None


HARMLESS = ["{v} = tl.load({p} + n)", "{v} = {p} + n", "{v} = {p}.dtype", "{v} = {p} is None"]
STORES = ["tl.store({p}, 1)", "tl.atomic_max({p} + n, 1)", "helper({p})", "{p}.store([0], 1)"]


@given(st.data())
def test_a_store_behind_any_chain_of_values_names_its_tensor(data: st.DataObject) -> None:
    tensor, name = data.draw(st.sampled_from(sorted(TENSORS))), ""
    lines = []
    for number in range(data.draw(st.integers(0, 6))):
        source = name or tensor
        name = f"v{number}"
        form = data.draw(st.sampled_from(["{v} = {p} + n", "{v} = tl.multiple_of({p}, 16)"]))
        lines.append(form.format(v=name, p=source))
    lines.append(data.draw(st.sampled_from(STORES)).format(p=name or tensor))
    order = data.draw(st.permutations(lines))  # a loop may run them in any order
    body = "\n".join(["for _ in range(n):", *(f"    {line}" for line in order)])
    found = written_by(kernel(body))
    assert found is not None
    assert tensor in found


@given(st.lists(st.tuples(st.sampled_from(HARMLESS), st.sampled_from(sorted(TENSORS))), max_size=6))
def test_reading_writes_nothing(uses: list[tuple[str, str]]) -> None:
    lines = [form.format(v=f"v{n}", p=tensor) for n, (form, tensor) in enumerate(uses)]
    found = written_by(kernel("\n".join([*lines, "pass"])))
    assert found is not None
    assert not found & TENSORS

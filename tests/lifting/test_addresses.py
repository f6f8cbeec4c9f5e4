"""Addresses in the data flow: stored ones are refused, a pointer's type is not an address."""

from __future__ import annotations

import pytest
from tests.expect import raises_code
from tests.lifting import live

from retuned.lifting.data_flow import Flow, flow_of
from retuned.lifting.records import NotLifted
from retuned.lifting.source import read_source

BODY = """
@triton.jit
def kernel(x, y, z, n, FLAG: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at, mask=at < n)
    {lines}
"""
STORE = "tl.store(y + at, {}, mask=at < n)"
HELPERS = """
@triton.jit
def address(p):
    return p.to(tl.int64)


@triton.jit
def write(p, v):
    tl.store(p, v)


@triton.jit
def convert(v, dtype):
    return v.to(dtype)


@triton.jit
def narrow(v):
    return 1.0 if v.dtype.is_fp8() else 2.0


@triton.jit
def chosen(a, b, n):
    if n > 3:
        return a
    return b


@triton.jit
def both(a, b):
    return a, b
"""


def flow(*lines: str) -> Flow:
    text = live.HEADER + HELPERS + BODY.format(lines="\n    ".join("\n".join(lines).split("\n")))
    source = read_source(text, entry="kernel")
    constants = {"BLOCK": 64, "FLAG": 1}
    return flow_of(source, pointers=frozenset("xyz"), constants=constants)


@pytest.mark.parametrize(
    "lines",
    [
        STORE.format("x + at"),
        STORE.format("x.to(tl.int64)"),
        STORE.format("tl.cast(x, tl.int64)"),
        STORE.format("x.to(tl.int64, bitcast=True) % 7"),
        STORE.format("address(x)"),
        STORE.format("convert(x, tl.int64)"),
        "write(y + at, x.to(tl.int64))",
        STORE.format("tl.where(v > 0, x.to(tl.int64), 0)"),
        STORE.format("tl.full((BLOCK,), x.to(tl.int64), tl.int64)"),
        STORE.format("tl.full((BLOCK,), value=x.to(tl.int64), dtype=tl.int64)"),
        STORE.format("tl.load(z + at, mask=at < n, other=x.to(tl.int64))"),
        STORE.format("tl.load(z + at, at < n, x.to(tl.int64))"),
        STORE.format("x - z"),
        STORE.format("(x == z).to(tl.int32)"),
        STORE.format("tl.sum(x.to(tl.int64) + at)"),
        "tl.store(value=x.to(tl.int64), pointer=y + at)",
        "tl.atomic_xchg(y, x.to(tl.int64))",
        "pair = (x.to(tl.int64), v)\n" + STORE.format("pair[0]"),
        "a, b = (v, x.to(tl.int64))\n" + STORE.format("b"),
        "a, b = both(v, x.to(tl.int64))\n" + STORE.format("b"),
        "if n > 3:\n    v = x.to(tl.int64)\n" + STORE.format("v"),
        "if n > 3:\n    v = v + 1\nelse:\n    v = x.to(tl.int64)\n" + STORE.format("v"),
        "v = x.to(tl.int64) if n > 3 else v\n" + STORE.format("v"),
        "a = v\nfor i in range(n):\n    v = a\n    a = x.to(tl.int64)\n" + STORE.format("v"),
        "for i in range(n):\n    v = x.to(tl.int64)\n    if i > 3:\n        break\n    v = at\n"
        + STORE.format("v"),
        "while n > 3:\n    v += x.to(tl.int64)\n    n -= 1\n" + STORE.format("v"),
        "for v in range(x.to(tl.int64)):\n    " + STORE.format("v"),
    ],
)
def test_an_address_that_is_stored_is_refused_on_every_way(lines: str) -> None:
    with raises_code(NotLifted, "pointer-stored"):
        flow(lines)


def test_a_long_chain_of_names_through_a_loop_does_not_hide_an_address() -> None:
    chain = "\n".join(f"    a{i + 1} = a{i}" for i in reversed(range(30)))
    starts = "\n".join(f"a{i} = v" for i in range(31))
    lines = f"{starts}\nfor i in range(n):\n{chain}\n    a0 = x.to(tl.int64)\n"
    with raises_code(NotLifted, "flow-too-deep"):
        flow(lines + STORE.format("a30"))


@pytest.mark.parametrize(
    "lines",
    [
        "p = tl.cast(tl.load(z).to(tl.int64), y.dtype)\ntl.store(p + at, v)",
        "p = tl.load(z).to(y.dtype)\ntl.store(p + at, v)",
        "p = convert(tl.load(z), y.dtype)\ntl.store(p + at, v)",
        "kind = y.dtype\np = tl.load(z).to(kind)\ntl.store(p + at, v)",
        "kind = y.dtype if n > 3 else tl.int64\np = v.to(kind)\ntl.store(p + at, v)",
        "p = tl.full((BLOCK,), v, y.dtype)\ntl.store(p, v)",
        "p = tl.where(n > 3, y, tl.load(z).to(y.dtype))\ntl.store(p + at, v)",
        "if y.dtype.is_fp8():\n    v = v + 1.0\n" + STORE.format("v"),
        "p = x + at\nif p.dtype.is_fp8():\n    v = v + 1.0\n" + STORE.format("v"),
        "p = v\nif n > 3:\n    p = y\n" + STORE.format("narrow(p)"),
        "kind = y.dtype\nif kind.is_fp8():\n    v = v + 1.0\n" + STORE.format("v"),
        "tl.store(v, v)",
        "tl.store(n + at, v)",
        STORE.format("tl.load(v)"),
        "tl.atomic_add(n + at, v)",
    ],
)
def test_a_pointers_own_type_and_memory_that_no_argument_points_to_are_refused(lines: str) -> None:
    with raises_code(NotLifted, "pointer-of-pointers"):
        flow(lines)


@pytest.mark.parametrize(
    "lines",
    [
        STORE.format("v.to(y.dtype.element_ty)"),
        "kind: tl.constexpr = y.dtype.element_ty\n" + STORE.format("v.to(kind)"),
        STORE.format("convert(v, y.dtype.element_ty)"),
        STORE.format("v + tl.zeros((BLOCK,), dtype=y.dtype.element_ty)"),
        "if y.dtype.element_ty == tl.float16:\n    v = v * 2\n" + STORE.format("v"),
        "tl.static_assert(x.dtype == y.dtype)\n" + STORE.format("v"),
        STORE.format("v * x.dtype.element_ty.primitive_bitwidth"),
        STORE.format("v * narrow(v)"),
        "has_z = z is not None\n" + STORE.format("tl.where(has_z, v, 0.0)"),
        "p = x + at\np = tl.load(p)\n" + STORE.format("p"),
        "a = x + at\na = v\nfor i in range(n):\n    a += v\n" + STORE.format("a"),
    ],
)
def test_what_only_uses_a_pointers_type_or_its_name_again_is_accepted(lines: str) -> None:
    found = flow(lines)
    assert (found.loaded, found.stored, found.places) == ({"x"}, {"y"}, set())


@pytest.mark.parametrize(
    ("lines", "stored"),
    [
        ("p = y\np = z\ntl.store(p + at, v)", "z"),
        ("p = y\ntl.store(p + at, v)\np = z\ntl.store(p + at, v)", "yz"),
        ("if n > 3:\n    p = y\nelse:\n    p = z\ntl.store(p + at, v)", "yz"),
        ("p = y\nif n > 3:\n    p = z\ntl.store(p + at, v)", "yz"),
        ("p = y\nfor i in range(n):\n    tl.store(p + at, v)\n    p = z", "yz"),
        ("p = y\nfor i in range(n):\n    p = z\ntl.store(p + at, v)", "yz"),
        (
            "p = y\nfor i in range(n):\n    p = z\n    if i > 3:\n        break\n    p = y\n"
            "tl.store(p + at, v)",
            "yz",
        ),
        (
            "p = y\nfor i in range(n):\n    p = z\n    if i > 3:\n        continue\n    p = y\n"
            "tl.store(p + at, v)",
            "yz",
        ),
        ("tl.store(tl.where(n > 3, y, z) + at, v)", "yz"),
        ("p = y if n > 3 else z\ntl.store(p + at, v)", "yz"),
        ("tl.store(chosen(y, z, n) + at, v)", "yz"),
        ("a, b = both(y, z)\ntl.store(a + at, v)", "yz"),
        ("write(z + at, v)\ntl.store(y + at, v)", "yz"),
        ("if FLAG:\n    p = y\nelse:\n    p = z\ntl.store(p + at, v)", "y"),
        ("p = z if FLAG is True else y\ntl.store(p + at, v)", "y"),
    ],
)
def test_every_pointer_that_may_be_written_is_an_output(lines: str, stored: str) -> None:
    assert flow(lines).stored == set(stored)


def test_numbers_that_are_spread_over_a_block_remain_indices() -> None:
    spread = "i = tl.full((BLOCK,), tl.load(z), tl.int32)\n"
    assert flow(spread + STORE.format("tl.load(x + i)")).places == {"z"}
    masked = "i = tl.load(x + at, mask=at < n, other=tl.load(z))\n"
    assert flow(masked + STORE.format("tl.load(x + i)")).places == {"x", "z"}


def test_a_refusal_names_the_line_that_caused_it() -> None:
    with raises_code(NotLifted, "pointer-stored") as caught:
        flow("v = v * 2.0", STORE.format("address(x)"))
    assert caught.value.line == "tl.store(y + at, address(x), mask=at < n)"

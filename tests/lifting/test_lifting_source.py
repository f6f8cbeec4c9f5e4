"""Strangers' texts: read by their syntax alone, spelled in the contract's words, or refused."""

from __future__ import annotations

import pytest
from tests.expect import raises_code
from tests.lifting import live

from retuned.lifting.data_flow import Flow, flow_of
from retuned.lifting.lift import lift_all
from retuned.lifting.records import MAX_SOURCE_CHARS, NotLifted
from retuned.lifting.source import read_source
from retuned.runtime.triton.contract import check_source

BODY = """
@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at, mask=at < n)
    {line}
    tl.store(y + at, v, mask=at < n)
"""


def text(line: str = "v = v * 2.0", before: str = "") -> str:
    return live.HEADER + before + BODY.format(line=line)


def reason(source: str) -> str:
    with pytest.raises(NotLifted) as caught:
        read_source(source, entry="kernel")
    return str(caught.value.code)


def flow(source: str, *, pointers: str = "x y", **constants: object) -> Flow:
    return flow_of(
        read_source(source, entry="kernel"),
        pointers=frozenset(pointers.split()),
        constants={"BLOCK": 64, **constants},  # type: ignore[dict-item]
    )


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("v = tl.inline_asm_elementwise('x', '=r', [v], tl.float32, True, 1)", "inline-asm"),
        ("tl.device_print('v', v)", "device-print"),
        ("print(v)", "device-print"),
        ("d = tl.make_tensor_descriptor(x, [n], [1], [BLOCK])", "tensor-descriptor"),
        ("p = v.to(tl.pointer_type(tl.float16))", "pointer-of-pointers"),
        ("v = v * SCALE", "global-unknown"),
        ("v = __import__('os').system('true')", "global-unknown"),
        ("v = tl.core.os.system('true')", "source-outside-contract"),
        ("v = libdevice.byte_perm(v, v, v)", "extern-function"),
        ("v = tl.extra.cuda.libdevice.nanf(v)", "extern-function"),
        ("v = v ** n", "source-outside-contract"),
        ("v = (lambda: v)()", "source-outside-contract"),
        ("tl.store(y + at, v.__class__)", "source-outside-contract"),
    ],
)
def test_what_the_lab_must_not_run_is_refused_by_name(line: str, code: str) -> None:
    before = "from triton.language.extra import libdevice\n"
    assert reason(text(line, before)) == code


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ("def kernel(", "source-unreadable"),
        ("a\0b", "source-unreadable"),
        ("(" * 5000, "source-unreadable"),
        ("x = " + "-" * 90_000 + "1", "source-unreadable"),
        ("#" * (MAX_SOURCE_CHARS + 1), "source-unreadable"),
        ("x = [" + "0," * 40_000 + "]", "source-unreadable"),
        (live.HEADER, "kernel-missing"),
        (text(before="import os\nos.system('true')\n"), "source-outside-contract"),
        (text(before="TABLE = [1, 2]\n"), "global-unknown"),
        (text(before="@decorate\ndef other():\n    pass\n"), "source-outside-contract"),
        (text().replace("n, BLOCK", "n: tl.float64, BLOCK"), "parameter-annotated"),
        (text().replace("kernel(x", "kernel(*x"), "source-outside-contract"),
    ],
)
def test_texts_that_are_no_kernel_are_refused(source: str, code: str) -> None:
    assert reason(source) == code


def test_other_spellings_become_the_contracts() -> None:
    before = (
        "import triton.language as language\n"
        "from triton.language.extra.libdevice import rsqrt as fast\n"
        "from triton.language.math import exp\n"
        "TWO = 2\n"
    )
    line = "v = fast(exp(v)) * language.sigmoid(v) * TWO"
    source = read_source(
        text(line, before).replace("tl.constexpr", "'tl.constexpr'"), entry="kernel"
    )
    assert "libdevice.rsqrt(tl.exp(v)) * tl.sigmoid(v) * TWO" in source.text
    assert "TWO = tl.constexpr(2)" in source.text
    assert source.parameters["BLOCK"]


def test_small_powers_of_names_become_products() -> None:
    source = read_source(text("v = v ** 2"), entry="kernel")
    assert "v * v" in source.text
    check_source(source.text, entry="kernel")


def test_only_what_the_kernel_reaches_is_kept() -> None:
    before = "@triton.jit\ndef unused(x):\n    return tl.rand(1, x)\n\nONE = 1\n"
    source = read_source(text(before=before), entry="kernel")
    assert "unused" not in source.text
    assert "ONE" not in source.text


@pytest.mark.parametrize(
    ("line", "before"),
    [
        ("v = libdevice.tanh(v)", "from triton.language.extra import libdevice\n"),
        ("v = libdevice.tanh(v)", "from triton.language.extra.cuda import libdevice\n"),
        ("v = far(v)", "from triton.language.extra.hip.libdevice import tanh as far\n"),
        ("v = tl.extra.cuda.libdevice.tanh(v)", ""),
    ],
)
def test_functions_of_device_libraries_stay_what_they_are(line: str, before: str) -> None:
    source = read_source(text(line, before), entry="kernel")
    assert "v = libdevice.tanh(v)" in source.text
    assert "from triton.language.extra import libdevice\n" in source.text
    check_source(source.text, entry="kernel")


def test_what_uses_no_device_library_imports_none() -> None:
    before = "from triton.language.extra import libdevice\n"
    assert "libdevice" not in read_source(text(before=before), entry="kernel").text


def test_pointers_are_followed_through_helpers_and_loops() -> None:
    before = (
        "@triton.jit\ndef read(p, at, n):\n    q = p + at\n    return tl.load(q, mask=at < n)\n"
        "@triton.jit\ndef write(p, at, v):\n    tl.store(p + at, v)\n"
    )
    found = flow(text("w = read(x, at, n)\n    write(y, at, w)", before))
    assert (found.loaded, found.stored) == ({"x"}, {"y"})


def test_a_helper_that_writes_to_its_input_makes_it_an_output() -> None:
    before = "@triton.jit\ndef write(p, v):\n    tl.store(p, v)\n"
    found = flow(text("write(x + at, v)", before))
    assert found.loaded & found.stored == {"x"}


def test_branches_that_triton_decides_are_taken_as_it_takes_them() -> None:
    source = text("if HAS:\n        v = v + tl.load(b + at)").replace(
        "(x, y, n,", "(x, y, b, n, HAS: tl.constexpr,"
    )
    assert "b" in flow(source, pointers="x y b", HAS=True).loaded
    assert "b" not in flow(source, pointers="x y b", HAS=False).loaded


def test_numbers_read_from_memory_that_become_addresses_are_found() -> None:
    found = flow(text("v = tl.load(x + v.to(tl.int32))"))
    assert found.places == {"x"}
    loops = flow(text("for i in range(0, tl.load(x)):\n        v = v + 1.0"))
    assert loops.places == {"x"}


def test_atomics_and_stored_addresses_are_found() -> None:
    assert flow(text("tl.atomic_add(y + at, v)")).atomic == {"y"}
    with raises_code(NotLifted, "pointer-stored"):
        flow(text("tl.store(y + at, x + at)"))


def test_helpers_that_call_each_other_without_end_are_cut_off() -> None:
    before = "".join(
        f"@triton.jit\ndef h{i}(p, a, b):\n    return h{i + 1}(p + {i}, a, b) + h{i + 1}(a, p, b)\n"
        for i in range(40)
    )
    before += "@triton.jit\ndef h40(p, a, b):\n    return tl.load(p)\n"
    with raises_code(NotLifted, "flow-too-deep"):
        flow(text("v = h0(x, y, n)", before))


def test_a_kernel_that_calls_itself_ends() -> None:
    before = "@triton.jit\ndef again(p):\n    return again(p + 1) + tl.load(p)\n"
    assert flow(text("v = again(x)", before)).loaded == {"x"}


def test_a_place_in_no_dimension_is_a_place_in_any() -> None:
    assert flow(text().replace("program_id(0)", "program_id(True)")).placed == {0, 1, 2}


def test_a_body_that_takes_too_long_to_follow_is_given_up() -> None:
    """Each call with another set of arguments is looked at again: here, thousands of long ones."""
    names = [f"a{i}" for i in range(11)]
    calls = "".join(
        f"    v = big({', '.join('x' if mask >> i & 1 else 'n' for i in range(11))})\n"
        for mask in range(600)
    )
    before = f"@triton.jit\ndef big({', '.join(names)}):\n" + "    a0 = a0 + a1 * a2\n" * 400
    before += "    return a0\n"
    with raises_code(NotLifted, "flow-too-deep"):
        flow(text(calls.strip().replace("\n    ", "\n    "), before))


def test_names_with_terminal_escapes_reach_nobody() -> None:
    launch = live.scale(7, kernel="evil\x1b]0;owned\x07:scale_kernel")
    outcome = lift_all([launch])
    assert "\x1b" not in outcome.kept[0].kernel
    assert "\x1b" not in outcome.kept[0].detail

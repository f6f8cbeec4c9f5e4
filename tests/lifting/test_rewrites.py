"""Equal spellings of what the contract excludes, and constructs that have none."""

from __future__ import annotations

from typing import Any

import pytest
from tests.expect import raises_code
from tests.lifting import live

from retuned.lifting.lift import lift_all
from retuned.lifting.records import NotLifted
from retuned.lifting.source import Source, read_source

BODY = """
@triton.jit
def kernel(x, y, n, FLAG: tl.constexpr, OTHER: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at, mask=at < n)
    {lines}
    tl.store(y + at, v, mask=at < n)
"""


def text(*lines: str, before: str = "") -> str:
    return live.HEADER + before + BODY.format(lines="\n    ".join("\n".join(lines).split("\n")))


def read(*lines: str, before: str = "", **fixed: bool | str | None) -> Source:
    return read_source(text(*lines, before=before), entry="kernel", fixed=fixed)


@pytest.mark.parametrize(
    ("line", "equal"),
    [
        ("v = v << 4", "v = v * 16"),
        ("v = v | (v & 7) << 22", "v = v | (v & 7) * 4194304"),
        ("v <<= 3", "v *= 8"),
        ("v = v + (1 << 20)", "v = v + 1 * 1048576"),
        ("v = v * 2 ** (-24)", "v = v * 5.960464477539063e-08"),
        ("v = v + (2**31 - 1)", "v = v + (2147483648 - 1)"),
        ("v = v.to(y.type.element_ty)", "v = v.to(y.dtype.element_ty)"),
        ("tl.static_assert(BLOCK > 8, f'{BLOCK}')", "tl.static_assert(BLOCK > 8, '')"),
        ("tl.static_assert(BLOCK > 8, 'at least 8')", "tl.static_assert(BLOCK > 8, 'at least 8')"),
        ("max = tl.max(v)\nv = v - max", "max_2 = tl.max(v)"),
        ("max = tl.max(v)\nmax_2 = 1\nv = v - max - max_2", "v = v - max_3 - max_2"),
        (
            "if v.dtype.is_fp8():\n    v = v.to(tl.float32)",
            "if v.dtype.is_floating() and v.dtype.primitive_bitwidth == 8:",
        ),
    ],
)
def test_an_excluded_construct_becomes_an_equal_one(line: str, equal: str) -> None:
    assert equal in read(line).text


@pytest.mark.parametrize(
    "line",
    [
        "v = v << n",
        "v = 1 << v",
        "v = v << -1",
        "v = v << 63",
        "v <<= n",
        "v = v * 2 ** n",
        "v = v * n ** (-0.5)",
        "v = v + 2 ** 64",
        "v = v * 3 ** (-1000)",
        "p = y + at\nv = v.to(p.type.element_ty)",
        "y += at\nv = v.to(y.type.element_ty)",
        "v = v.to(v.type)",
        "if (v + 1).dtype.is_fp8():\n    v = v + 1.0",
        "v = max(v, 0.0)\nmax = 1\nv = v + max",
        "tl.static_assert(f'{BLOCK}', '')",
    ],
)
def test_a_construct_without_a_certain_equal_is_refused(line: str) -> None:
    with raises_code(NotLifted, "source-outside-contract"):
        read(line)


def test_the_type_of_a_helpers_parameter_may_be_tested() -> None:
    before = (
        "@triton.jit\ndef helper(k, p):\n    if p.dtype.element_ty.is_fp8():\n        return k\n"
    )
    before += "    return k + 1.0 if k.dtype.is_fp8() else k\n\n"
    text = read("v = helper(v, y)", before=before).text
    tested = "p.dtype.element_ty"
    assert f"if {tested}.is_floating() and {tested}.primitive_bitwidth == 8:" in text
    assert "if k.dtype.is_floating() and k.dtype.primitive_bitwidth == 8 else" in text


def test_a_helper_may_get_a_block_of_pointers_so_its_type_stays_as_it_is() -> None:
    before = "@triton.jit\ndef helper(p, v):\n    return v.to(p.type.element_ty)\n\n"
    with raises_code(NotLifted, "source-outside-contract"):
        read("v = helper(y + at, v)", before=before)


def test_defaults_that_are_names_become_literals_in_helpers() -> None:
    before = (
        "WIDTH = tl.constexpr(8)\n"
        "@triton.jit\ndef helper(v, W: tl.constexpr = WIDTH, B: tl.constexpr = tl.constexpr(2)):\n"
        "    return v * W * B\n\n"
    )
    source = read("v = helper(v)", before=before)
    assert "def helper(v, W: tl.constexpr=8, B: tl.constexpr=2):" in source.text


def test_the_kernel_gets_every_argument_so_defaults_without_a_literal_are_left_out() -> None:
    plain = text().replace("BLOCK: tl.constexpr", "BLOCK: tl.constexpr = 64")
    assert "BLOCK: tl.constexpr=64" in read_source(plain, entry="kernel").text
    computed = text().replace("BLOCK: tl.constexpr", "BLOCK: tl.constexpr = tl.float32.x")
    assert "BLOCK: tl.constexpr):" in read_source(computed, entry="kernel").text


@pytest.mark.parametrize(
    ("annotation", "dtype"),
    [
        ("tl.int64", "int64"),
        ("tl.int32", "int32"),
        ("'tl.uint64'", "uint64"),
        ("int", "int32"),
        ("torch.Tensor", None),
        ("tl.tensor", None),
        ("int | None", None),
    ],
)
def test_annotations_give_whole_numbers_a_type(annotation: str, dtype: str | None) -> None:
    source = read_source(text().replace("n, FLAG", f"n: {annotation}, FLAG"), entry="kernel")
    assert source.types == ({"n": dtype} if dtype else {})
    assert not source.parameters["n"], "it is not a constexpr"


@pytest.mark.parametrize(
    "annotation", ["tl.float16", "tl.float64", "bool", "'*fp32'", "tl.constexpr | None"]
)
def test_annotations_that_change_more_than_a_whole_number_are_refused(annotation: str) -> None:
    with raises_code(NotLifted, "parameter-annotated"):
        read_source(text().replace("n, FLAG", f"n: {annotation}, FLAG"), entry="kernel")


def test_annotations_of_helpers_have_no_effect() -> None:
    before = "@triton.jit\ndef helper(v, n: tl.float64):\n    return v * n\n\n"
    source = read("v = helper(v, n)", before=before)
    assert "def helper(v, n):" in source.text
    assert source.types == {}


def annotated(launch: dict[str, Any], parameter: str, annotation: str) -> dict[str, Any]:
    source = launch["source"].replace(f"{parameter},", f"{parameter}: {annotation},", 1)
    return {**launch, "source": source}


def test_the_lifted_entry_passes_the_annotated_type() -> None:
    launches = [live.rmsnorm(rows) for rows in (1, 7)]
    wide = [annotated(each, "X_row_stride", "tl.int64") for each in launches]
    wide = [annotated(each, "W_row_stride", "tl.int64") for each in wide]
    outcome = lift_all(wide)
    assert outcome.kept == []
    content = outcome.lifted[0].own.variants[0].sources[0].content
    assert "tl.cast(n_cols // 16 * 16, tl.int64)" in content
    assert "tl.full((), 1, tl.int64)" in content, "Triton compiles no annotated 1 in"


def test_an_annotated_whole_number_that_is_launched_as_something_else_is_refused() -> None:
    launches = [annotated(live.rmsnorm(rows), "X_ptr", "tl.int64") for rows in (1, 7)]
    assert [each.reason for each in lift_all(launches).kept] == ["parameter-annotated"]


BARRIER = "tl.extra.cuda.gdc_wait()"


@pytest.mark.parametrize(
    "lines",
    [
        f"if FLAG:\n    {BARRIER}",
        f"if not FLAG:\n    v = v + 1\nelse:\n    {BARRIER}",
        f"if FLAG and n > 3:\n    {BARRIER}",
        f"if FLAG or OTHER == 'x':\n    {BARRIER}",
        f"if OTHER is not None:\n    {BARRIER}",
        f"if n > 3:\n    if FLAG:\n        {BARRIER}",
        f"for i in range(n):\n    if FLAG:\n        {BARRIER}",
        "v = tl.extra.cuda.num_threads() if FLAG else v",
        "if FLAG:\n    v = tl.inline_asm_elementwise('x', '=r', [v], tl.float32, True, 1)",
        "if FLAG:\n    d = tl.make_tensor_descriptor(x, [n], [1], [BLOCK])",
        "if FLAG:\n    v = not_defined(v)",
    ],
)
def test_branches_that_constexprs_exclude_may_contain_anything(lines: str) -> None:
    source = read(lines, FLAG=False, OTHER=None)
    assert "extra" not in source.text
    with pytest.raises(NotLifted):
        read(lines, FLAG=True, OTHER="x")
    with pytest.raises(NotLifted):
        read(lines)


@pytest.mark.parametrize(
    "lines",
    [
        BARRIER,
        f"if not FLAG:\n    {BARRIER}",
        f"if n > 3 and FLAG:\n    {BARRIER}",  # Triton evaluates n > 3 first
        f"if n > 3 or not FLAG:\n    {BARRIER}",
        f"FLAG = n > 3\nif FLAG:\n    {BARRIER}",
        f"for FLAG in range(n):\n    if FLAG:\n        {BARRIER}",
        f"if BLOCK == 128:\n    {BARRIER}",
        f"if FLAG == v:\n    {BARRIER}",
    ],
)
def test_branches_that_may_be_taken_are_kept(lines: str) -> None:
    with raises_code(NotLifted, "extern-function"):
        read(lines, FLAG=False)


def test_a_text_that_is_within_the_contract_keeps_its_branches() -> None:
    lines = "if FLAG:\n    v = v + 1.0"
    assert read(lines, FLAG=False).text == read(lines).text


def launches_with(flag: bool) -> list[dict[str, Any]]:
    found = [live.scale(n) for n in (1000, 7, 4096)]
    for each in found:
        each["source"] = (
            each["source"]
            .replace(
                "scale, BLOCK: tl.constexpr):", "scale, PDL: tl.constexpr, BLOCK: tl.constexpr):"
            )
            .replace("    pid = ", f"    if PDL:\n        {BARRIER}\n    pid = ")
        )
        each["params"].insert(4, live.const("PDL", flag))
    return found


def test_only_launches_that_exclude_a_branch_are_lifted_without_it() -> None:
    outcome = lift_all([*launches_with(True), *launches_with(False)])
    assert [each.reason for each in outcome.kept] == ["extern-function"]
    (one,) = outcome.lifted
    assert one.own.lifted is not None
    assert one.own.lifted.constants["PDL"] is False


def test_a_whole_number_that_differs_between_launches_excludes_no_branch() -> None:
    launches = [{**live.scale(n, block=64), "count": 99} for n in (1000, 7, 4096)]
    launches += [live.scale(n, block=128) for n in (1000, 7, 4096)]
    for each in launches:
        guarded = f"    if BLOCK > 64:\n        {BARRIER}\n    pid = "
        each["source"] = each["source"].replace("    pid = ", guarded)
    assert [each.reason for each in lift_all(launches).kept] == ["extern-function"]

"""Third parties' kernels become definitions: shapes, grids, choices, and reasons not to."""

from __future__ import annotations

from typing import Any

import pytest
from tests.lifting import live

from retuned.catalog.user import OwnDefinition
from retuned.catalog.user.inputs import allows
from retuned.contract import AxisVar
from retuned.lab.reference.incumbent import JUDGED_BY_INCUMBENT
from retuned.lifting.lift import Lifted, SkippedKernel, lift_all


def lifted(*launches: dict[str, Any], **more: Any) -> Lifted:
    outcome = lift_all(launches, **more)
    assert outcome.kept == []
    (found,) = outcome.lifted
    return found


def kept(*launches: dict[str, Any]) -> SkippedKernel:
    outcome = lift_all(launches)
    assert outcome.lifted == []
    return outcome.kept[0]


def shapes(own: OwnDefinition) -> dict[str, tuple[str, ...]]:
    definition = own.definition
    return {n: spec.shape for n, spec in (definition.inputs | definition.outputs).items()}


def test_a_row_normalisation_has_rows_that_no_argument_names() -> None:
    found = lifted(*(live.rmsnorm(rows) for rows in (1, 7, 64)))
    own = found.own
    assert list(own.definition.inputs) == ["X_ptr", "W_ptr"]
    assert list(own.definition.outputs) == ["Y_ptr", "RSTD_ptr"]
    assert shapes(own)["X_ptr"] == ("rows", "n_cols")
    assert shapes(own)["RSTD_ptr"] == ("rows",)
    assert own.definition.variable_axes == ("rows",)
    assert own.variants[0].grid == ("rows",)
    assert [each.axes for each in found.workloads] == [{"rows": 1}, {"rows": 7}, {"rows": 64}]
    assert own.lifted is not None
    assert own.lifted.axes == {"rows": "grid:0"}
    assert own.lifted.ints["X_row_stride"] == "n_cols"
    assert own.lifted.ints["W_row_stride"] == "1"
    assert own.lifted.floats == {"eps": 1e-6, "offset": 0.0}
    assert JUDGED_BY_INCUMBENT in own.definition.tags


def test_a_block_that_covers_a_row_is_no_choice() -> None:
    own = lifted(*(live.rmsnorm(rows) for rows in (1, 7, 64))).own
    assert set(own.variants[0].params) == {"num_warps", "num_stages"}
    assert own.variants[0].params["num_stages"] == (3,)


def test_a_matrix_product_is_tuned_in_its_tiles_and_its_group() -> None:
    own = lifted(*(live.matmul(m, 1024, 512) for m in (1, 64, 100, 2048))).own
    assert shapes(own)["a_ptr"] == ("M", "K")
    assert shapes(own)["c_ptr"] == ("M", "N")
    (variant,) = own.variants
    assert variant.grid == ("cdiv(M, BLOCK_SIZE_M) * cdiv(N, BLOCK_SIZE_N)",)
    assert variant.params["BLOCK_SIZE_N"] == (16, 32, 64, 128, 256)
    assert variant.params["GROUP_SIZE_M"] == (1, 2, 4, 8, 16)
    assert variant.params["num_stages"] == (1, 2, 3, 4, 5)
    assert variant.incumbent is not None
    assert variant.incumbent["BLOCK_SIZE_K"] == 32
    assert own.where == "M <= 2048"


def test_each_choice_of_constexprs_is_a_definition_of_its_own() -> None:
    launches = [live.matmul(m, 1024, 512) for m in (1, 64)]
    launches += [live.matmul(m, 1024, 512, bm=128, count=99) for m in (300, 1000)]
    found = lift_all(launches).lifted
    assert [each.own.variants[0].incumbent["BLOCK_SIZE_M"] for each in found] == [128, 64]  # type: ignore[index]
    assert [w.weight for w in found[0].workloads] == [99, 99]
    assert len({each.own.name for each in found}) == 2


def test_helpers_are_kept_and_packed_rows_are_one_axis() -> None:
    own = lifted(*(live.swiglu(rows) for rows in (1, 7, 64))).own
    assert "def silu(x)" in own.variants[0].sources[0].content
    assert shapes(own)["a_ptr"] == ("rows", "stride")


@pytest.mark.parametrize(
    ("launches", "grid", "variable"),
    [
        ([live.softmax(r, c) for r, c in ((1, 1000), (7, 1000), (64, 512))], "n_rows", 2),
        ([live.scale(n) for n in (1000, 7, 4096)], "cdiv(n_elements, BLOCK)", 1),
        ([live.quantised(n) for n in (1, 7, 40)], "rows", 1),
        ([live.rope(n) for n in (1, 7, 40)], "rows", 1),
    ],
)
def test_other_kernels_are_lifted(launches: list[dict[str, Any]], grid: str, variable: int) -> None:
    own = lifted(*launches).own
    assert own.variants[0].grid == (grid,)
    axes = own.definition.axes.values()
    assert sum(isinstance(axis, AxisVar) for axis in axes) == variable


def test_numbers_that_are_places_need_bounds() -> None:
    launches = [live.cross_entropy(rows) for rows in (1, 7, 40)]
    assert kept(*launches).reason == "index-bounds-unknown"
    bounds = {"thirdparty.ops:cross_entropy_kernel": {"Y_ptr": (0, "n_cols - 1")}}
    own = lifted(*launches, bounds=bounds).own
    rule = own.definition.inputs["Y_ptr"].values
    assert rule is not None
    assert (rule.low, rule.high) == (0.0, 511.0)


def test_a_mark_below_zero_is_a_number_with_a_type() -> None:
    launches = [live.cross_entropy(rows) for rows in (1, 7, 40)]
    for launch in launches:
        launch["params"][5]["value"] = -100
    bounds = {"thirdparty.ops:cross_entropy_kernel": {"Y_ptr": (0, "n_cols - 1")}}
    text = lifted(*launches, bounds=bounds).own.variants[0].sources[0].content
    assert "tl.full((), -100, tl.int32)" in text
    launches[0]["params"][5]["value"] = -7
    (refusal,) = lift_all(launches, bounds=bounds).kept
    assert refusal.reason == "int-out-of-range"


GATHER = """
@triton.jit
def gather_kernel(table_ptr, index_ptr, out_ptr, n_rows, dim, n_out, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    row = tl.load(index_ptr + pid)
    v = tl.load(table_ptr + row * dim + at, mask=at < dim)
    tl.store(out_ptr + pid * dim + at, v, mask=at < dim)
"""


def gather(n_rows: int, n_out: int, dim: int = 64) -> dict[str, Any]:
    params = [
        live.pointer("table_ptr", "fp32", n_rows * dim), live.pointer("index_ptr", "i32", n_out),
        live.pointer("out_ptr", "fp32", n_out * dim), live.number("n_rows", n_rows),
        live.number("dim", dim), live.number("n_out", n_out), live.const("BLOCK", dim),
    ]  # fmt: skip
    return live.launch(GATHER, "gather_kernel", params, [n_out])


TABLES = [gather(*lengths) for lengths in ((100, 7), (150, 20), (120, 33))]


@pytest.mark.parametrize("high", ["n_rows - 1", 99])
def test_a_table_is_never_made_shorter_than_its_places_reach(high: int | str) -> None:
    bounds = {"thirdparty.ops:gather_kernel": {"index_ptr": (0, high)}}
    own = lifted(*TABLES, bounds=bounds).own
    rule = own.definition.inputs["index_ptr"].values
    assert rule is not None
    assert (rule.low, rule.high) == (0.0, 99.0)
    assert "n_rows >= 100" in own.where.split(" and ")
    assert "n_out >=" not in own.where
    own_lengths = {"n_rows": 99, "n_out": 7, "dim": 64}
    assert not allows(own, own_lengths)
    assert allows(own, {**own_lengths, "n_rows": 101})


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"table_ptr": (0, 5)}, "bounds-unknown"),
        ({"index": (0, 5)}, "bounds-unknown"),
        ({"index_ptr": (0, "nothing - 1")}, "bounds-unknown"),
        ({"index_ptr": (0, "n_rows - 101")}, "bounds-unknown"),
        ({"index_ptr": (50, "n_rows - 60")}, "bounds-unknown"),
        ({}, "index-bounds-unknown"),
    ],
)
def test_bounds_that_cannot_be_are_refused(given: dict[str, Any], reason: str) -> None:
    outcome = lift_all(TABLES, bounds={"thirdparty.ops:gather_kernel": given})
    assert outcome.lifted == []
    assert [each.reason for each in outcome.kept] == [reason]


def test_what_is_written_where_numbers_say_keeps_what_lies_elsewhere() -> None:
    text = GATHER.replace("out_ptr + pid * dim", "out_ptr + row * dim").replace(
        "table_ptr + row * dim", "table_ptr + pid * dim"
    )
    launches = [gather(n_rows, n_out) for n_rows, n_out in ((100, 7), (150, 20), (120, 33))]
    for launch in launches:
        launch["source"] = live.HEADER + text
        table, _, out = launch["params"][:3]
        table["numel"], out["numel"] = out["numel"], table["numel"]
    bounds = {"thirdparty.ops:gather_kernel": {"index_ptr": (0, "n_rows - 1")}}
    definition = lifted(*launches, bounds=bounds).own.definition
    assert definition.updated == {"out_ptr_out": "out_ptr"}
    assert "out_ptr" in definition.inputs


def test_a_reference_that_somebody_wrote_is_the_oracle() -> None:
    launches = [live.scale(n) for n in (1000, 7, 4096)]
    reference = "def run(x_ptr):\n    return {'out_ptr': x_ptr * 0.5 + x_ptr * x_ptr}\n"
    own = lifted(*launches, references={"thirdparty.ops:scale_kernel": reference}).own
    assert own.definition.reference == reference
    assert not own.judged_by_incumbent
    assert JUDGED_BY_INCUMBENT not in own.definition.tags


def test_real_numbers_that_differ_make_different_definitions() -> None:
    launches = [live.scale(n, by=by) for n in (1000, 7, 4096) for by in (0.5, 2.0)]
    found = lift_all(launches).lifted
    assert len({each.own.name for each in found}) == 2


def test_what_a_live_argument_is_divisible_by_is_said_again() -> None:
    text = lifted(*(live.rmsnorm(r) for r in (1, 7))).own.variants[0].sources[0].content
    assert "n_cols // 16 * 16" in text
    odd = lifted(*(live.rmsnorm(r, 250) for r in (1, 7))).own.variants[0].sources[0].content
    assert "// 16" not in odd


@pytest.mark.parametrize(
    ("launches", "reason"),
    [
        ([live.rmsnorm(7)], "needs-more-launches"),
        ([live.scale(n) for n in (7, 8, 9)], "needs-more-launches"),
        ([live.matmul(64, 64, 64), live.matmul(64, 64, 64, bm=32)], "needs-more-launches"),
        ([live.scale(n) | {"grid": [n % 5 + 2]} for n in (1000, 7, 4096)], "grid-unknown"),
        (
            [live.scale(n, options={"num_warps": 3}) for n in (1000, 7, 4096)],
            "option-unsupported",
        ),
        ([live.scale(n, options={"num_ctas": 2}) for n in (1000, 7)], "option-unsupported"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_reason(
    launches: list[dict[str, Any]], reason: str
) -> None:
    assert kept(*launches).reason == reason


def test_a_tensor_that_is_written_over_is_an_input_and_an_output_that_updates_it() -> None:
    own = lifted(*(live.rope(rows, in_place=True) for rows in (1, 7, 40))).own
    definition, origin = own.definition, own.lifted
    assert list(definition.inputs) == ["q_ptr", "cos_ptr", "sin_ptr"]
    assert list(definition.outputs) == ["q_ptr_out"]
    assert definition.updated == {"q_ptr_out": "q_ptr"}
    assert shapes(own)["q_ptr"] == shapes(own)["q_ptr_out"] == ("rows", "q_row_stride")
    assert origin is not None
    assert origin.tensors["q_ptr_out"] == "q_ptr"
    text = own.variants[0].sources[0].content
    assert "_triton_rope(q_ptr_out, " in text


def test_an_output_that_updates_is_never_called_as_something_else_is() -> None:
    launches = [live.rope(rows, in_place=True) for rows in (1, 7, 40)]
    for launch in launches:
        launch["source"] = launch["source"].replace("cos_ptr", "q_ptr_out")
        launch["params"][2]["name"] = "q_ptr_out"
    definition = lifted(*launches).own.definition
    assert list(definition.inputs) == ["q_ptr", "q_ptr_out", "sin_ptr"]
    assert definition.updated == {"q_ptr_out2": "q_ptr"}


def test_numbers_that_are_places_and_are_written_over_are_refused() -> None:
    launches = [live.rope(rows, in_place=True) for rows in (1, 7, 40)]
    for launch in launches:
        launch["source"] = (
            launch["source"]
            .replace("tl.load(cos_ptr + pid", "tl.load(cos_ptr + one.to(tl.int32) + pid")
            .replace("    cos = ", "    one = tl.load(q_ptr + at)\n    cos = ")
        )
    assert kept(*launches).reason == "in-place-index"


def test_tensors_that_are_not_contiguous_are_refused() -> None:
    launches = [live.rmsnorm(rows) for rows in (1, 7, 64)]
    for launch in launches:
        launch["params"][3]["value"] = 300
    assert kept(*launches).reason == "strides-not-contiguous"


def test_tensors_whose_length_nothing_explains_are_refused() -> None:
    launches = [live.rmsnorm(rows) for rows in (1, 7, 64)]
    for launch, numel in zip(launches, (257, 1800, 1), strict=True):
        launch["params"][2]["numel"] = numel
    assert kept(*launches).reason == "shape-unknown"


def test_an_unaligned_tensor_is_refused() -> None:
    launches = [live.scale(n) for n in (1000, 7, 4096)]
    launches[0]["params"][0]["aligned16"] = False
    assert kept(*launches).reason == "pointer-unaligned"


def test_what_an_autotuner_tried_and_left_is_no_definition() -> None:
    launches = [live.matmul(m, 1024, 512, count=5000) for m in (1, 64, 100)]
    launches += [live.matmul(64, 1024, 512, bm=bm, count=20) for bm in (16, 32, 128)]
    found = lift_all(launches)
    assert found.kept == []
    (one,) = found.lifted
    assert one.own.variants[0].grid == ("cdiv(M, BLOCK_SIZE_M) * cdiv(N, BLOCK_SIZE_N)",)


def test_a_constant_length_takes_no_name_that_an_argument_has() -> None:
    launches = [live.rope(rows) for rows in (1, 7, 40)]
    for launch in launches:
        launch["source"] = launch["source"].replace("cos_ptr, sin_ptr", "cos_ptr, n32")
        launch["source"] = launch["source"].replace("load(sin_ptr", "load(n32")
        launch["params"][4]["name"] = "n32"
    own = lifted(*launches).own
    assert shapes(own)["n32"] == ("rows", "n32_")

"""The row-wise families: number formats, and the inputs that are made with care."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.expect import raises_naming

from retuned import catalog
from retuned.contract import DType, Language
from retuned.errors import UsageError
from retuned.lab.subject import numpy_dtype

OPERATORS: Mapping[str, Mapping[str, int]] = {
    "rmsnorm{}_h96": {"M": 4},
    "add_rmsnorm{}_h96": {"M": 4},
    "layernorm{}_h96": {"M": 4},
    "silu_mul{}_i96": {"M": 4},
    "gelu_mul{}_i96": {"M": 4},
    "rope{}_q4_k2_d32": {"M": 4, "P": 60},
    "softmax{}_n96": {"M": 4},
    "softmax{}": {"M": 4, "N": 96},
}
MARKS = {"_bf16": DType.BFLOAT16, "_fp16": DType.FLOAT16}


@pytest.mark.parametrize("mark", MARKS)
@pytest.mark.parametrize("template", OPERATORS)
def test_a_16_bit_form_differs_from_float32_in_types_alone(template: str, mark: str) -> None:
    wide, half = (
        catalog.get(template.format(form), language=Language.TRITON) for form in ("", mark)
    )
    assert half.families == wide.families
    assert half.definition.reference == wide.definition.reference
    assert half.definition.axes == wide.definition.axes
    for side in ("inputs", "outputs"):
        expected = {
            name: spec.model_copy(
                update={"dtype": MARKS[mark] if spec.dtype is DType.FLOAT32 else spec.dtype}
            )
            for name, spec in getattr(wide.definition, side).items()
        }
        assert getattr(half.definition, side) == expected
    assert [space.sources for space in half.spaces] == [space.sources for space in wide.spaces]
    assert half.incumbent.params == wide.incumbent.params


@pytest.mark.parametrize("mark", MARKS)
@pytest.mark.parametrize("template", OPERATORS)
def test_a_16_bit_form_is_fed_the_rounded_inputs_of_float32(template: str, mark: str) -> None:
    wide, half = (
        catalog.get(template.format(form), language=Language.TRITON) for form in ("", mark)
    )
    axes = OPERATORS[template]
    for family in half.families:
        exact = wide.inputs(axes, seed=4, family=family)
        made = half.inputs(axes, seed=4, family=family)
        for name, spec in half.definition.inputs.items():
            target = numpy_dtype(spec)
            assert made[name].dtype == target
            assert made[name].tobytes() == exact[name].astype(target).tobytes(), (family, name)
        for values in half.reference(made, axes).values():
            assert values.dtype == np.float64


@pytest.mark.parametrize("template", OPERATORS)
def test_a_16_bit_form_moves_half_the_bytes(template: str) -> None:
    lengths = {**OPERATORS[template], "M": 64}
    moved = []
    for form in ("", "_bf16"):
        entry = catalog.get(template.format(form), language=Language.TRITON)
        cost = entry.cost(entry.definition.lengths(lengths))
        moved.append(cost.read_bytes + cost.write_bytes)
    assert 0.5 <= moved[1] / moved[0] < 0.52


@pytest.mark.parametrize("mark", MARKS)
def test_16_bit_forms_have_no_kernels_for_the_cpu_and_say_so(mark: str) -> None:
    name = f"rmsnorm{mark}_h64"
    assert catalog.languages(name) == (Language.TRITON, Language.GPU_CPP)
    assert catalog.get(name).incumbent.language is Language.TRITON
    with raises_naming(UsageError, name, "cpu_cpp", "triton", "gpu_cpp"):
        catalog.get(name, language=Language.CPU_CPP)


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("c10::BFloat16", "rmsnorm_bf16_h512"),
        ("torch.bfloat16", "rmsnorm_bf16_h512"),
        ("c10::Half", "rmsnorm_fp16_h512"),
        ("half", "rmsnorm_fp16_h512"),
        ("float", "rmsnorm_h512"),
    ],
)
def test_a_trace_tells_the_number_formats_apart(spelling: str, name: str) -> None:
    found = catalog.recognise("retuned::rmsnorm", ((9, 512), (512,)), (spelling, spelling))
    assert found == catalog.Binding(definition=name, axes={"M": 9})


def test_a_trace_of_rope_tells_the_number_formats_apart() -> None:
    dims = ((3,), (3, 32, 128), (3, 8, 128), (4096, 128))
    dtypes = ("long int", *("c10::BFloat16",) * 3)
    found = catalog.recognise("retuned::rope", dims, dtypes)
    assert found is not None
    assert found.definition == "rope_bf16_q32_k8_d128"


@pytest.mark.parametrize("name", ["rope_q4_k2_d33", "rope_q4_k2_d2048", "rope_q1025_k2_d32"])
def test_heads_that_cannot_be_halved_or_are_too_many_are_refused(name: str) -> None:
    with raises_naming(UsageError, name, "1024"):
        catalog.get(name)


@pytest.mark.parametrize("name", ["topk_gating_e4_k5", "topk_gating_e64_k33"])
def test_more_experts_than_there_are_cannot_be_chosen(name: str) -> None:
    with raises_naming(UsageError, name, "32", "4096"):
        catalog.get(name)


@settings(max_examples=60, deadline=None)
@given(
    experts=st.integers(1, 300),
    share=st.integers(1, 32),
    rows=st.integers(1, 9),
    seed=st.integers(0, 2**31),
)
def test_no_inputs_of_gating_hold_a_near_tie(
    experts: int, share: int, rows: int, seed: int
) -> None:
    chosen = min(share, experts)
    entry = catalog.get(f"topk_gating_e{experts}_k{chosen}")
    for family in entry.families:
        logits = entry.inputs({"M": rows}, seed=seed, family=family)["logits"].astype(np.float64)
        assert not np.isnan(logits).any()
        assert (np.isfinite(logits).sum(axis=1) >= chosen).all()
        ordered = -np.sort(-logits, axis=1)
        with np.errstate(invalid="ignore"):
            gaps = -np.diff(ordered, axis=1)
        # A float32 exponential errs by less than 3e-7 of itself.
        assert not ((gaps > 0) & (gaps < 1e-5)).any(), family
        # None of the chosen weights is zero or denormal in float32.
        assert (ordered[:, 0] - ordered[:, chosen - 1]).max() < 87.0, family
        if family in ("randn", "flat", "peaked", "mean-1000", "outlier"):
            assert (gaps > 0).all(), family


def test_ties_are_exact_and_of_both_zeros() -> None:
    logits = catalog.get("topk_gating_e64_k6").inputs({"M": 20}, seed=1, family="ties")["logits"]
    assert (np.unique(logits) == [-2, -1, 0, 1, 2]).all()
    zeros = np.signbit(logits[logits == 0])
    assert zeros.any()
    assert not zeros.all()


def test_of_equal_logits_the_lowest_index_is_chosen_first() -> None:
    entry = catalog.get("topk_gating_e6_k4")
    logits = np.array([[1, 2, 1, 2, 1, -np.inf], [0, -0.0, 0, 0, 0, 0]], dtype=np.float32)
    answer = entry.reference({"logits": logits}, {"M": 2})
    assert answer["ids"].tolist() == [[1, 3, 0, 2], [0, 1, 2, 3]]
    high, low = 1 / (2 + 2 / np.e), 1 / (2 + 2 * np.e)
    np.testing.assert_allclose(answer["weights"][0], [high, high, low, low])
    np.testing.assert_allclose(answer["weights"][1], 0.25)


def test_the_reference_in_a_gating_definition_knows_how_many_are_chosen() -> None:
    for chosen in (1, 4):
        entry = catalog.get(f"topk_gating_e6_k{chosen}")
        scope: dict[str, object] = {}
        exec(entry.definition.reference, scope)
        run = scope["run"]
        assert callable(run)
        inputs = entry.inputs({"M": 3}, seed=0, family="randn")
        assert run(**inputs)["ids"].shape == (3, chosen)


@pytest.mark.parametrize("width", [1, 2, 77, 512])
def test_rows_far_from_zero_have_their_mean_exactly(width: int) -> None:
    entry = catalog.get(f"layernorm_h{width}")
    x = entry.inputs({"M": 5}, seed=2, family="mean-1000")["x"]
    assert (x.sum(axis=1, dtype=np.float64) == 1000 * width).all()
    assert (np.cumsum(x, axis=1, dtype=np.float32)[:, -1] == 1000 * width).all()
    assert width < 2 or (x.std(axis=1) > 0.9).all()


def test_the_table_of_rope_cannot_be_guessed() -> None:
    entry = catalog.get("rope_q2_k1_d32")
    tables = [
        entry.inputs({"M": 2, "P": 40}, seed=seed, family="randn")["cache"] for seed in range(8)
    ]
    lengths = {float(np.hypot(table[0, 0], table[0, 16]).round(4)) for table in tables}
    assert len(lengths) == len(tables)
    assert len({float(table[1, 17]) for table in tables}) > 1


def test_positions_reach_the_end_of_the_table() -> None:
    entry = catalog.get("rope_q2_k1_d32")
    for rows, total in ((1, 1), (1, 50), (30, 50)):
        axes = {"M": rows, "P": total}
        positions = entry.inputs(axes, seed=0, family="randn")["positions"]
        assert positions.max() == total - 1
        assert positions.min() >= 0


def test_gelu_keeps_its_digits_far_below_zero() -> None:
    entry = catalog.get("gelu_mul_i1")
    x = np.array([[-5.0, 1.0], [-30.0, 1.0], [30.0, 2.0]], dtype=np.float32)
    y = entry.reference({"x": x}, {"M": 3})["y"][:, 0]
    assert y[0] == pytest.approx(-2.2918e-7, rel=1e-3)
    assert -1e-100 < y[1] <= 0.0
    assert y[2] == 60.0


def test_zero_rows_of_a_sum_are_zero_in_both_terms() -> None:
    made = catalog.get("add_rmsnorm_h32").inputs({"M": 8}, seed=0, family="zeros-rows")
    summed = made["x"] + made["residual"]
    assert (~summed.any(axis=1)).sum() == 4


@pytest.mark.parametrize("mark", ["", *MARKS])
def test_whole_numbers_turn_without_rounding_in_any_format(mark: str) -> None:
    entry = catalog.get(f"rope{mark}_q4_k2_d32")
    axes = {"M": 9, "P": 20}
    inputs = entry.inputs(axes, seed=0, family="exact-integer")
    for name, exact in entry.reference(inputs, axes).items():
        rounded = exact.astype(numpy_dtype(entry.definition.outputs[name]))
        assert np.array_equal(rounded.astype(np.float64), exact)
        assert len(np.unique(exact)) > 20


ROW_WISE = tuple(f for f in catalog.families() if f.op_type in {t.split("{")[0] for t in OPERATORS})


@settings(max_examples=150, deadline=None)
@given(
    family=st.sampled_from([*ROW_WISE, *(f for f in catalog.families() if "topk" in f.op_type)]),
    lengths=st.lists(st.sampled_from([1, 2, 3, 7, 8, 33, 64, 5000, 70_000, 2**20]), min_size=6),
)
def test_shapes_that_fit_are_recognised_or_not_and_never_an_error(
    family: catalog.Family, lengths: list[int]
) -> None:
    axes = list(dict.fromkeys(axis for shape in family.shapes for axis in shape))
    known = dict(zip(axes, lengths, strict=False))
    dims = tuple(tuple(known[axis] for axis in shape) for shape in family.shapes)
    found = catalog.recognise(f"retuned::{family.op_type}", dims, family.dtypes)
    if found is not None:
        for language in catalog.languages(found.definition):
            entry = catalog.get(found.definition, language=language)
            assert entry.space(entry.incumbent.structure)

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.expect import raises_naming

from retuned import catalog
from retuned.contract import Guard, TrustClass
from retuned.errors import UsageError
from retuned.lab.languages.cpu_cpp import check_contract

NAMES = (
    "linear_w8_n1024_k1024",
    "rmsnorm_h512",
    "add_rmsnorm_h512",
    "layernorm_h512",
    "silu_mul_i1408",
    "gelu_mul_i1408",
    "rope_q4_k2_d64",
    "softmax_n2048",
    "softmax",
    "topk_gating_e64_k6",
    "attention_h8_d64",
)
LINEAR = ((4, 512), (1536, 512), (1536,))


def some_axes(name: str) -> dict[str, int]:
    lengths = {"M": 3, "N": 7, "T": 2, "S": 9, "P": 50}
    return {axis: lengths[axis] for axis in catalog.get(name).definition.variable_axes}


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("gemm_n8_k8", "gemm_bf16_n{N}_k{K}"),
        ("linear_w8_n0_k8", "linear_w8_n{N}_k{K}"),
        ("linear_w8_n08_k8", "linear_w8_n{N}_k{K}"),
        ("linear_w8_n-8_k8", "linear_w8_n{N}_k{K}"),
        ("linear_w8_n8_k8\n", "linear_w8_n{N}_k{K}"),
        ("linear_w8_n9999999_k8", "linear_w8_n{N}_k{K}"),
        ("rmsnorm_h512_x", "rmsnorm_h{H}"),
        ("", "`retuned kernels list`"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest_that_exist(name: str, near: str) -> None:
    with raises_naming(UsageError, f"'{name}'", near):
        catalog.get(name)


def test_a_head_size_that_no_vector_divides_is_refused() -> None:
    with raises_naming(UsageError, "attention_h8_d20", "16", "got 20"):
        catalog.get("attention_h8_d20")


@pytest.mark.parametrize("name", NAMES)
def test_the_reference_in_the_definition_is_the_reference_of_the_entry(name: str) -> None:
    entry = catalog.get(name)
    scope: dict[str, object] = {}
    exec(compile(entry.definition.reference, name, "exec"), scope)
    run = scope["run"]
    assert callable(run)
    inputs = entry.inputs(some_axes(name), seed=1, family="randn")
    expected = entry.reference(inputs, some_axes(name))
    assert list(expected) == list(entry.definition.outputs)
    for output, values in run(**inputs).items():
        assert values.dtype == np.float64
        assert np.array_equal(values, expected[output])


@pytest.mark.parametrize("name", NAMES)
def test_inputs_have_the_shapes_and_types_of_the_definition_in_every_family(name: str) -> None:
    entry = catalog.get(name)
    axes = some_axes(name)
    lengths = entry.definition.lengths(axes)
    for family in entry.families:
        inputs = entry.inputs(axes, seed=2, family=family)
        assert list(inputs) == list(entry.definition.inputs)
        for tensor, spec in entry.definition.inputs.items():
            assert inputs[tensor].dtype == np.dtype(spec.dtype.value), family
            assert inputs[tensor].shape == tuple(lengths[a] for a in spec.shape), family


@pytest.mark.parametrize("name", NAMES)
def test_a_seed_fixes_the_bytes_and_another_seed_changes_them(name: str) -> None:
    entry = catalog.get(name)
    axes = some_axes(name)
    for family in entry.families:
        first, again, other = (
            next(iter(entry.inputs(axes, seed=seed, family=family).values())) for seed in (1, 1, 2)
        )
        assert first.tobytes() == again.tobytes()
        if family not in ("planted-nan", "planted-pos-inf", "planted-neg-inf"):
            assert first.tobytes() != other.tobytes(), family


@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith("topk")])
def test_families_of_inputs_are_what_they_are_called(name: str) -> None:
    entry = catalog.get(name)
    axes = {axis: 40 for axis in entry.definition.variable_axes}

    def everything(family: str) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        arrays = entry.inputs(axes, seed=5, family=family)
        floats = [a.ravel() for a in arrays.values() if a.dtype == np.float32]
        return np.concatenate(floats).astype(np.float64)

    assert np.isnan(everything("planted-nan")).sum() == 1
    assert np.isposinf(everything("planted-pos-inf")).sum() == 1
    assert np.isneginf(everything("planted-neg-inf")).sum() == 1
    assert np.abs(everything("outlier")).max() > 50
    assert np.abs(everything("randn-large")).max() > 500
    assert (everything("zeros-rows") == 0).mean() > 0.1


def test_int8_weights_use_the_full_range() -> None:
    weights = catalog.get("linear_w8_n64_k512").inputs({"M": 1}, seed=0, family="randn")["wq"]
    assert weights.min() == -128
    assert weights.max() == 127


def test_logits_reach_what_overflows_a_softmax_without_maximum() -> None:
    inputs = catalog.get("attention_h2_d64").inputs({"T": 20, "S": 80}, seed=0, family="logits-60")
    logits = np.einsum("thd,shd->hts", inputs["q"], inputs["k"]) / 8.0
    assert 50 < logits.std() < 70


def test_attention_with_more_queries_than_keys_is_refused() -> None:
    with raises_naming(UsageError, "S >= T", "T=3", "S=2"):
        catalog.get("attention_h2_d64").inputs({"T": 3, "S": 2}, seed=0, family="randn")


def test_an_unknown_family_is_refused_with_the_families_that_exist() -> None:
    with raises_naming(UsageError, "'nonsense'", "zeros-rows"):
        catalog.get("rmsnorm_h8").inputs({"M": 1}, seed=0, family="nonsense")


def test_inputs_that_contradict_the_axes_are_refused() -> None:
    entry = catalog.get("rmsnorm_h8")
    inputs = entry.inputs({"M": 3}, seed=0, family="randn")
    with raises_naming(ValueError, "'x'", "(3, 8)", "(4, 8)"):
        entry.reference(inputs, {"M": 4})


def test_a_hidden_nan_does_not_leak_through_the_causal_mask() -> None:
    entry = catalog.get("attention_h1_d16")
    axes = {"T": 4, "S": 4}
    inputs = entry.inputs(axes, seed=0, family="randn")
    inputs["v"][2] = np.nan
    out = entry.reference(inputs, axes)["out"]
    assert np.isfinite(out[:2]).all()
    assert np.isnan(out[2:]).all()


@pytest.mark.parametrize("name", NAMES)
def test_every_start_and_the_incumbent_lie_in_their_space(name: str) -> None:
    entry = catalog.get(name)
    incumbent = entry.space(entry.incumbent.structure)
    assert incumbent.constraints(entry.incumbent.params, entry.definition)
    for length, space in itertools.product((1, 2, 4, 16, 64, 256), entry.spaces):
        axes = {axis: length for axis in entry.definition.variable_axes}
        assert space.rank(axes) in range(len(entry.spaces))
        for params in space.starts(axes):
            assert space.constraints(params, entry.definition), (space.name, params)


@pytest.mark.parametrize("name", NAMES)
def test_every_structure_keeps_the_contract_of_a_candidate(name: str) -> None:
    entry = catalog.get(name)
    for space in entry.spaces:
        solution = entry.solution(space.name, space.starts(some_axes(name))[0])
        check_contract(solution)
        assert solution.trust is TrustClass.PARAMETERS
        assert solution.author == "catalog"


def test_two_structures_at_least_implement_every_definition() -> None:
    for name in NAMES:
        spaces = catalog.get(name).spaces
        assert len({space.sources[0] for space in spaces}) >= 2, name


def test_a_point_outside_its_space_is_refused() -> None:
    entry = catalog.get("linear_w8_n48_k64")
    good = {"P": 16, "TILE": 4, "CHUNK": 64, "STAGE": 0, "VEC": 32, "THREADS": 1}
    assert entry.solution("packed-panels", good).layouts == {"wq": "panels-16"}
    for wrong in ({**good, "P": 32}, {**good, "TILE": 5}, {"P": 16}, {**good, "EVIL": 1}):
        with raises_naming(UsageError, "packed-panels", str(wrong)):
            entry.solution("packed-panels", wrong)
    with raises_naming(UsageError, "'magic'", "row-dots, panels, packed-panels"):
        entry.solution("magic", good)


def test_a_guard_does_not_change_what_a_solution_is() -> None:
    entry = catalog.get("rmsnorm_h512")
    params = {"ROWS": 4, "VEC": 32, "THREADS": 1}
    guarded = entry.solution("row-groups", params, guard=Guard(bounds={"M": (16, 64)}))
    assert guarded.digest == entry.solution("row-groups", params).digest
    assert guarded.guard.bounds == {"M": (16, 64)}


def test_panels_ask_for_the_scratch_that_their_depth_needs() -> None:
    entry = catalog.get("linear_w8_n64_k100")
    params = {"P": 32, "TILE": 4, "CHUNK": 64, "VEC": 32, "THREADS": 1}
    assert entry.solution("panels", params).scratch_bytes == 32 * 100 * 4


def test_the_floor_is_the_slower_of_arithmetic_and_memory() -> None:
    entry = catalog.get("linear_w8_n1000_k1000")
    # One row: 1.0 MB of weights at 10 GB/s. A thousand rows: 2 GFLOP at 100 GFLOP/s.
    assert entry.floor_us({"M": 1}, gflops=100, gbytes_per_s=10) == pytest.approx(101.2)
    assert entry.floor_us({"M": 1000}, gflops=100, gbytes_per_s=10) == pytest.approx(20_000)


def test_attention_counts_only_visible_pairs() -> None:
    entry = catalog.get("attention_h1_d16")
    whole = entry.floor_us({"T": 4, "S": 4}, gflops=1, gbytes_per_s=1e9)
    assert whole == pytest.approx(4 * 16 * (1 + 2 + 3 + 4) / 1e3)


@pytest.mark.parametrize(
    ("op", "dims", "name", "axes"),
    [
        ("retuned::linear_w8", LINEAR, "linear_w8_n1536_k512", {"M": 4}),
        ("retuned::rmsnorm", ((9, 512), (512,)), "rmsnorm_h512", {"M": 9}),
        ("retuned::silu_mul", ((2, 2816),), "silu_mul_i1408", {"M": 2}),
        ("retuned::softmax", ((1, 2048),), "softmax_n2048", {"M": 1}),
        ("retuned::add_rmsnorm", ((9, 512), (9, 512), (512,)), "add_rmsnorm_h512", {"M": 9}),
        ("retuned::layernorm", ((9, 512), (512,), (512,)), "layernorm_h512", {"M": 9}),
        ("retuned::gelu_mul", ((2, 2816),), "gelu_mul_i1408", {"M": 2}),
        ("retuned::rope", ((3,), (3, 32, 128), (3, 8, 128), (4096, 128)),
         "rope_q32_k8_d128", {"M": 3, "P": 4096}),
        ("retuned::topk_gating", ((5, 128), (5, 8), (5, 8)), "topk_gating_e128_k8", {"M": 5}),
        ("retuned::attention", ((4, 8, 64), (90, 8, 64), (90, 8, 64)), "attention_h8_d64",
         {"T": 4, "S": 90}),
        # Buckets may round T above S.
        ("retuned::attention", ((128, 8, 64), (96, 8, 64), (96, 8, 64)), "attention_h8_d64",
         {"T": 128, "S": 128}),
    ],
)  # fmt: skip
def test_an_operator_in_a_trace_is_recognised(
    op: str, dims: tuple[tuple[int, ...], ...], name: str, axes: dict[str, int]
) -> None:
    binding = catalog.recognise(op, dims, ())
    assert binding == catalog.Binding(definition=name, axes=axes)
    assert set(axes) == set(catalog.get(name).definition.variable_axes)


@pytest.mark.parametrize(
    "dtypes",
    [
        ("float32", "int8", "float32"),
        ("float", "signed char", "float"),
        ("torch.float32", "Char", "Float"),
    ],
)
def test_element_types_are_understood_as_profilers_spell_them(dtypes: tuple[str, ...]) -> None:
    assert catalog.recognise("retuned::linear_w8", LINEAR, dtypes) is not None


@pytest.mark.parametrize(
    ("op", "dims", "dtypes"),
    [
        ("aten::mm", LINEAR, ()),
        ("linear_w8", LINEAR, ()),
        ("retuned::gelu", ((4, 512),), ()),
        ("retuned::linear_w8", ((4, 512), (1536, 500), (1536,)), ()),
        ("retuned::linear_w8", ((4, 512), (1536, 512)), ()),
        ("retuned::linear_w8", ((2, 4, 512), (1536, 512), (1536,)), ()),
        ("retuned::linear_w8", ((0, 512), (1536, 512), (1536,)), ()),
        ("retuned::linear_w8", ((4, -1), (1536, -1), (1536,)), ()),
        ("retuned::linear_w8", LINEAR, ("bfloat16", "int8", "bfloat16")),
        ("retuned::linear_w8", LINEAR, ("float32", "int8")),
        ("retuned::silu_mul", ((2, 2817),), ()),
        ("retuned::rope", ((3,), (3, 32, 127), (3, 8, 127), (4096, 127)), ()),
        ("retuned::rope", ((3,), (4, 32, 128), (3, 8, 128), (4096, 128)), ()),
        ("retuned::rope", ((3,), (3, 2000, 128), (3, 8, 128), (4096, 128)), ()),
        ("retuned::topk_gating", ((5, 8), (5, 9), (5, 9)), ()),
        ("retuned::topk_gating", ((5, 128), (5, 64), (5, 64)), ()),
        ("retuned::topk_gating", ((5, 8192), (5, 8), (5, 8)), ()),
        ("retuned::topk_gating", ((5, 128),), ()),
        ("retuned::attention", ((4, 8, 20), (90, 8, 20), (90, 8, 20)), ()),
        ("retuned::attention", ((4, 8, 64), (90, 8, 64), (91, 8, 64)), ()),
    ],
)
def test_what_the_catalog_does_not_have_is_not_recognised(
    op: str, dims: tuple[tuple[int, ...], ...], dtypes: tuple[str, ...]
) -> None:
    assert catalog.recognise(op, dims, dtypes) is None


@settings(max_examples=200, deadline=None)
@given(
    op=st.sampled_from([f"retuned::{family.op_type}" for family in catalog.families()]),
    dims=st.lists(st.lists(st.integers(-(2**40), 2**40), max_size=4).map(tuple), max_size=4).map(
        tuple
    ),
)
def test_no_shape_in_a_trace_can_make_recognition_fail(
    op: str, dims: tuple[tuple[int, ...], ...]
) -> None:
    binding = catalog.recognise(op, dims, ())
    if binding is not None:
        definition = catalog.get(binding.definition).definition
        assert set(binding.axes) == set(definition.variable_axes)

"""A definition by which any kernel would be right is refused before a kernel is judged."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.expect import raises_code

from retuned import catalog
from retuned.contract import AxisConst, AxisVar, Definition, DType, TensorSpec
from retuned.errors import HarnessError
from retuned.lab.harness.cases import Case, CaseKey
from retuned.lab.harness.sanity import require_agreement, require_meaning, telling_shape
from retuned.lab.subject import Array

SPEC = TensorSpec(shape=("M", "N"), dtype=DType.FLOAT32)
DEFINITION = Definition(
    name="two_n16",
    op_type="two",
    axes={"M": AxisVar(), "N": AxisConst(value=16)},
    inputs={"x": SPEC, "z": SPEC},
    outputs={"y": SPEC},
    reference="def run(x, z): ...",
)
Compute = Callable[[Array, Array], Array]


@dataclass(frozen=True)
class Two:
    """A definition of two inputs, computed as the test says."""

    compute: Compute
    families: tuple[str, ...] = ("randn",)
    definition: Definition = DEFINITION

    def reference(self, inputs: dict[str, Array], axes: Mapping[str, int]) -> dict[str, Array]:
        return {"y": self.compute(inputs["x"].astype(float), inputs["z"].astype(float))}

    def inputs(self, axes: Mapping[str, int], *, seed: int, family: str) -> dict[str, Array]:
        rng = np.random.default_rng(seed)
        shape = (axes["M"], 16)
        return {n: rng.standard_normal(shape, dtype=np.float32) for n in ("x", "z")}


def meaning(compute: Compute) -> None:
    require_meaning(Two(compute), {"M": 3}, seed=5)


def test_an_ordinary_definition_is_worth_judging_by() -> None:
    meaning(lambda x, z: x * 2 + z)


@pytest.mark.parametrize(
    "compute",
    [lambda x, z: x * 0 + 1.5, lambda x, z: np.exp(x - x) * np.log(np.exp(z - z))],
    ids=["a constant", "a constant in disguise"],
)
def test_a_definition_whose_answer_never_changes_proves_nothing(compute: Compute) -> None:
    """H10: what was folded away is right, and says nothing about the kernel."""
    with raises_code(HarnessError, "definition-proves-nothing", "every output"):
        meaning(compute)


@pytest.mark.parametrize(
    ("compute", "ignored"),
    [
        (lambda x, z: np.exp(x), "z"),
        (lambda x, z: np.tanh(z) + 0 * x, "x"),
        (lambda x, z: np.cumsum(np.ones_like(x), axis=1), "x"),
    ],
)
def test_a_definition_that_ignores_an_input_proves_nothing(compute: Compute, ignored: str) -> None:
    with raises_code(HarnessError, "definition-proves-nothing", "no output", f"input '{ignored}'"):
        meaning(compute)


@pytest.mark.parametrize(
    "compute", [lambda x, z: x, lambda x, z: np.clip(z, -100, 100)], ids=["a copy", "a wide clamp"]
)
def test_a_definition_that_copies_its_input_proves_nothing(compute: Compute) -> None:
    """H06: a clamp whose inputs never leave its range is a copy."""
    with raises_code(HarnessError, "definition-proves-nothing", "unchanged"):
        meaning(compute)


@pytest.mark.parametrize(
    ("name", "axes"),
    [
        ("linear_w8_n48_k96", {"M": 4}),
        ("softmax_n96", {"M": 2}),
        ("softmax", {"M": 2, "N": 33}),
        ("rmsnorm_h64", {"M": 4}),
        ("silu_mul_i64", {"M": 4}),
        ("attention_h2_d16", {"T": 4, "S": 5}),
        ("attention_h2_d16", {"T": 3, "S": 7}),
    ],
)
def test_the_catalog_s_definitions_are_worth_judging_by(name: str, axes: dict[str, int]) -> None:
    require_meaning(catalog.get(name), axes, seed=1)


def test_a_shape_that_says_something_is_chosen() -> None:
    attention = catalog.get("attention_h2_d16")
    assert telling_shape(attention, [{"T": 1, "S": 1}]) == {"T": 5, "S": 5}

    class Picky(Two):
        def inputs(self, axes: Mapping[str, int], *, seed: int, family: str) -> dict[str, Array]:
            if axes["M"] % 16:
                raise ValueError("whole tiles only")
            return super().inputs(axes, seed=seed, family=family)

    picky = Picky(lambda x, z: x + z)
    shapes = [{"M": 1}, {"M": 64}, {"M": 16}]
    assert telling_shape(picky, shapes) == {"M": 16}
    assert telling_shape(picky, [{"M": 1}, {"M": 2}]) == {"M": 2}


def agreement(answer: Array, reference: Array) -> None:
    case = Case(
        cell=CaseKey(axes={"M": 4}, family="randn"),
        inputs={},
        reference={"y": reference},
        incumbent={"y": answer},
    )
    require_agreement(case, name="two_n16")


@given(seed=st.integers(0, 2**32 - 1), dtype=st.sampled_from(["float32", "float16", "e5m2"]))
def test_an_incumbent_that_rounds_coarsely_is_one_to_judge_by(seed: int, dtype: str) -> None:
    truth = np.random.default_rng(seed).standard_normal((4, 16))
    kept = ml_dtypes.float8_e5m2 if dtype == "e5m2" else np.dtype(dtype)
    agreement(truth.astype(kept), truth)
    agreement(np.rint(truth * 40 + 0.4).astype(np.int8), truth * 40)


@pytest.mark.parametrize("factor", [-1.0, 0.0, 0.5, 2.0, np.nan, np.inf])
def test_an_incumbent_that_computes_something_else_proves_nothing(factor: float) -> None:
    """Its error would be as large as the answer: nearly every kernel is better than that."""
    truth = np.random.default_rng(3).standard_normal((4, 16))
    with raises_code(HarnessError, "incumbent-disagrees", "'y'"):
        agreement((truth * factor).astype(np.float32), truth)


def test_choices_of_other_experts_are_something_else() -> None:
    truth = np.arange(64.0).reshape(4, 16)
    agreement(truth.astype(np.int32), truth)
    with raises_code(HarnessError, "incumbent-disagrees", "'y'"):
        agreement(truth[::-1].astype(np.int32), truth)

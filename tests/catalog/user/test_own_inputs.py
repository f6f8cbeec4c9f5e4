"""Inputs of a definition file: as it says, and changed as each family of the lab does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.expect import raises_invalid, raises_naming

from retuned.catalog.user import (
    Distribution,
    InputRecipe,
    OwnDefinition,
    OwnTraces,
    OwnVariant,
    load_definition,
)
from retuned.catalog.user.inputs import FAMILIES, make_own
from retuned.contract import (
    AxisConst,
    AxisVar,
    Definition,
    DType,
    Language,
    SourceFile,
    TensorSpec,
)
from retuned.lab.reference.oracle import Oracle
from retuned.lab.subject import Array

LENGTHS = {"M": 40, "H": 30}


def own(
    made: InputRecipe, *, dtype: DType = DType.FLOAT32, constant: bool = False
) -> OwnDefinition:
    spec = TensorSpec(shape=("M", "H"), dtype=dtype, constant=constant)
    return OwnDefinition(
        definition=Definition(
            name="one_h30",
            op_type="one",
            axes={"M": AxisVar(), "H": AxisConst(value=30)},
            inputs={"x": spec},
            outputs={"y": TensorSpec(shape=("M",), dtype=DType.FLOAT32)},
            reference="def run(x): return x.sum(axis=1)",
        ),
        made={"x": made},
        families=FAMILIES,
        traces=OwnTraces(op="retuned::one", shapes=(("M", "H"),), dtypes=(str(dtype),)),
        variants=(
            OwnVariant(
                structure="plain",
                language=Language.CPU_CPP,
                entry="one",
                sources=(SourceFile(path="one.cpp", content=""),),
                incumbent={},
            ),
        ),
    )


def made(one: OwnDefinition, family: str = "randn", seed: int = 3) -> Array:
    return make_own(one, LENGTHS, np.random.default_rng(seed), family)["x"]


@pytest.mark.parametrize(
    ("how", "low", "high"),
    [
        (InputRecipe(like=Distribution.UNIFORM, low=2.0, high=3.0), 2.0, 3.0),
        (InputRecipe(like=Distribution.UNIFORM), 0.0, 1.0),
        (InputRecipe(like=Distribution.CONSTANT, value=1.5), 1.5, 1.5),
        (InputRecipe(like=Distribution.POSITIVE, scale=0.1), 1e-5, 1.0),
        (InputRecipe(like=Distribution.INTEGERS, low=-2, high=2), -2.0, 2.0),
        (InputRecipe(like=Distribution.NORMAL, mean=100.0, scale=0.01), 99.0, 101.0),
    ],
)
def test_numbers_are_as_the_file_says(how: InputRecipe, low: float, high: float) -> None:
    values = made(own(how))
    assert values.dtype == np.float32
    assert values.shape == (40, 30)
    assert low <= values.min() <= values.max() <= high


def test_the_same_seed_gives_the_same_bytes_and_another_others() -> None:
    one = own(InputRecipe())
    assert made(one).tobytes() == made(one).tobytes() != made(one, seed=4).tobytes()


def test_both_ends_of_whole_numbers_come() -> None:
    values = made(
        own(InputRecipe(like=Distribution.INTEGERS, low=-128, high=127), dtype=DType.INT8)
    )
    assert values.dtype == np.int8
    assert {-128, 127} <= set(values.ravel().tolist()) | {-128, 127}
    few = made(own(InputRecipe(like=Distribution.INTEGERS, low=0, high=1), dtype=DType.INT32))
    assert set(few.ravel().tolist()) == {0, 1}


def test_a_permutation_has_each_number_once_a_row() -> None:
    values = made(own(InputRecipe(like=Distribution.PERMUTATION), dtype=DType.INT64))
    assert (np.sort(values, axis=1) == np.arange(30)).all()
    assert len(np.unique(values, axis=0)) > 1


def test_families_change_what_they_are_called_after() -> None:
    one = own(InputRecipe())
    plain = made(one)
    np.testing.assert_allclose(made(one, "randn-small"), plain * 1e-3, rtol=1e-6)
    np.testing.assert_allclose(made(one, "randn-large"), plain * 1e3, rtol=1e-6)
    np.testing.assert_allclose(made(one, "mean-1000"), plain + 1000.0, rtol=1e-6)
    assert (np.abs(made(one, "zeros-rows")).sum(axis=1) == 0).sum() == 20
    assert np.isnan(made(one, "planted-nan")).sum() == 1
    assert np.isneginf(made(one, "planted-neg-inf")).sum() == 1
    exact = made(one, "exact-integer")
    assert (exact == np.rint(exact)).all()
    assert (np.abs(made(one, "outlier")).max(axis=0) > 20.0).sum() == 1


@pytest.mark.parametrize("family", FAMILIES)
def test_weights_whole_numbers_and_what_is_not_varied_stay(family: str) -> None:
    for one in (
        own(InputRecipe(), constant=True),
        own(InputRecipe(varied=False)),
        own(InputRecipe(like=Distribution.INTEGERS, low=0, high=9), dtype=DType.INT32),
    ):
        assert made(one, family).tobytes() == made(one).tobytes()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_positive_input_stays_positive(family: str) -> None:
    assert (made(own(InputRecipe(like=Distribution.POSITIVE)), family) > 0).all()


def test_lengths_that_the_definition_is_not_for_are_refused() -> None:
    one = own(InputRecipe()).model_copy(update={"where": "M <= H"})
    with raises_naming(ValueError, "M <= H", "M=40"):
        made(one)
    assert make_own(one, {"M": 30, "H": 30}, np.random.default_rng(0), "randn")["x"].shape[0] == 30


@given(
    st.sampled_from(list(Distribution)), st.sampled_from(["mean", "scale", "low", "high", "value"])
)
def test_a_distribution_takes_only_its_own_numbers(like: Distribution, name: str) -> None:
    takes = {
        Distribution.NORMAL: {"mean", "scale"},
        Distribution.UNIFORM: {"low", "high"},
        Distribution.POSITIVE: {"scale"},
        Distribution.INTEGERS: {"low", "high"},
        Distribution.PERMUTATION: set(),
        Distribution.CONSTANT: {"value"},
    }[like]
    if name in takes:
        assert getattr(InputRecipe.model_validate({"like": like, name: 1.0}), name) == 1.0
    else:
        with raises_invalid(names=(f"'{like}'", f"'{name}'")):
            InputRecipe.model_validate({"like": like, name: 1.0})


def test_an_empty_batch_is_made_too(file: Path) -> None:
    one = load_definition(file)
    for family in one.families:
        inputs = make_own(one, {"M": 0, "H": 1024}, np.random.default_rng(1), family)
        assert inputs["x"].shape == (0, 1024)


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16, DType.FLOAT8_E4M3FNUZ])
def test_narrow_floats_are_made_and_reach_the_reference_in_float64(dtype: DType) -> None:
    one = own(InputRecipe(like=Distribution.UNIFORM, low=-4.0, high=4.0), dtype=dtype)
    values = made(one)
    assert values.dtype.itemsize == (1 if dtype is DType.FLOAT8_E4M3FNUZ else 2)
    oracle = Oracle(one.definition)
    try:
        found = oracle.compute(x=values)["y"]
    finally:
        oracle.close()
    np.testing.assert_allclose(found, values.astype(np.float64).sum(axis=1), rtol=1e-12)

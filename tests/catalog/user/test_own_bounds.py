"""Numbers that inputs are made of: compared with each other and with the element type."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.expect import raises_code

from retuned.catalog.user import Distribution, InputRecipe
from retuned.catalog.user.inputs import WHOLE, _base
from retuned.catalog.user.validation import bound_problems, range_of
from retuned.contract import AxisConst, AxisVar, DType, TensorSpec
from retuned.lab.number_formats import NUMPY

AXES: dict[str, AxisConst | AxisVar] = {"M": AxisVar(), "H": AxisConst(value=300)}
whole = st.sampled_from(sorted(WHOLE))
edges = st.one_of(
    st.integers(-(2**64), 2**64),
    st.sampled_from([-129, -128, 127, 128, 255, 256, 2**31 - 1, 2**31, 2**53, 2**53 + 2, 2**63]),
)


def said(made: InputRecipe, dtype: DType) -> str:
    return "; ".join(bound_problems(made, TensorSpec(shape=("M", "H"), dtype=dtype), axes=AXES))


@pytest.mark.parametrize(
    ("made", "dtype", "problem"),
    [
        (InputRecipe(like=Distribution.INTEGERS, low=5), DType.INT32, "high is 1 by default"),
        (InputRecipe(like=Distribution.INTEGERS, high=-5), DType.INT32, "low is 0 by default"),
        (InputRecipe(like=Distribution.UNIFORM, low=2.5), DType.FLOAT32, "above high 1"),
        (InputRecipe(like=Distribution.INTEGERS, low=0, high=128), DType.INT8, "holds -128 to 127"),
        (InputRecipe(like=Distribution.INTEGERS, low=-1, high=5), DType.UINT8, "low -1 is beyond"),
        (InputRecipe(like=Distribution.INTEGERS, low=0, high=2), DType.BOOL, "holds 0 to 1"),
        (
            InputRecipe(like=Distribution.INTEGERS, low=0, high=2**60),
            DType.INT64,
            "integers are made",
        ),
        (InputRecipe(like=Distribution.INTEGERS, low=0, high=2**70), DType.INT64, "beyond int64"),
        (
            InputRecipe(like=Distribution.INTEGERS, low=0, high=70_000),
            DType.FLOAT16,
            "holds -65504",
        ),
        (InputRecipe(like=Distribution.CONSTANT, value=0.5), DType.INT8, "not an integer"),
        (InputRecipe(like=Distribution.CONSTANT, value=300), DType.INT8, "beyond int8"),
        (
            InputRecipe(like=Distribution.CONSTANT, value=500),
            DType.FLOAT8_E4M3FN,
            "holds -448 to 448",
        ),
        (InputRecipe(mean=1e6), DType.FLOAT16, "mean 1e\\+06 is beyond"),
        (
            InputRecipe(like=Distribution.POSITIVE, scale=1e300),
            DType.FLOAT32,
            "scale 1e\\+300 is beyond",
        ),
        (InputRecipe(like=Distribution.PERMUTATION), DType.INT8, "all integers up to 299"),
        (InputRecipe(like=Distribution.PERMUTATION), DType.BFLOAT16, "all integers up to 299"),
    ],
)
def test_what_does_not_fit_is_told_with_what_does(
    made: InputRecipe, dtype: DType, problem: str
) -> None:
    import re

    assert re.search(problem, said(made, dtype)), said(made, dtype)


@pytest.mark.parametrize(
    ("made", "dtype"),
    [
        (InputRecipe(like=Distribution.INTEGERS), DType.BOOL),
        (InputRecipe(like=Distribution.INTEGERS, low=-128, high=127), DType.INT8),
        (InputRecipe(like=Distribution.INTEGERS, low=-(2**53), high=2**53), DType.INT64),
        (InputRecipe(like=Distribution.CONSTANT, value=255), DType.UINT8),
        (InputRecipe(like=Distribution.PERMUTATION), DType.INT32),
        (InputRecipe(like=Distribution.PERMUTATION), DType.FLOAT16),
        (InputRecipe(mean=3.0, scale=0.1), DType.FLOAT8_E4M3FN),
    ],
)
def test_the_edges_themselves_fit(made: InputRecipe, dtype: DType) -> None:
    assert said(made, dtype) == ""


@given(dtype=whole, low=st.none() | edges, high=st.none() | edges)
def test_bounds_without_a_problem_make_numbers_that_the_type_holds(
    dtype: DType, low: int | None, high: int | None
) -> None:
    assume(low is None or high is None or low <= high)
    made = InputRecipe(like=Distribution.INTEGERS, low=low, high=high)
    assume(not said(made, dtype))
    values = _base(made, (20, 5), np.random.default_rng(1))
    least, largest = range_of(dtype)
    assert least <= values.min() <= values.max() <= largest
    assert (values.astype(NUMPY[dtype]).astype(np.float64) == values).all()


def test_a_file_says_it_with_its_line(changed: object) -> None:
    from retuned.catalog.user import DefinitionInvalid, load_definition

    file = changed("{like: normal, scale: 0.5}", "{like: uniform, low: 5}")  # type: ignore[operator]
    with raises_code(
        DefinitionInvalid,
        "definition-invalid",
        "line 13: inputs.residual.made",
        "low 5",
        "high is 1",
    ):
        load_definition(file)

"""bfloat16 and 8-bit floats in the lab: the same numbers as PyTorch's, and judged in their type."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from retuned.catalog import inputs
from retuned.contract import DType, TensorSpec
from retuned.lab.number_formats import (
    NUMPY,
    coarsened,
    is_float,
    limits_of,
    rounded,
    widened,
)
from retuned.lab.oracle import Judged, compare, exact_mismatch, rms_error
from retuned.lab.subject import coarse_inputs, numpy_dtype
from retuned.stages.verdict import Reason

Array = npt.NDArray[Any]
BF16, FN, FNUZ = NUMPY[DType.BFLOAT16], NUMPY[DType.FLOAT8_E4M3FN], NUMPY[DType.FLOAT8_E4M3FNUZ]
FLOATS = tuple(dtype for dtype in DType if "float" in dtype)


@pytest.mark.parametrize("dtype", DType)
def test_every_element_type_has_pytorchs_size_in_numpy(dtype: DType) -> None:
    torch = pytest.importorskip("torch")
    here = numpy_dtype(TensorSpec(shape=(), dtype=dtype))
    assert here.itemsize == getattr(torch, dtype).itemsize
    assert is_float(here) == getattr(torch, dtype).is_floating_point


@pytest.mark.parametrize("dtype", [DType.BFLOAT16, DType.FLOAT8_E4M3FN, DType.FLOAT8_E4M3FNUZ])
def test_bits_mean_the_same_numbers_as_in_pytorch(dtype: DType) -> None:
    torch = pytest.importorskip("torch")
    kind = NUMPY[dtype]
    bits = np.arange(2 ** (8 * kind.itemsize), dtype=f"uint{8 * kind.itemsize}")
    theirs = torch.from_numpy(bits.view(f"int{8 * kind.itemsize}")).view(getattr(torch, dtype))
    np.testing.assert_array_equal(widened(bits.view(kind)), theirs.double().numpy())


@pytest.mark.parametrize("dtype", FLOATS)
def test_limits_are_where_the_numbers_end(dtype: DType) -> None:
    kind = NUMPY[dtype]
    limits = limits_of(kind)
    one = np.array([1.0, 1.0 + limits.eps, 1.0 + limits.eps / 4], np.float64)
    assert len(set(rounded(one, kind).tolist())) == 2
    assert rounded(np.array([limits.largest]), kind)[0] == limits.largest
    assert not math.isfinite(rounded(np.array([limits.largest * 1.25]), kind)[0])
    assert rounded(np.array([limits.smallest]), kind)[0] == limits.smallest
    assert rounded(np.array([limits.smallest * 0.25]), kind)[0] == 0.0


@settings(deadline=None)
@given(arrays(np.float32, 20, elements=st.floats(-(2.0**99), 2.0**99, width=32)))
def test_a_float32_is_made_coarse_by_rounding_it_to_bfloat16s_digits(values: Array) -> None:
    # Far from the denormals, where bfloat16 has fewer digits and the coarse number keeps them.
    values = np.where(np.abs(values) < 1e-30, np.float32(0), values)
    np.testing.assert_array_equal(coarsened(values), values.astype(BF16).astype(np.float32))


def test_coarse_inputs_leave_integers_and_what_is_no_number_alone() -> None:
    given_inputs = {
        "x": np.array([1.0, 1.3, np.nan, np.inf], np.float32).astype(BF16),
        "ids": np.array([3, 1000], np.int32),
    }
    coarse = coarse_inputs(given_inputs)
    assert coarse["x"].dtype == BF16
    np.testing.assert_array_equal(widened(coarse["x"]), [1.0, 1.25, np.nan, np.inf])
    assert coarse["ids"] is given_inputs["ids"]


DEPTH = 1024


def product(seed: int) -> tuple[Array, Array, Array]:
    """Return bfloat16 factors as float32, and their product in float64."""
    random = np.random.default_rng(seed)
    x, w = (random.standard_normal((n, DEPTH)).astype(BF16).astype(np.float32) for n in (24, 40))
    return x, w, x.astype(np.float64) @ w.astype(np.float64).T


def chained(x: Array, w: Array) -> Array:
    return np.asarray(x @ w.T, np.float32).astype(BF16)


def sequential(x: Array, w: Array) -> Array:
    total = np.zeros((len(x), len(w)), np.float32)
    for k in range(x.shape[1]):
        total += x[:, k, None] * w[None, :, k]
    return total.astype(BF16)


def summed_in(dtype: np.dtype[Any]) -> Callable[[Array, Array], Array]:
    def summed(x: Array, w: Array) -> Array:
        total = np.zeros((len(x), len(w)), dtype)
        for k in range(x.shape[1]):
            total = (total.astype(np.float32) + x[:, k, None] * w[None, :, k]).astype(dtype)
        return total.astype(np.float32).astype(BF16)

    return summed


def one_wrong(x: Array, w: Array) -> Array:
    result = chained(x, w).astype(np.float32)
    result[3, 5] += 0.05 * np.abs(result).max()
    return result.astype(BF16)


@pytest.mark.parametrize("candidate", [chained, sequential])
def test_another_order_of_summation_is_accepted_in_bfloat16(
    candidate: Callable[[Array, Array], Array],
) -> None:
    x, w, reference = product(1)
    judged = compare(candidate(x, w), sequential(x, w), reference=reference, depth=DEPTH)
    assert judged.reason is None, judged.detail


@pytest.mark.parametrize(
    "candidate",
    [
        summed_in(BF16),
        lambda x, w: chained(x.astype(FN).astype(np.float32), w.astype(FN).astype(np.float32)),
        lambda x, w: chained(x[:, :-8], w[:, :-8]),
        one_wrong,
        lambda x, w: np.zeros((len(x), len(w)), BF16),
    ],
    ids=["bfloat16 accumulator", "8-bit inputs", "0.8 % skipped", "one wrong", "all zeros"],
)
def test_a_lost_precision_class_is_refused_in_bfloat16(
    candidate: Callable[[Array, Array], Array],
) -> None:
    x, w, reference = product(2)
    judged = compare(candidate(x, w), sequential(x, w), reference=reference, depth=DEPTH)
    assert judged.reason is Reason.WRONG_OUTPUT, judged


@pytest.mark.parametrize("dtype", [BF16, np.dtype(np.float16)], ids=["bfloat16", "float16"])
def test_whole_numbers_show_an_accumulator_that_randn_forgives(dtype: np.dtype[Any]) -> None:
    x, w = inputs.exact_factors(np.random.default_rng(3), 8, 12, DEPTH)
    partial = np.abs(np.cumsum(x[:1] * w[:1], axis=1)).max()
    assert 2048 < partial < 2**24
    reference = x.astype(np.float64) @ w.astype(np.float64).T
    honest = chained(x, w)
    right = exact_mismatch(honest, honest, reference=reference)
    assert right is not None
    assert right.reason is None
    wrong = exact_mismatch(summed_in(dtype)(x, w), honest, reference=reference)
    assert wrong is not None
    assert wrong.reason is Reason.WRONG_OUTPUT


@pytest.mark.parametrize("kind", [FN, FNUZ], ids=["e4m3fn", "e4m3fnuz"])
@pytest.mark.parametrize("saturates", [True, False])
def test_what_eight_bits_cannot_hold_must_be_what_the_incumbent_makes_of_it(
    kind: np.dtype[Any], saturates: bool
) -> None:
    largest = limits_of(kind).largest
    reference = np.array([[1.0, 10.0 * largest, -3.0 * largest, np.nan]])
    full = np.array([[1.0, largest, -largest, np.nan]]).astype(kind)
    nothing = np.array([[1.0, np.nan, np.nan, np.nan]]).astype(kind)
    incumbent, other = (full, nothing) if saturates else (nothing, full)

    def judged(candidate: Array) -> Judged:
        return compare(candidate, incumbent, reference=reference, depth=1)

    assert judged(incumbent.copy()).reason is None
    assert judged(other).reason is Reason.NAN_MISMATCH
    less = np.array([[1.0, largest / 2, -largest, np.nan]]).astype(kind)
    assert judged(less).reason is Reason.NAN_MISMATCH


def test_a_saturated_element_forgives_no_error_elsewhere() -> None:
    reference = np.linspace(0.5, 2.0, 64).reshape(2, 32)
    reference[0, 0] = 1e6
    incumbent = np.minimum(reference, 448.0).astype(FN)
    wrong = incumbent.copy()
    wrong[1, 3] = 3.0
    assert compare(incumbent, incumbent, reference=reference, depth=1).reason is None
    assert compare(wrong, incumbent, reference=reference, depth=1).reason is Reason.WRONG_OUTPUT


def test_eight_bits_may_round_to_either_neighbour_and_no_further() -> None:
    reference = np.random.default_rng(5).uniform(1.0, 300.0, (4, 64))
    nearest = reference.astype(FN)
    up = (widened(nearest) * 1.08).astype(FN)
    assert compare(nearest, up, reference=reference, depth=1).reason is None
    assert compare(nearest, nearest, reference=reference, depth=1).reason is None
    far = (widened(nearest) * 1.3).astype(FN)
    assert compare(far, nearest, reference=reference, depth=1).reason is Reason.WRONG_OUTPUT


def test_a_quantised_integer_near_a_half_may_go_either_way() -> None:
    reference = np.array([2.5 + 1e-6, -1.5, 7.2, 127.0])
    right = np.array([3, -1, 7, 127], np.int8)
    other = np.array([2, -2, 7, 127], np.int8)
    wrong = np.array([3, -1, 8, 127], np.int8)
    for candidate in (right, other):
        assert compare(candidate, right, reference=reference, depth=1).reason is None
    assert compare(wrong, right, reference=reference, depth=1).reason is Reason.WRONG_OUTPUT


def test_an_answer_as_bad_as_from_coarse_inputs_is_refused_where_the_incumbent_is_better() -> None:
    # The rounding of a bfloat16 output alone allows more than twice what the incumbent errs by.
    reference = np.random.default_rng(7).uniform(1.0, 2.0, (32, 64))
    unit = 2.0**-9
    incumbent = (reference + unit).astype(BF16)
    candidate = (reference + 3 * unit).astype(BF16)
    ours, theirs = rms_error(candidate, reference), rms_error(incumbent, reference)
    assert ours < 1.5 * theirs + 0.5 * limits_of(BF16).eps * 1.5

    def reason(degraded_rms: float) -> Reason | None:
        judged = compare(
            candidate, incumbent, reference=reference, depth=1, degraded_rms=degraded_rms
        )
        return judged.reason

    assert reason(0.0) is None, "unknown asks nothing"
    assert reason(2.1 * ours) is None
    assert 1.5 * theirs < 0.95 * ours, "else the next line asks nothing"
    assert reason(1.9 * ours) is Reason.WRONG_OUTPUT
    assert reason(2.9 * theirs) is None, "the incumbent itself would hardly pass"

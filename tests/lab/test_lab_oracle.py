"""The oracle tells another order of summation from a lost precision class."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from retuned.contract import AxisConst, AxisVar, Definition, DType, TensorSpec
from retuned.lab.oracle import (
    Tolerance,
    allowed_difference,
    bit_equal,
    compare,
    exact_mismatch,
    reduced_elements,
)
from retuned.stages.verdict import Reason

Array = npt.NDArray[Any]
DEPTH = 1024


def product(seed: int = 0, *, offset: float = 0.0) -> tuple[Array, Array, Array]:
    random = np.random.default_rng(seed)
    x = (random.standard_normal((24, DEPTH)) + offset).astype(np.float32)
    w = random.standard_normal((40, DEPTH)).astype(np.float32)
    return x, w, x.astype(np.float64) @ w.astype(np.float64).T


def sequential(x: Array, w: Array) -> Array:
    total = np.zeros((len(x), len(w)), np.float32)
    for k in range(x.shape[1]):
        total += x[:, k, None] * w[None, :, k]
    return total


def in_chains(x: Array, w: Array) -> Array:
    chains = [sequential(x[:, i::16], w[:, i::16]) for i in range(16)]
    return np.asarray(np.sum(np.stack(chains), axis=0, dtype=np.float32))


def bfloat16(values: Array) -> Array:
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + np.uint32(0x8000)) & np.uint32(0xFFFF0000)).view(np.float32)


def accumulate_bfloat16(x: Array, w: Array) -> Array:
    total = np.zeros((len(x), len(w)), np.float32)
    for k in range(x.shape[1]):
        total = bfloat16(total + x[:, k, None] * w[None, :, k])
    return total


def accumulate_float16(x: Array, w: Array) -> Array:
    total = np.zeros((len(x), len(w)), np.float16)
    for k in range(x.shape[1]):
        total = (total + x[:, k, None] * w[None, :, k]).astype(np.float16)
    return total.astype(np.float32)


def one_wrong(x: Array, w: Array) -> Array:
    result = in_chains(x, w)
    result[3, 5] *= 1.05
    return result


def tile_wrong(x: Array, w: Array) -> Array:
    result = in_chains(x, w)
    result[:16, :16] = 0.0
    return result


@pytest.mark.parametrize("candidate", [sequential, in_chains])
@pytest.mark.parametrize("incumbent", [sequential, in_chains])
@pytest.mark.parametrize("offset", [0.0, 100.0])
def test_another_order_of_summation_is_accepted(
    candidate: Callable[[Array, Array], Array],
    incumbent: Callable[[Array, Array], Array],
    offset: float,
) -> None:
    x, w, reference = product(1, offset=offset)
    judged = compare(candidate(x, w), incumbent(x, w), reference=reference, depth=DEPTH)
    assert judged.reason is None, judged.detail


@pytest.mark.parametrize(
    "candidate",
    [
        accumulate_bfloat16,
        accumulate_float16,
        one_wrong,
        tile_wrong,
        lambda x, w: in_chains(bfloat16(x), w),
        lambda x, w: in_chains(x.astype(np.float16).astype(np.float32), w),
        lambda x, w: in_chains(x[:, :-8], w[:, :-8]),
        lambda x, w: np.zeros((len(x), len(w)), np.float32),
    ],
    ids=[
        "bfloat16 accumulator",
        "float16 accumulator",
        "one element off by 5 %",
        "a tile of zeros",
        "bfloat16 inputs",
        "float16 inputs",
        "0.8 % of the sum skipped",
        "all zeros",
    ],
)
def test_a_lost_precision_class_or_a_wrong_element_is_refused(
    candidate: Callable[[Array, Array], Array],
) -> None:
    x, w, reference = product(2)
    judged = compare(candidate(x, w), sequential(x, w), reference=reference, depth=DEPTH)
    assert judged.reason is Reason.WRONG_OUTPUT
    assert judged.error_ratio > 2.0


def test_one_bad_row_is_not_averaged_away() -> None:
    x, w, reference = product(3)
    incumbent = in_chains(x, w)
    # Rows of very different size: an error that is large in a small row is small over all.
    scale = np.ones((24, 1), np.float32)
    scale[0] = 1e-4
    candidate = incumbent * scale
    candidate[0] *= 1.0 + 1e-3
    judged = compare(candidate, incumbent * scale, reference=reference * scale, depth=DEPTH)
    assert judged.reason is Reason.WRONG_OUTPUT
    assert "row 0" in judged.detail


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_must_lie_where_the_incumbent_has_them(value: float) -> None:
    x, w, _ = product(4)
    x[2, 7] = value
    reference = x.astype(np.float64) @ w.astype(np.float64).T
    incumbent = in_chains(x, w)
    assert compare(incumbent, incumbent, reference=reference, depth=DEPTH).reason is None
    swallowed = np.where(np.isfinite(incumbent), incumbent, 0.0).astype(np.float32)
    judged = compare(swallowed, incumbent, reference=reference, depth=DEPTH)
    assert judged.reason is Reason.NAN_MISMATCH


def test_a_candidate_right_by_the_reference_may_differ_from_a_worse_incumbent() -> None:
    reference = np.ones((4, 4))
    incumbent = np.full((4, 4), np.nan, np.float32)
    judged = compare(np.ones((4, 4), np.float32), incumbent, reference=reference, depth=4)
    assert judged.reason is None


def test_the_exact_probe_sees_what_a_tolerance_forgives() -> None:
    exact = np.arange(64, dtype=np.float64).reshape(8, 8)
    right = exact.astype(np.float32)
    assert exact_mismatch(right, right, reference=exact) is not None
    nearly = right.copy()
    nearly[5, 5] = np.nextafter(nearly[5, 5], np.float32(1e9))
    judged = exact_mismatch(nearly, right, reference=exact)
    assert judged is not None
    assert judged.reason is Reason.WRONG_OUTPUT


def test_the_exact_probe_says_nothing_where_the_incumbent_is_inexact() -> None:
    exact = np.arange(4.0)
    wrong = np.full(4, 9.0, np.float32)
    assert exact_mismatch(exact.astype(np.float32), wrong, reference=exact) is None


@given(arrays(np.float32, (6, 40), elements=st.floats(-(2.0**99), 2.0**99, width=32)))
def test_an_exact_answer_is_accepted_whatever_the_incumbent(values: Array) -> None:
    judged = compare(values, np.zeros_like(values), reference=values.astype(np.float64), depth=1)
    assert judged.reason is None
    assert judged.error_ratio == 0.0


def test_integers_are_compared_exactly() -> None:
    right = np.arange(6, dtype=np.int32)
    wrong = right.copy()
    wrong[2] += 1
    assert compare(right, right, reference=right * 1.0, depth=1).reason is None
    assert compare(wrong, right, reference=right * 1.0, depth=1).error_ratio == math.inf


def test_bits_are_compared_with_the_sign_of_zero_and_the_payload_of_nan() -> None:
    zero = np.zeros(2, np.float32)
    assert bit_equal(zero, zero.copy())
    assert not bit_equal(zero, -zero)
    assert bit_equal(zero * np.float32(np.nan), zero * np.float32(np.nan))


def test_depth_is_what_the_outputs_do_not_have() -> None:
    def definition(outputs: tuple[str, ...]) -> Definition:
        return Definition(
            name="d",
            op_type="d",
            axes={"M": AxisVar(), "N": AxisConst(value=8), "K": AxisConst(value=32)},
            inputs={
                "x": TensorSpec(shape=("M", "K"), dtype=DType.FLOAT32),
                "w": TensorSpec(shape=("N", "K"), dtype=DType.FLOAT32),
            },
            outputs={"y": TensorSpec(shape=outputs, dtype=DType.FLOAT32)},
            reference="",
        )

    lengths = {"M": 4, "N": 8, "K": 32}
    assert reduced_elements(definition(("M", "N")), lengths) == 32
    assert reduced_elements(definition(("M", "N", "K")), lengths) == 32
    assert reduced_elements(definition(()), lengths) == 4 * 8 * 32


def test_what_is_accepted_is_no_further_from_the_incumbent_than_is_told() -> None:
    """The server's own checks are held to this: no honest variant may be over it."""
    x, w, reference = product()
    incumbent = in_chains(x, w)
    scale = math.sqrt(float(np.mean(reference**2)))
    depth = x.shape[-1]
    told = allowed_difference(incumbent, reference=reference, depth=depth, tolerance=Tolerance())
    assert told is not None
    for variant in (sequential, in_chains):
        answer = variant(x, w)
        judged = compare(answer, incumbent, reference=reference, depth=depth)
        assert judged.reason is None
        apart = math.sqrt(float(np.mean((answer.astype(np.float64) - incumbent) ** 2)))
        assert apart / scale <= told
    lost = accumulate_bfloat16(x, w).astype(np.float64) - incumbent
    assert math.sqrt(float(np.mean(lost**2))) / scale > 4 * told


@pytest.mark.parametrize(
    "values", [np.zeros(8, np.float32), np.full(8, np.nan, np.float32), np.ones(8, np.int32)]
)
def test_where_noise_says_nothing_none_is_told(values: Array) -> None:
    reference = np.zeros(8)
    told = allowed_difference(values, reference=reference, depth=8, tolerance=Tolerance())
    assert told is None

"""Rows beside each other: what the incumbent keeps apart, a candidate must keep apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np
import pytest
from tests.expect import raises_naming

from retuned import catalog
from retuned.errors import CandidateCrashed, HarnessError
from retuned.lab.harness.cases import CaseCache, CaseKey, Seeds
from retuned.lab.harness.row_independence import check_rows, row_axis
from retuned.lab.harness.run import Runner
from retuned.lab.subject import Array
from retuned.stages.verdict import Check, Reason

NAME = "softmax_n96"
CELLS = tuple(
    CaseKey(axes={"M": rows}, family=family) for rows in (1, 4) for family in ("randn", "outlier")
)
Compute = Callable[[Array], Array]


class Pretended:
    """A child that computes with NumPy."""

    def __init__(self, compute: Compute) -> None:
        self._compute = compute

    def run(
        self, inputs: Mapping[str, Array], axes: Mapping[str, int], **_: Any
    ) -> dict[str, Array]:
        return {"y": self._compute(inputs["x"]).astype(np.float32)}


def plain(x: Array) -> Array:
    e = np.exp(x - x.max(axis=1, keepdims=True))
    answer: Array = e / e.sum(axis=1, keepdims=True)
    return answer


def beside(x: Array) -> Array:
    return plain(x) * (1 + 1e-6 * np.roll(x, 1, axis=0))


def by_size(x: Array) -> Array:
    return cast(Array, plain(x) * (1 + 1e-6 * (len(x) > 1)))


def checked(candidate: Compute, incumbent: Compute = plain, *, asked: bool = False) -> Check | None:
    book = CaseCache(catalog.get(NAME), incumbent=cast(Runner, Pretended(incumbent)), seeds=Seeds())
    return check_rows(
        cast(Runner, Pretended(candidate)),
        book,
        cells=CELLS,
        batch_invariant=asked,
        timeout_s=1.0,
    )


def test_rows_that_stand_by_themselves_pass() -> None:
    check = checked(plain)
    assert check is not None
    assert check.reason is None
    assert "beside other rows" in check.detail


def test_a_row_that_changes_with_its_neighbours_is_refused() -> None:
    check = checked(beside)
    assert check is not None
    assert (check.gate, check.reason) == ("G4", Reason.ROW_DEPENDENT)
    assert "content of other rows" in check.detail


def test_what_the_incumbent_does_too_is_allowed() -> None:
    check = checked(beside, incumbent=beside)
    assert check is not None
    assert check.reason is None


def test_a_row_that_changes_with_the_batch_is_refused_if_asked() -> None:
    left_alone = checked(by_size)
    assert left_alone is not None
    assert left_alone.reason is None
    check = checked(by_size, asked=True)
    assert check is not None
    assert check.reason is Reason.ROW_DEPENDENT
    assert "size of the batch" in check.detail
    assert checked(by_size, incumbent=by_size, asked=True) is not None
    same = checked(plain, asked=True)
    assert same is not None
    assert "and alone" in same.detail


def test_an_incumbent_that_fails_is_no_fault_of_the_candidate() -> None:
    calls = iter([plain])

    def breaks(x: Array) -> Array:
        for compute in calls:
            return compute(x)
        raise CandidateCrashed("crashed", detail="gone")

    with raises_naming(HarnessError, "incumbent", "{'M': 4}", "gone"):
        checked(beside, incumbent=breaks)


def test_no_shape_with_two_rows_is_no_question() -> None:
    book = CaseCache(catalog.get(NAME), incumbent=cast(Runner, Pretended(plain)), seeds=Seeds())
    found = check_rows(
        cast(Runner, Pretended(beside)), book, cells=CELLS[:2], batch_invariant=False, timeout_s=1.0
    )
    assert found is None


@pytest.mark.parametrize(
    ("name", "axis"),
    [("linear_w8_n48_k96", "M"), ("attention_h2_d16", "T"), ("softmax", "M"), (NAME, "M")],
)
def test_the_axis_of_rows_is_found(name: str, axis: str) -> None:
    assert row_axis(catalog.get(name).definition) == axis

"""A server on a GPU: Triton launches under Retuned's operators are launches of definitions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from retuned import catalog
from retuned.stages.trace import LaunchRecord
from retuned.traces import read_trace

FLOAT, INT8 = "float", "signed char"


def slot_call(
    make: ModuleType, number: int, at: float, *, kernel: str, op: str, **shape: Any
) -> list[dict[str, Any]]:
    """Rows of one operator call as PyTorch 2.11 writes them: op, empty, driver call, kernel."""
    external, inner, correlation = 10 * number, 10 * number + 1, 900 + number
    launch = make.event("cuda_driver", "cuLaunchKernelEx", at + 12, 4.0)
    launch["args"] = {"External id": external, "correlation": correlation, "cbid": 652}
    ran = make.event("kernel", kernel, at + 20, 6.5)
    ran["args"] = {
        "External id": external,
        "correlation": correlation,
        "device": 0,
        "stream": 7,
        "grid": [768, 1, 1],
        "block": [128, 1, 1],
        "shared memory": 512,
        "registers per thread": 40,
    }
    ran["pid"], ran["tid"] = 0, 7
    return [
        make.op(op, at, 18.0, external, **shape),
        make.op("aten::empty", at + 2, 3.0, inner, dims=[[], [], []], types=["ScalarList", "", ""]),
        launch,
        ran,
    ]


LINEAR = {"dims": [[4, 2048], [6144, 2048], [6144]], "types": [FLOAT, INT8, FLOAT]}
ATTENTION = {"dims": [[1, 16, 128], [37, 16, 128], [37, 16, 128]], "types": [FLOAT] * 3}


@pytest.fixture
def launches(tmp_path: Path, make: ModuleType) -> Sequence[LaunchRecord]:
    other = make.event("kernel", "void at::native::vectorized_elementwise_kernel<4>", 300.0, 2.0)
    other["args"] = {"External id": 95, "correlation": 990, "grid": [4, 1, 1], "block": [64, 1, 1]}
    rows = [
        *slot_call(make, 1, 100.0, kernel="linear_row_dots", op="retuned::linear_w8", **LINEAR),
        *slot_call(make, 2, 150.0, kernel="linear_split", op="retuned::linear_w8", **LINEAR),
        *slot_call(make, 3, 200.0, kernel="attention_query", op="retuned::attention", **ATTENTION),
        make.op("aten::add", 290.0, 8.0, 95, dims=[[4, 2048], [4, 2048]], types=[FLOAT, FLOAT]),
        other,
    ]
    path = tmp_path / "demo.pt.trace.json"
    path.write_bytes(make.kineto(rows))
    return read_trace(path).launches


def test_launches_bind_to_their_definitions_with_their_shapes(
    launches: tuple[LaunchRecord, ...],
) -> None:
    bound = [catalog.recognise(one.kernel, one.dims, one.dtypes) for one in launches]
    assert [one.definition if one else None for one in bound] == [
        "linear_w8_n6144_k2048",
        "linear_w8_n6144_k2048",
        "attention_h16_d128",
        None,
    ]
    assert [one.axes for one in bound if one] == [{"M": 4}, {"M": 4}, {"T": 1, "S": 37}]


def test_what_a_slot_launches_counts_as_the_slot_whatever_variant_runs(
    launches: tuple[LaunchRecord, ...],
) -> None:
    """Else every swap would be a drift: one kernel gone, a new one there."""
    before, after = launches[:2]
    assert (before.kernel, before.dims) == (after.kernel, after.dims)
    assert before.kernel == before.op == "retuned::linear_w8"


def test_time_and_geometry_are_those_of_the_gpu_and_not_of_the_host(
    launches: tuple[LaunchRecord, ...],
) -> None:
    linear, other = launches[0], launches[3]
    assert linear.duration_ns == 6500
    assert (linear.blocks, linear.threads) == ((768, 1, 1), (128, 1, 1))
    assert (linear.device, linear.stream) == ("0", "7")
    assert linear.shape_confidence == pytest.approx(0.95)
    assert other.kernel.startswith("at::native") or "vectorized" in other.kernel

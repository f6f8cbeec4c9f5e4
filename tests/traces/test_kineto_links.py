"""From kernel to operator to shapes: ids, enclosing operators, time, and CPU-only traces."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from retuned.stages.trace import LaunchRecord, ShapeSource, align_capture
from retuned.traces import read_capture, read_trace


@pytest.fixture
def launches(tmp_path: Path, make: ModuleType) -> Any:
    def read(*events: dict[str, Any]) -> Sequence[LaunchRecord]:
        path = tmp_path / "trace.json"
        path.write_bytes(make.kineto(events))
        return read_trace(path).launches

    return read


def kernel(make: ModuleType, name: str = "k", at: float = 100.0, **args: Any) -> dict[str, Any]:
    made: dict[str, Any] = make.event("kernel", name, at, 5.0)
    made["args"] = {key.replace("_", " "): value for key, value in args.items()}
    return made


def host(make: ModuleType, name: str, at: float = 50.0, **args: Any) -> dict[str, Any]:
    made: dict[str, Any] = make.event("cuda_runtime", name, at, 1.0)
    made["args"] = {key.replace("_", " "): value for key, value in args.items()}
    return made


def test_a_kernel_finds_its_operator_through_the_launch(make: ModuleType, launches: Any) -> None:
    (launch,) = launches(
        make.op("aten::mm", 40.0, 20.0, 8, dims=[[4, 8], [8, 2]], types=["c10::Half", "c10::Half"]),
        host(make, "cudaLaunchKernel", External_id=8, correlation=3),
        kernel(make, correlation=3),
    )
    assert launch.op == "aten::mm"
    assert launch.dims == ((4, 8), (8, 2))
    assert launch.dtypes == ("c10::Half", "c10::Half")
    assert launch.shape_source is ShapeSource.OP
    assert launch.shape_confidence == 0.95


def test_an_id_on_the_kernel_itself_is_enough(make: ModuleType, launches: Any) -> None:
    (launch,) = launches(
        make.op("aten::mm", 40.0, 20.0, 8, dims=[[4]]), kernel(make, External_id=8)
    )
    assert launch.dims == ((4,),)


def test_an_operator_without_shapes_borrows_those_around_it_on_its_thread_and_is_less_sure(
    make: ModuleType, launches: Any
) -> None:
    other_thread = make.op("aten::add", 10.0, 300.0, 1, dims=[[99]]) | {"tid": 8}
    (launch,) = launches(
        other_thread,
        make.op("outer", 20.0, 200.0, 2, dims=[[7]]),
        make.op("ended", 21.0, 2.0, 3, dims=[[5]]),
        make.op("middle", 40.0, 100.0, 4),
        make.op("aten::fill_", 50.0, 10.0, 5, dims=[[], []], types=["float", "Scalar"]),
        kernel(make, External_id=5),
    )
    assert launch.op == "aten::fill_"
    assert launch.dims == ((7,),)
    assert launch.shape_confidence == 0.6


def test_a_kernel_that_nothing_names_has_no_shape(make: ModuleType, launches: Any) -> None:
    first, second = launches(
        make.op("aten::mm", 40.0, 20.0, 8, dims=[[4]]),
        host(make, "hipGraphLaunch", External_id=8, correlation=3),
        kernel(make, "linked", 1.0, correlation=3),
        kernel(make, "bare", 2.0, correlation=77),
    )
    assert first.dims == ((4,),)
    assert (second.dims, second.shape_source, second.shape_confidence) == (
        (),
        ShapeSource.NONE,
        0.0,
    )


def test_where_ids_fit_no_operator_the_time_of_the_launch_links(
    make: ModuleType, launches: Any
) -> None:
    (launch,) = launches(
        make.op("outer", 10.0, 100.0, 1, dims=[[7]]),
        make.op("inner", 40.0, 20.0, 2, dims=[[4]]),
        make.op("later", 70.0, 20.0, 3, dims=[[5]]),
        host(make, "cudaLaunchKernel", at=55.0, External_id=900, correlation=3),
        kernel(make, correlation=3),
    )
    assert (launch.op, launch.dims, launch.shape_confidence) == ("inner", ((4,),), 0.5)


@pytest.mark.parametrize(
    ("name", "blocks"),
    [
        ("hipExtModuleLaunchKernel", (4, 1, 1)),
        ("hipExtLaunchKernel", (4, 1, 1)),
        ("hipModuleLaunchKernel", (1000, 1, 1)),
        ("hipLaunchKernel", (1000, 1, 1)),
        ("cuLaunchKernel", (1000, 1, 1)),
    ],
)
def test_only_ext_launches_count_work_items(
    make: ModuleType, launches: Any, name: str, blocks: tuple[int, int, int]
) -> None:
    (launch,) = launches(
        host(make, name, correlation=3, grid=[1000, 1, 1]),
        kernel(make, correlation=3, grid=[1000, 1, 1], block=[256, 1, 1]),
    )
    assert launch.blocks == blocks


@pytest.mark.parametrize("grid", ["x", [1], [-1, 1, 1], [2**40, 1, 1], [1.5, 1, 1], {"x": 1}, None])
def test_an_absurd_grid_reads_as_unknown(make: ModuleType, launches: Any, grid: object) -> None:
    (launch,) = launches(kernel(make, grid=grid, block=[1, 1, 1]))
    assert launch.blocks in {(0, 0, 0), (1, 1, 1)}


def test_lists_of_tensors_are_flattened_and_numbers_left_out(
    make: ModuleType, launches: Any
) -> None:
    dims = [[[2, 3], [4, 3]], [], [], [5]]
    types = ["TensorList", "Scalar", "double", "long int"]
    strides = [[[3, 1], [3, 1]], [], [], [1]]
    made = make.op("aten::cat", 40.0, 20.0, 8, dims=dims, types=types, strides=strides)
    (launch,) = launches(made, kernel(make, External_id=8))
    assert launch.dims == ((2, 3), (4, 3), (), (5,))
    assert launch.dtypes == ("TensorList", "TensorList", "double", "long int")
    assert launch.layout == "contiguous"


@pytest.mark.parametrize(
    ("strides", "layout"),
    [([[8, 1]], "contiguous"), ([[1, 4]], "strided"), ([[8]], "strided"), ("x", "")],
)
def test_layout_comes_from_strides(
    make: ModuleType, launches: Any, strides: Any, layout: str
) -> None:
    made = make.op("aten::mm", 40.0, 20.0, 8, dims=[[4, 8]], strides=strides)
    (launch,) = launches(made, kernel(make, External_id=8))
    assert launch.layout == layout


@pytest.mark.parametrize("dims", ["x", 7, [7], [[-1]], [[1.5]], [[2**60]], [["a"]], [[[[1]]]]])
def test_absurd_dims_read_as_unknown(make: ModuleType, launches: Any, dims: Any) -> None:
    made = make.op("aten::mm", 40.0, 20.0, 8)
    made["args"]["Input Dims"] = dims
    (launch,) = launches(made, kernel(make, External_id=8))
    assert launch.dims == ()


def test_without_a_device_leaves_are_launches_and_own_operators_swallow_what_they_call(
    data: Path,
) -> None:
    batch = read_trace(data / "kineto_cpu.json")

    assert [launch.kernel for launch in batch.launches] == ["aten::mm", "retuned::linear_w8"]
    mm, own = batch.launches
    assert (mm.dims, mm.duration_ns, mm.layout) == (((3, 8), (8, 4)), 30_250, "strided")
    assert (own.dims, own.duration_ns, own.layout) == (((2, 8), (4, 8)), 60_500, "contiguous")
    assert own.shape_source is ShapeSource.OP
    assert own.shape_confidence == 1.0
    assert batch.skipped == {"zero-duration": 1}


def test_own_operators_inside_own_operators_count_once(make: ModuleType, launches: Any) -> None:
    found = launches(
        make.op("retuned::outer", 10.0, 90.0, 1, dims=[[1]]),
        make.op("retuned::inner", 20.0, 30.0, 2, dims=[[2]]),
        make.op("aten::mm", 25.0, 10.0, 3, dims=[[3]]),
    )
    assert [launch.kernel for launch in found] == ["retuned::outer"]


def test_operators_that_touch_do_not_contain_each_other(make: ModuleType, launches: Any) -> None:
    found = launches(make.op("a", 10.0, 5.0, 1, dims=[[1]]), make.op("b", 15.0, 5.0, 2))
    assert [launch.kernel for launch in found] == ["a", "b"]
    assert [launch.shape_confidence for launch in found] == [1.0, 0.0]


def test_operators_of_a_device_trace_without_kernels_are_no_launches(
    make: ModuleType, launches: Any
) -> None:
    assert launches(make.op("a", 10.0, 5.0, 1), host(make, "hipStreamBeginCapture")) == ()


def test_a_capture_gives_a_replay_its_geometry_and_shapes(
    make: ModuleType, tmp_path: Path, launches: Any
) -> None:
    rows = []
    for number, name in enumerate(["norm", "mm", "act", "mm"]):
        facts: dict[str, Any] = {"External_id": number, "kernel": name, "correlation": number}
        facts |= {"grid": [1024, 1, 1], "block": [256, 1, 1], "shared_memory": 64}
        rows += [
            make.op(f"op{number}", 10.0 * number, 9.0, number, dims=[[number + 1, 8]]),
            host(make, "hipExtModuleLaunchKernel", 10.0 * number + 1, **facts),
        ]
    path = tmp_path / "capture.json"
    path.write_bytes(make.kineto(rows))
    replayed = [kernel(make, name, 100.0 + at * 10) for at, name in enumerate(["norm", "mm", "mm"])]

    found = align_capture(read_capture(path), launches(host(make, "hipGraphLaunch"), *replayed))

    assert [launch.op for launch in found] == ["op0", "op1", "op3"]
    assert [launch.dims for launch in found] == [((1, 8),), ((2, 8),), ((4, 8),)]
    assert {launch.blocks for launch in found} == {(4, 1, 1)}
    assert {launch.lds_bytes for launch in found} == {64}
    assert {launch.shape_source for launch in found} == {ShapeSource.CAPTURE}


def test_times_in_whole_microseconds_and_old_spellings_are_read(
    make: ModuleType, launches: Any
) -> None:
    made = kernel(make, external_id="8")
    made |= {"ts": 1_695_835_535_000_000, "dur": 7}
    operator = make.op("aten::mm", 40, 20, 8, dims=[[4]])
    operator["args"] = {"external id": "8", "Input Dims": [[4]]}
    (launch,) = launches(operator, made)
    assert (launch.duration_ns, launch.dims) == (7_000, ((4,),))


def test_events_that_hold_lists_of_objects_do_not_confuse_the_cuts(
    make: ModuleType, tmp_path: Path
) -> None:
    """What looks like the border of two events may lie inside one."""
    nested = make.event("cpu_op", "a", 1.0, 1.0)
    nested["args"] = {"ranks": [{"a": 1}, {"b": "}, {"}, {"ph": "X"}], "text": '"}, {"ph": "X"'}
    path = tmp_path / "nested.json"
    path.write_text(json.dumps({"traceEvents": [nested] * 3000 + [kernel(make)] * 5}))
    assert len(read_trace(path).launches) == 5

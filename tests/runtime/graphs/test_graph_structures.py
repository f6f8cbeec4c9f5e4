"""Structures and names of the drivers' graph calls, against what the vendors publish."""

from __future__ import annotations

import ctypes
import ctypes.util
import importlib
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.expect import raises_code

from retuned.runtime.graphs.structures import (
    CudaKernelNodeParams,
    HipKernelNodeParams,
    KernelParams,
    check_layout,
    pack,
    unpack,
)
from retuned.runtime.graphs.vendors import required_calls
from retuned.runtime.schema import Refused

CUDA_FIELDS = ("func", "gridDimX", "gridDimY", "gridDimZ", "blockDimX", "blockDimY", "blockDimZ",
               "sharedMemBytes", "kernelParams", "extra", "kern", "ctx")  # fmt: skip
HIP_FIELDS = ("blockDim", "extra", "func", "gridDim", "kernelParams", "sharedMemBytes")


@pytest.mark.parametrize(
    ("vendor", "structure", "fields"),
    [(0, CudaKernelNodeParams, CUDA_FIELDS), (1, HipKernelNodeParams, HIP_FIELDS)],
)
def test_fields_lie_where_a_compiler_puts_what_the_headers_declare(
    vendor: int, structure: type[ctypes.Structure], fields: tuple[str, ...], played_library: Path
) -> None:
    library = ctypes.CDLL(str(played_library))
    library.fake_offset.restype = ctypes.c_size_t
    offsets = [library.fake_offset(vendor, place) for place in range(len(fields) + 1)]
    found: list[Any] = [getattr(structure, name).offset for name in fields]
    assert offsets == [*found, ctypes.sizeof(structure)]
    assert [name for name, *_ in structure._fields_] == list(fields)


def test_fields_lie_where_nvidias_own_bindings_have_them() -> None:
    driver = pytest.importorskip("cuda.bindings.driver", reason="cuda-bindings is not installed")
    theirs = driver.CUDA_KERNEL_NODE_PARAMS_v2()
    assert {name for name in dir(theirs) if name in CUDA_FIELDS} == set(CUDA_FIELDS)
    ours = CudaKernelNodeParams.from_address(theirs.getPtr())
    for number, name in enumerate(CUDA_FIELDS[1:8], start=3):
        setattr(theirs, name, number)
        assert getattr(ours, name) == number
    theirs.func, theirs.kern, theirs.ctx = (
        driver.CUfunction(0x111),
        driver.CUkernel(0x222),
        driver.CUcontext(0x333),
    )
    assert (ours.func, ours.kern, ours.ctx) == (0x111, 0x222, 0x333)
    ours.extra = 0x444
    assert int(theirs.extra) == 0x444
    names = ("cuGraphExecKernelNodeSetParams", "cuFuncGetParamInfo", "cuKernelGetParamInfo")
    assert all(hasattr(driver, name) for name in names)
    assert driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_KERNEL.value == 0
    assert driver.CUresult.CUDA_ERROR_LOSSY_QUERY.value == 402
    attributes = driver.CUlaunchAttributeID
    assert attributes.CU_LAUNCH_ATTRIBUTE_COOPERATIVE.value == 2
    assert attributes.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION.value == 4
    assert attributes.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION.value == 6
    active = driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_ACTIVE
    assert active.value == 1


def test_fields_lie_where_amds_own_bindings_have_them() -> None:
    """Not a dependency: ``RETUNED_TEST_ROCM_BINDINGS`` may name a folder with the package."""
    folder = os.environ.get("RETUNED_TEST_ROCM_BINDINGS")
    if folder:
        sys.path.append(folder)
    try:
        hip: Any = importlib.import_module("rocm.bindings.hip")
    except ImportError:
        pytest.skip("rocm-bindings-hip is not installed")
    finally:
        if folder:
            sys.path.remove(folder)
    theirs = hip.hipKernelNodeParams()
    assert theirs.c_sizeof() == ctypes.sizeof(HipKernelNodeParams)
    ours = HipKernelNodeParams.from_buffer(bytearray(64))
    seen = hip.hipKernelNodeParams.fromObj(ctypes.addressof(ours))
    ours.gridDim.x, ours.gridDim.y, ours.gridDim.z = 3, 4, 5
    ours.blockDim.x, ours.blockDim.y, ours.blockDim.z = 6, 7, 8
    ours.sharedMemBytes = 9
    ours.func, ours.kernelParams, ours.extra = 0x111, 0x222, 0x333
    assert (seen.gridDim.x, seen.gridDim.y, seen.gridDim.z) == (3, 4, 5)
    assert (seen.blockDim.x, seen.blockDim.y, seen.blockDim.z) == (6, 7, 8)
    assert seen.sharedMemBytes == 9
    for name, value in (("func", 0x111), ("kernelParams", 0x222), ("extra", 0x333)):
        found = getattr(seen, name)
        assert int(getattr(found, "_ptr", None) or found.as_c_void_p().value) == value
    assert int(hip.hipGraphNodeType.hipGraphNodeTypeKernel) == 0
    assert int(hip.hipStreamCaptureStatus.hipStreamCaptureStatusActive) == 1
    for name in required_calls("amd"):
        assert hasattr(hip, name), name


def hip_library() -> str | None:
    """A real libamdhip64, where there is one; ``RETUNED_TEST_HIP_LIBRARY`` may name it."""
    named = os.environ.get("RETUNED_TEST_HIP_LIBRARY")
    found = named or ctypes.util.find_library("amdhip64")
    return found if found and (not named or Path(named).exists()) else None


PROBE = """
import ctypes, sys
from retuned.runtime.graphs.calls import GraphCalls
from retuned.runtime.graphs.vendors import required_calls
from retuned.runtime.native.gpu_driver import DriverFailed, GpuDriver
from retuned.runtime.graphs.structures import HipKernelNodeParams, KernelParams, pack
from retuned.runtime.schema import Refused

path = sys.argv[1]
library = ctypes.CDLL(path)
missing = [name for name in required_calls("amd") if not hasattr(library, name)]
print("missing", missing)
try:
    GpuDriver("amd", library=path)
    print("device")
except Refused as error:
    print("refused", error.reason)
driver = object.__new__(GpuDriver)
from retuned.runtime.native import gpu_driver
driver._names, driver.vendor, driver.device = gpu_driver._INTERFACES["amd"], "amd", 0
driver._library, driver._broken = library, None
calls = GraphCalls(driver)
launch = pack(KernelParams(function=0, grid=(1, 1, 1), block=(1, 1, 1), shared_bytes=0,
                           arguments=(bytes(8),)), ((0, 8),), vendor="amd")
for name, call in (
    ("nodes", lambda: calls.nodes(0)),
    ("kind", lambda: calls.is_kernel(0)),
    ("params", lambda: calls.raw_params(0)),
    ("dependencies", lambda: calls.dependencies(0)),
    ("set_node", lambda: calls.set_node(0, launch)),
    ("set_exec", lambda: calls.set_exec(0, 0, launch)),
):
    try:
        call()
        print(name, "answered")
    except DriverFailed as error:
        print(name, "failed", error.code)
"""


def test_every_call_of_amds_own_library_is_there_and_refuses_what_is_no_graph() -> None:
    library = hip_library()
    if library is None:
        pytest.skip("libamdhip64 is not installed")
    done = subprocess.run(
        [sys.executable, "-c", PROBE, library],
        env=os.environ | {"PYTHONPATH": ":".join(sys.path)},
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert lines[:1] == ["missing []"], done.stdout + done.stderr[-2000:]
    calls = ("nodes", "kind", "params", "dependencies", "set_node", "set_exec")
    answers = dict(line.split(" ", 1) for line in lines[2:])
    assert set(answers) == set(calls), done.stdout + done.stderr[-2000:]
    assert all(answer.startswith("failed") for answer in answers.values()), answers


SIZES = st.lists(st.sampled_from([1, 2, 4, 8, 16]), max_size=40)


def laid_out(sizes: Sequence[int]) -> list[tuple[int, int]]:
    found, end = [], 0
    for size in sizes:
        start = -(-end // size) * size
        found.append((start, size))
        end = start + size
    return found


@given(sizes=SIZES, data=st.data(), vendor=st.sampled_from(["nvidia", "amd"]))
def test_what_is_packed_comes_back(sizes: list[int], data: st.DataObject, vendor: str) -> None:
    number = st.integers(0, 2**31)
    params = KernelParams(
        function=data.draw(st.integers(1, 2**47)),
        grid=(data.draw(number), data.draw(number), data.draw(number)),
        block=(data.draw(number), data.draw(number), data.draw(number)),
        shared_bytes=data.draw(number),
        arguments=tuple(data.draw(st.binary(min_size=size, max_size=size)) for size in sizes),
    )
    layout = check_layout(laid_out(sizes))
    packed = pack(params, layout, vendor=vendor)
    assert unpack(packed.structure, layout, vendor=vendor) == params


@pytest.mark.parametrize(
    "layout", [[(8, 8), (0, 8)], [(0, 8), (4, 4)], [(0, 0)], [(-1, 4)], [(0, 40_000)]]
)
def test_a_layout_that_no_kernel_has_is_not_believed(layout: list[tuple[int, int]]) -> None:
    with pytest.raises(Refused) as caught:
        check_layout(layout)
    assert caught.value.reason == "layout-unknown"


def test_a_node_with_fewer_arguments_than_its_kernel_is_refused() -> None:
    params = KernelParams(
        function=1, grid=(1, 1, 1), block=(1, 1, 1), shared_bytes=0, arguments=(bytes(8),)
    )
    packed = pack(params, ((0, 8),), vendor="nvidia")
    room = (ctypes.c_void_p * 2)(ctypes.addressof(packed.held[0][0]), None)
    packed.structure.kernelParams = ctypes.addressof(room)
    with raises_code(Refused, "layout-differs"):
        unpack(packed.structure, ((0, 8), (8, 4)), vendor="nvidia")
    packed.structure.kernelParams = None
    with raises_code(Refused, "layout-differs"):
        unpack(packed.structure, ((0, 8),), vendor="nvidia")

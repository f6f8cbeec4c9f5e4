"""Both vendors' drivers behind one interface, on one that plays a device in our memory."""

from __future__ import annotations

import ctypes
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.expect import raises_code
from tests.lab.gpu_cpp.emulator import build_driver, emulate

from retuned.contract import Language, Solution, SourceFile
from retuned.runtime.native.gpu_driver import DriverFailed, GpuDriver, driver_of
from retuned.runtime.native.gpu_launch import GpuKernel
from retuned.runtime.schema import Refused

SOURCE = """#include "retuned_device.h"
extern "C" __global__ void triple(const float* x, float* y, index_t M) {
  const index_t at = block_x() * BLOCK_X + thread_x();
  if (at < M) y[at] = 3.0f * x[at];
}
"""
REVERSE = """#include "retuned_device.h"
extern "C" __global__ void reverse(const float* x, float* y, index_t M) {
  extern __shared__ float room[];
  room[thread_x()] = x[block_x() * BLOCK_X + thread_x()];
  sync();
  y[block_x() * BLOCK_X + thread_x()] = room[BLOCK_X - 1 - thread_x()];
}
"""
WILD = SOURCE.replace("y[at]", "y[at + (1ll << 44)]").replace("triple", "wild")
VENDORS = ("nvidia", "amd")


def image_of(text: str) -> bytes:
    """An ELF file with nothing but a mark in it: played devices know code by its hash."""
    mark = text.encode()
    head = bytearray(64)
    head[:6] = b"\x7fELF\x02\x01"
    struct.pack_into("<Q", head, 40, 64 + len(mark))
    return bytes(head) + mark


def solution(text: str, entry: str, **params: int) -> Solution:
    return Solution(
        name=entry,
        definition="d",
        language=Language.GPU_CPP,
        entry=entry,
        sources=(SourceFile(path="kernel.cu", content=text),),
        structure="s",
        params={"BLOCK_X": 64, **params},
        grid=("cdiv(M, BLOCK_X)",),
    )


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = build_driver(tmp_path_factory.mktemp("driver"))
    for made in (solution(SOURCE, "triple"), solution(REVERSE, "reverse"), solution(WILD, "wild")):
        emulate(made, image_of(made.sources[0].content), driver=path)
    return path


@pytest.fixture
def fake(library: Path) -> ctypes.CDLL:
    return ctypes.CDLL(str(library))


@pytest.fixture(params=VENDORS)
def driver(request: pytest.FixtureRequest, library: Path) -> GpuDriver:
    return GpuDriver(request.param, library=str(library))


Load = Callable[..., GpuKernel]


@pytest.fixture
def load(driver: GpuDriver) -> Iterator[Load]:
    made: list[GpuKernel] = []

    def loaded(text: str = SOURCE, entry: str = "triple", **params: int) -> GpuKernel:
        made.append(
            GpuKernel(
                image_of(text),
                entry=entry,
                params={"BLOCK_X": 64, **params},
                grid=("cdiv(M, BLOCK_X)",),
                tensors=2,
                axes=["M"],
                driver=driver,
            )
        )
        return made[-1]

    yield loaded
    for kernel in made:
        kernel.unload()


def floats(count: int) -> np.ndarray:
    """Numbers at a multiple of 64 bytes, as devices give memory."""
    raw = np.zeros(4 * count + 64, np.uint8)
    start = -raw.ctypes.data % 64
    found = raw[start : start + 4 * count].view(np.float32)
    found[:] = np.arange(count)
    return found


def test_a_kernel_runs_over_its_grid_at_every_length(load: Load) -> None:
    kernel = load()
    for count in (1, 64, 65, 1000):
        x, y = floats(count), floats(count + 1)
        kernel.launch([x.ctypes.data, y.ctypes.data], [count])
        assert (y[:-1] == 3 * x).all()
        assert y[-1] == count, "beyond the last element nothing is written"


def test_shared_memory_of_a_launch_comes_from_its_parameter(load: Load) -> None:
    kernel = load(REVERSE, "reverse", SHARED_BYTES=100_000)  # as large as must be asked for
    x, y = floats(64), floats(64)
    kernel.launch([x.ctypes.data, y.ctypes.data], [64])
    assert (y == x[::-1]).all()


def test_more_shared_memory_than_the_device_has_is_out_of_resources(load: Load) -> None:
    with pytest.raises(DriverFailed) as caught:
        load(REVERSE, "reverse", SHARED_BYTES=240_000)
    assert caught.value.reason == "out-of-resources"
    assert caught.value.code == 1
    assert "FuncSetAttribute returned 1 (ERROR_INVALID_VALUE)" in str(caught.value)


def test_a_launch_goes_into_the_stream_that_is_named(load: Load, fake: ctypes.CDLL) -> None:
    x, y = floats(3), floats(3)
    load().launch([x.ctypes.data, y.ctypes.data], [3], stream=0x7F00_1234_5678)
    fake.fake_last_stream.restype = ctypes.c_uint64
    assert fake.fake_last_stream() == 0x7F00_1234_5678


def test_every_thread_may_launch_though_contexts_belong_to_threads(load: Load) -> None:
    kernel, wrong = load(), []

    def many(seed: int) -> None:
        x, y = floats(100), floats(100)
        x += seed
        for _ in range(50):
            y[:] = 0.0
            kernel.launch([x.ctypes.data, y.ctypes.data], [100])
            if not (y == 3 * x).all():
                wrong.append(seed)

    threads = [threading.Thread(target=many, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_wrong_symbol_is_an_entry_missing_and_nothing_stays_loaded(
    load: Load, fake: ctypes.CDLL
) -> None:
    before = fake.fake_loaded()
    with pytest.raises(Refused) as caught:
        load(SOURCE, "other")
    assert caught.value.reason == "entry-missing"
    assert fake.fake_loaded() == before


@pytest.mark.parametrize(
    ("image", "reason"),
    [(b"no object at all" * 8, "load-failed"), (image_of("for another device"), "wrong-arch")],
)
def test_what_the_device_cannot_run_is_refused_when_it_is_loaded(
    image: bytes, reason: str, driver: GpuDriver
) -> None:
    with pytest.raises(DriverFailed) as caught:
        driver.load(image)
    assert caught.value.reason == reason
    assert not caught.value.sticky


@pytest.mark.parametrize(("code", "reason"), [(2, "out-of-memory"), (999, "driver-failed")])
def test_an_error_of_loading_is_named_and_passes(
    code: int, reason: str, load: Load, fake: ctypes.CDLL
) -> None:
    fake.fake_fail_next(code)
    with pytest.raises(DriverFailed) as caught:
        load()
    assert (caught.value.reason, caught.value.code) == (reason, code)
    x, y = floats(5), floats(5)
    load().launch([x.ctypes.data, y.ctypes.data], [5])
    assert (y == 3 * x).all()


def test_a_launch_without_resources_is_refused_and_the_next_one_runs(
    load: Load, fake: ctypes.CDLL
) -> None:
    kernel, x, y = load(), floats(5), floats(5)
    fake.fake_fail_next(701)
    with pytest.raises(DriverFailed) as caught:
        kernel.launch([x.ctypes.data, y.ctypes.data], [5])
    assert caught.value.reason == "out-of-resources"
    kernel.launch([x.ctypes.data, y.ctypes.data], [5])
    assert (y == 3 * x).all()


@pytest.mark.parametrize(
    ("pointers", "lengths", "reason"),
    [([64, 68], [5], "tensor-unaligned"), ([64], [5], "contract-violated"),
     ([64, 128], [0], "grid-invalid")],
)  # fmt: skip
def test_a_launch_that_cannot_be_right_never_reaches_the_device(
    pointers: list[int], lengths: list[int], reason: str, load: Load, fake: ctypes.CDLL
) -> None:
    kernel, before = load(), fake.fake_launched()
    with pytest.raises(Refused) as caught:
        kernel.launch(pointers, lengths)
    assert caught.value.reason == reason
    assert fake.fake_launched() == before


def test_what_was_unloaded_is_not_launched(load: Load, fake: ctypes.CDLL) -> None:
    kernel, before = load(), fake.fake_loaded()
    kernel.unload()
    assert fake.fake_loaded() == before - 1
    with pytest.raises(Refused) as caught:
        kernel.launch([64, 128], [5])
    assert caught.value.reason == "unloaded"
    kernel.unload()  # again, and nothing happens


FAULT = """
import sys
sys.path[:0] = sys.argv[2].split(":")
from retuned.runtime.native.gpu_driver import GpuDriver, driver_of
from retuned.runtime.native.gpu_launch import GpuKernel
from retuned.runtime.schema import Refused
from tests.runtime.test_gpu_driver import SOURCE, WILD, floats, image_of

driver = driver_of(sys.argv[3], library=sys.argv[1])
def load(text, entry):
    return GpuKernel(image_of(text), entry=entry, params={"BLOCK_X": 64}, grid=("1",), tensors=2,
                     axes=["M"], driver=driver)
good, wild, x, y = load(SOURCE, "triple"), load(WILD, "wild"), floats(9), floats(9)
wild.launch([x.ctypes.data, y.ctypes.data], [9])
for step in (lambda: driver.wait(), lambda: good.launch([x.ctypes.data, y.ctypes.data], [9]),
             lambda: load(SOURCE, "triple"), lambda: good.unload()):
    try:
        step()
        print("went on")
    except Refused as error:
        print(error.reason, error.detail)
"""


@pytest.mark.parametrize("vendor", VENDORS)
def test_a_fault_shows_at_the_next_call_and_sticks(vendor: str, library: Path) -> None:
    paths = ":".join(path for path in [str(Path(__file__).parents[2]), *sys.path] if path)
    done = subprocess.run(
        [sys.executable, "-c", FAULT, str(library), paths, vendor],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert len(lines) == 4, done.stderr[-2000:]
    assert all(line.startswith("device-lost") for line in lines), lines
    assert "returned 700 (ERROR_ILLEGAL_ADDRESS)" in lines[0]
    assert all(line == lines[0] for line in lines), "the first error is told each time"


def test_a_driver_that_is_not_there_is_missing() -> None:
    with raises_code(Refused, "driver-missing") as caught:
        GpuDriver("nvidia", library="/nowhere/libcuda.so.1")
    assert caught.value.reason == "driver-missing"


def test_a_library_that_is_no_driver_is_missing() -> None:
    with raises_code(Refused, "driver-missing") as caught:
        GpuDriver("amd", library="libc.so.6")
    assert caught.value.reason == "driver-missing"


def test_one_driver_serves_a_process(library: Path) -> None:
    assert driver_of("amd", library=str(library)) is driver_of("amd", library=str(library))


def test_a_device_that_is_not_there_is_no_device(library: Path) -> None:
    with pytest.raises(DriverFailed) as caught:
        GpuDriver("nvidia", device=3, library=str(library))
    assert caught.value.code == 101

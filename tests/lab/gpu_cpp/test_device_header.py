"""The header of device sources: its number formats give the bits that everybody else gives."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.lab.gpu_cpp.emulator import emulate
from tests.runtime.test_gpu_driver import image_of, solution

TYPES: dict[str, Any] = {
    "bf16": ml_dtypes.bfloat16,
    "fp16": np.float16,
    "fp8_e4m3fn": ml_dtypes.float8_e4m3fn,
    "fp8_e4m3fnuz": ml_dtypes.float8_e4m3fnuz,
}
CASES = "".join(
    f"""
  if (kind == {number}) {{
    if (back) ((float*)y)[at] = to_float(((const {name}*)x)[at]);
    else (({name}*)y)[at] = from_float<{name}>(((const float*)x)[at]);
  }}"""
    for number, name in enumerate(TYPES)
)
SOURCE = f"""#include "retuned_device.h"
extern "C" __global__ void convert(const void* x, void* y, index_t M, index_t kind, index_t back) {{
  for (index_t at = thread_x(); at < M; at += BLOCK_X) {{{CASES}
  }}
}}
"""
BLOCKS = """#include "retuned_device.h"
extern "C" __global__ void reduce(const float* x, float* y, index_t M) {
  __shared__ float room[WARPS_PER_BLOCK];
  float value = flat_thread() < M ? x[flat_thread()] : 0.0f;
  float sum = block_sum(value, room), most = block_max(value, room);
  y[3 * flat_thread()] = sum;
  y[3 * flat_thread() + 1] = most;
  y[3 * flat_thread() + 2] = shuffle(value, 3);
}
"""


def made(folder: Path, text: str, entry: str, **params: int) -> Any:
    """Load a device source made for this processor."""
    path = emulate(
        solution(text, entry, **params), image_of(text + str(params)), driver=folder / "driver.so"
    )
    return ctypes.CDLL(str(path))


def run(library: Any, threads: tuple[int, int, int], *arguments: Any) -> None:
    three = ctypes.c_uint * 3
    words = [a.ctypes.data if isinstance(a, np.ndarray) else a for a in arguments]
    values = [ctypes.c_uint64(word) for word in words]
    table = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
    assert library.emulated_launch(three(1, 1, 1), three(*threads), 0, table) == 0


@pytest.fixture(scope="module")
def convert(tmp_path_factory: pytest.TempPathFactory) -> Any:
    library = made(tmp_path_factory.mktemp("convert"), SOURCE, "convert", BLOCK_X=32)

    def converted(x: Any, name: str) -> Any:
        kind = np.dtype(TYPES[name])
        back = x.dtype == kind
        y = np.empty(x.shape, np.float32 if back else kind)
        run(library, (32, 1, 1), x, y, x.size, list(TYPES).index(name), int(back))
        return y

    return converted


def numbers() -> Any:
    """Floats of every size, those between two neighbours of each format, and the odd ones."""
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2**32, 60_000, dtype=np.uint64).astype(np.uint32)
    small = (rng.standard_normal(40_000) * 2.0 ** rng.integers(-30, 12, 40_000)).astype(np.float32)
    every16 = (np.arange(2**16, dtype=np.uint32) << 16).view(np.float32)
    halves = (every16.view(np.uint32) | 0x8000).view(np.float32)
    fixed = [448, 464, 464.1, 480, 240, 248, 247.9, 256, 65504, 65519, 65520, 2**-9, 2**-10, 2**-11]
    ties = np.arange(1, 64, dtype=np.float32) * np.float32(2.0**-11)
    parts: list[Any] = [bits.view(np.float32), small, every16, halves, ties, -ties]
    parts.append(np.array(fixed, np.float32))
    return np.concatenate(parts)


@pytest.mark.parametrize("name", TYPES)
def test_floats_are_rounded_to_the_bits_of_everybody_else(name: str, convert: Any) -> None:
    x = numbers()
    with np.errstate(all="ignore"):
        want = x.astype(TYPES[name])
    got = convert(x, name)
    nan = np.isnan(want.astype(np.float32))
    assert (np.isnan(got.astype(np.float32)) == nan).all(), x[
        np.isnan(got.astype(np.float32)) != nan
    ][:8]
    raw = np.dtype(f"u{want.itemsize}")
    differ = (got.view(raw) != want.view(raw)) & ~nan
    assert not differ.any(), list(
        zip(x[differ][:8], got[differ][:8], want[differ][:8], strict=True)
    )


@pytest.mark.parametrize("name", TYPES)
def test_every_value_of_a_format_is_widened_exactly(name: str, convert: Any) -> None:
    kind = np.dtype(TYPES[name])
    x = np.arange(2 ** (8 * kind.itemsize), dtype=np.dtype(f"u{kind.itemsize}")).view(kind)
    want, got = x.astype(np.float32), convert(x, name)
    assert ((got == want) | (np.isnan(got) & np.isnan(want))).all()


@pytest.mark.parametrize("block", [(32, 1, 1), (64, 1, 1), (32, 4, 2)])
def test_sums_and_maxima_of_a_block_are_the_same_in_all_its_threads(
    block: tuple[int, int, int], tmp_path: Path
) -> None:
    names = dict(zip(("BLOCK_X", "BLOCK_Y", "BLOCK_Z"), block, strict=True))
    library = made(tmp_path, BLOCKS, "reduce", **names)
    threads = block[0] * block[1] * block[2]
    x = np.random.default_rng(1).integers(-100, 100, threads).astype(np.float32)
    y = np.zeros((threads, 3), np.float32)
    run(library, block, x, y, threads)
    assert (y[:, 0] == x.sum()).all()
    assert (y[:, 1] == x.max()).all()
    assert (y[:, 2] == x[np.arange(threads) // 32 * 32 + 3]).all()

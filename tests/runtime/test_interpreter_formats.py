"""Triton's interpreter casts as GPUs and PyTorch do, once it is mended."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from triton.runtime import interpreter  # noqa: E402

from retuned.runtime.triton.interpret import mend_interpreter  # noqa: E402

tl: Any = interpreter.tl
Array = npt.NDArray[Any]
FLOAT8 = {"float8e4nv": (torch.float8_e4m3fn, 448.0), "float8e4b8": (torch.float8_e4m3fnuz, 240.0)}


mend_interpreter()
mend_interpreter()  # again changes nothing


def cast(values: Array, source: Any, target: Any) -> Array:
    handle = interpreter.TensorHandle(values, source)
    found: Array = interpreter.interpreter_builder.cast_impl(handle, target).data
    return found


@settings(deadline=None)
@given(arrays(np.float32, (3, 7), elements=st.floats(width=32)))
def test_float32_is_rounded_to_bfloat16_as_pytorch_does(values: Array) -> None:
    ours = cast(values, tl.float32, tl.bfloat16)
    theirs = torch.from_numpy(values).to(torch.bfloat16)
    back = torch.from_numpy(ours.view(np.int16)).view(torch.bfloat16).float().numpy()
    np.testing.assert_array_equal(back, theirs.float().numpy())
    np.testing.assert_array_equal(cast(ours, tl.bfloat16, tl.float32), back)


@pytest.mark.parametrize("name", FLOAT8)
@settings(deadline=None)
@given(values=arrays(np.float32, 24, elements=st.floats(-2000, 2000, width=32)))
def test_float32_is_rounded_to_eight_bits_and_saturates(name: str, values: Array) -> None:
    kind, largest = FLOAT8[name]
    ours = cast(values, tl.float32, getattr(tl, name))
    theirs = torch.from_numpy(values).clamp(-largest, largest).to(kind)
    np.testing.assert_array_equal(ours, theirs.view(torch.uint8).numpy())


@pytest.mark.parametrize("name", FLOAT8)
def test_every_code_of_eight_bits_is_read_as_pytorch_reads_it(name: str) -> None:
    kind, largest = FLOAT8[name]
    codes = np.arange(256, dtype=np.uint8)
    theirs = torch.from_numpy(codes).view(kind).float().numpy()
    np.testing.assert_array_equal(cast(codes, getattr(tl, name), tl.float32), theirs)
    odd = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0], np.float32)
    kept = cast(cast(odd, tl.float32, getattr(tl, name)), getattr(tl, name), tl.float32)
    np.testing.assert_array_equal(kept, [np.nan, largest, -largest, 0.0, 0.0])


def test_whole_numbers_become_small_floats_and_back() -> None:
    whole = np.array([-128, -3, 0, 1, 127], np.int8)
    for target in (tl.bfloat16, tl.float8e4nv):
        there = cast(whole, tl.int8, target)
        back = cast(there, target, tl.int32)
        assert back.tolist()[:4] == whole.tolist()[:4]


@pytest.mark.parametrize("name", ["bfloat16", *FLOAT8])
def test_a_dot_of_small_floats_is_that_of_their_numbers(name: str) -> None:
    random = np.random.default_rng(1)
    kind = getattr(tl, name)
    numbers = [random.integers(-8, 9, shape).astype(np.float32) for shape in ((4, 8), (8, 4))]
    a, b = (interpreter.TensorHandle(cast(n, tl.float32, kind), kind) for n in numbers)
    acc = interpreter.TensorHandle(np.ones((4, 4), np.float32), tl.float32)
    found = interpreter.interpreter_builder.create_dot(a, b, acc, None, 0).data
    np.testing.assert_array_equal(found, numbers[0] @ numbers[1] + 1.0)

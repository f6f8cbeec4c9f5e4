"""The Triton launcher, in Triton's interpreter where there is no GPU."""

from __future__ import annotations

from typing import Any

import pytest
from tests.expect import raises_naming

from retuned.runtime.schema import Refused

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from retuned.runtime.triton.launch import TritonKernel  # noqa: E402

SOURCE = '''"""Row sums of a scaled sum, to have a bit of everything."""

import triton
import triton.language as tl

TWO = tl.constexpr(2.0)


@triton.jit
def twice(value):
    return value * TWO


@triton.jit
def scaled(x, y, out, scratch, M, N: tl.constexpr, BLOCK: tl.constexpr, MODE: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    keep = at < N
    a = tl.load(x + row * N + at, mask=keep, other=0.0)
    b = tl.load(y + row * N + at, mask=keep, other=0.0)
    if MODE == "double":
        a = twice(a)
    tl.store(scratch + row * N + at, a, mask=keep)
    tl.store(out + row * N + at, tl.load(scratch + row * N + at, mask=keep) + b, mask=keep)
'''


@pytest.fixture(autouse=True)
def interpreter() -> None:
    import triton

    if not triton.knobs.runtime.interpret:
        pytest.skip("runs in Triton's interpreter; tests/gpu has the same on a device")


def kernel(**changes: Any) -> TritonKernel:
    made: dict[str, Any] = {
        "entry": "scaled",
        "params": {"BLOCK": 64, "MODE": "double", "num_warps": 4, "num_stages": 2},
        "grid": ("M",),
        "tensors": ("x", "y", "out"),
        "axes": ("M", "N"),
        "scratch_bytes": 4 * 3 * 40,
    }
    made.update(changes)
    return TritonKernel(made.pop("source", SOURCE), **made)


def test_a_launch_binds_tensors_axes_params_and_scratch_by_name() -> None:
    x, y = torch.randn(3, 40), torch.randn(3, 40)
    out = torch.full((3, 40), float("nan"))
    kernel().launch([x, y, out], [3, 40])
    torch.testing.assert_close(out, 2 * x + y)


def test_text_params_choose_code() -> None:
    x, y, out = torch.randn(3, 40), torch.randn(3, 40), torch.empty(3, 40)
    kernel(params={"BLOCK": 64, "MODE": "plain"}).launch([x, y, out], [3, 40])
    torch.testing.assert_close(out, x + y)


def test_the_grid_follows_the_lengths_of_each_launch() -> None:
    ready = kernel()
    for rows in (1, 2, 3):
        x, y = torch.randn(rows, 40), torch.randn(rows, 40)
        out = torch.empty(rows, 40)
        ready.launch([x, y, out], [rows, 40])
        torch.testing.assert_close(out, 2 * x + y)


def test_only_constexpr_axes_make_other_code() -> None:
    binding = kernel().binding
    assert binding.runtime_axes == ("M",)
    assert binding.specialisation([3, 40]) == binding.specialisation([500, 40]) == (40,)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"params": {"BLOCK": 64}}, "'MODE' is not a tensor"),
        ({"params": {"BLOCK": 64, "MODE": "a", "EXTRA": 1}}, "EXTRA"),
        ({"params": {"BLOCK": 64, "MODE": "a", "num_warps": 3}}, "num_warps"),
        ({"params": {"BLOCK": 64, "MODE": "a", "num_warps": "4"}}, "num_warps"),
        ({"params": {"BLOCK": 64, "MODE": 1.5}}, "MODE"),
        ({"params": {"BLOCK": 64, "MODE": "a", "M": 3}}, "two things"),
        ({"tensors": ("x", "y", "out", "M")}, "two things"),
        ({"tensors": ("x", "out")}, "'y' is not a tensor"),
        ({"tensors": ("x", "y", "out", "MODE"), "params": {"BLOCK": 64}}, "constexpr"),
        ({"scratch_bytes": 0}, "scratch"),
        ({"grid": ("cdiv(M, MODE)",)}, "MODE"),
        ({"grid": ()}, "one to three"),
        ({"entry": "missing"}, "missing"),
        ({"source": SOURCE + "import os\n"}, "line"),
    ],
)
def test_what_cannot_be_bound_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(Refused, match=words):
        kernel(**changes)


def test_a_param_may_be_for_the_grid_alone() -> None:
    params = {"BLOCK": 64, "MODE": "double", "ROWS": 1}
    assert kernel(params=params, grid=("cdiv(M, ROWS)",)).binding.grid_at([5, 40]) == (5, 1, 1)


def test_a_tensor_that_is_not_aligned_is_refused() -> None:
    ready = kernel()
    x, y = torch.randn(121)[1:].view(3, 40), torch.randn(3, 40)
    with raises_naming(Refused, "unaligned"):
        ready.launch([x, y, torch.empty(3, 40)], [3, 40])


def test_a_length_that_is_no_int32_is_refused() -> None:
    with raises_naming(Refused, "2147483648"):
        kernel().at([2**31, 40], device=torch.device("cpu"))

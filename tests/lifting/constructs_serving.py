"""A server whose kernels use constructs of vLLM's kernels that lifting once refused.

Each kernel has the construct of a kernel of vLLM 0.26, and little else. Run as a program; it speaks
as ``serving.py``.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import torch
from tests.lifting import live
from tests.lifting.serving import serve

from retuned.runtime.intercept.hook import Interceptor
from retuned.runtime.triton.interpret import mend_interpreter

COLS, BLOCK = 96, 128
KERNELS = """
WIDTH = tl.constexpr(8)


@triton.jit
def output_type_kernel(out_ptr, x_ptr, scale, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n_cols + at, mask=at < n_cols, other=0.0).to(tl.float32)
    y = (x * scale).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + row * n_cols + at, y, mask=at < n_cols)


@triton.jit
def pointer_type_kernel(c_ptr, a_ptr, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    accumulator_dtype = c_ptr.type.element_ty
    a = tl.load(a_ptr + row * n_cols + at, mask=at < n_cols, other=0.0)
    total = tl.zeros((BLOCK,), dtype=accumulator_dtype) + (a * a).to(c_ptr.type.element_ty)
    tl.store(c_ptr + row * n_cols + at, total, mask=at < n_cols)


@triton.jit
def annotated_kernel(
    out_ptr, x_ptr: torch.Tensor, x_row_stride: tl.int64, x_col_stride: tl.int64, n_cols: int,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    where = row * x_row_stride + at * x_col_stride
    x = tl.load(x_ptr + where, mask=at < n_cols, other=0.0)
    tl.store(out_ptr + where, tl.exp(x), mask=at < n_cols)


@triton.jit
def shifted_kernel(out_ptr, x_ptr, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n_cols + at, mask=at < n_cols, other=2**6 - 1)
    bits = (63 << 24) + ((x & 7).to(tl.int32) << 22)
    y = bits.to(tl.float32, bitcast=True) * 2 ** (-24)
    tl.store(out_ptr + row * n_cols + at, y, mask=at < n_cols)


@triton.jit
def _grouped(x, GROUP: tl.constexpr = WIDTH):
    return x * GROUP


@triton.jit
def dependent_kernel(
    out_ptr, x_ptr, n_cols, USE_PDL: tl.constexpr, HAS_BIAS: tl.constexpr, BLOCK: tl.constexpr
):
    tl.static_assert(BLOCK % 8 == 0, f"BLOCK={BLOCK!r}")
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    if USE_PDL:
        tl.extra.cuda.gdc_wait()
    x = tl.load(x_ptr + row * n_cols + at, mask=at < n_cols, other=0.0)
    y = _grouped(x) if not HAS_BIAS else tl.device_print("bias", x)
    tl.store(out_ptr + row * n_cols + at, y, mask=at < n_cols)
    if USE_PDL:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def statistics_kernel(max_ptr, out_ptr, x_ptr, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    x = x_ptr + row * n_cols + at
    x = tl.load(x, mask=at < n_cols, other=0.0)
    max = tl.max(tl.where(at < n_cols, x, -float("inf")), axis=0)
    tl.store(max_ptr + row, max)
    tl.store(out_ptr + row * n_cols + at, tl.exp(x - max), mask=at < n_cols)


@triton.jit
def cache_type_kernel(out_ptr, k_ptr, scale, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    k = tl.load(k_ptr + row * n_cols + at, mask=at < n_cols, other=0.0)
    if k.dtype.is_fp8():
        k = (k.to(tl.float32) * scale).to(tl.float16)
    tl.store(out_ptr + row * n_cols + at, k + 1.0, mask=at < n_cols)
"""


def kernels(folder: Path) -> Any:
    """Write the kernels to a file, as a package has them, and import it."""
    path = folder / "constructs_ops.py"
    path.write_text("import torch\n" + live.HEADER + KERNELS)
    spec = importlib.util.spec_from_file_location("constructs_ops", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["constructs_ops"] = module
    spec.loader.exec_module(module)
    return module


def numbers(rows: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.linspace(-1.0, 1.0, rows * COLS).reshape(rows, COLS).to(dtype)


def launched(ops: Any, rows: int) -> dict[str, torch.Tensor]:
    """Launch every kernel once; return what it wrote."""
    x = numbers(rows)
    codes = torch.arange(rows * COLS, dtype=torch.uint8).reshape(rows, COLS)
    out = {name: torch.empty(rows, COLS) for name in ("annotated", "shifted", "dependent")}
    out |= {"statistics": torch.empty(rows, COLS), "maxima": torch.empty(rows)}
    half = ("output_type", "pointer_type", "cache_type")
    out |= {name: torch.empty(rows, COLS, dtype=torch.float16) for name in half}
    ops.output_type_kernel[(rows,)](out["output_type"], x, 0.3, COLS, BLOCK=BLOCK)
    ops.pointer_type_kernel[(rows,)](out["pointer_type"], x, COLS, BLOCK=BLOCK)
    ops.annotated_kernel[(rows,)](out["annotated"], x, COLS, 1, COLS, BLOCK=BLOCK)
    ops.shifted_kernel[(rows,)](out["shifted"], codes, COLS, BLOCK=BLOCK)
    ops.dependent_kernel[(rows,)](out["dependent"], x, COLS, False, False, BLOCK=BLOCK)
    ops.statistics_kernel[(rows,)](out["maxima"], out["statistics"], x, COLS, BLOCK=BLOCK)
    ops.cache_type_kernel[(rows,)](out["cache_type"], x.half(), 0.3, COLS, BLOCK=BLOCK)
    return out


def main() -> None:
    """Launch, show, swap, launch again."""
    mend_interpreter()
    ops = kernels(Path(sys.argv[1]))
    hook = Interceptor()
    hook.install()

    def ask() -> None:
        for rows in (1, 5, 2):
            launched(ops, rows)

    def answers() -> dict[str, list[Any]]:
        return {name: tensor.tolist() for name, tensor in launched(ops, 5).items()}

    serve(ask, answers, hook=hook)


if __name__ == "__main__":
    main()

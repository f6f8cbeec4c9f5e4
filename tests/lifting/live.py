"""Kernels as third parties write them, and launches of them as the runtime reports them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

HEADER = "import triton\nimport triton.language as tl\n"

RMSNORM = """
from triton.language.extra.libdevice import rsqrt as rsqrt
CASTING_NONE = tl.constexpr(-1)
CASTING_LLAMA = tl.constexpr(0)


@triton.jit
def _rms_norm_forward(
    Y_ptr, Y_row_stride, X_ptr, X_row_stride, W_ptr, W_row_stride, RSTD_ptr, RSTD_row_stride,
    n_cols, eps, offset, casting_mode: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):
    '''One row per program.'''
    row_idx = tl.program_id(0).to(tl.int64)
    col_offsets = tl.arange(0, BLOCK_SIZE)
    mask = col_offsets < n_cols
    Y_ptr += row_idx * Y_row_stride
    X_ptr += row_idx * X_row_stride
    RSTD_ptr += row_idx * RSTD_row_stride
    X_row = tl.load(X_ptr + col_offsets, mask=mask, other=0)
    X_dtype = X_row.dtype
    W_row = tl.load(W_ptr + col_offsets, mask=mask, other=0)
    if casting_mode == CASTING_LLAMA:
        X_row = X_row.to(tl.float32)
    if casting_mode == CASTING_NONE:
        eps = eps.to(X_dtype)
    mean_square = tl.sum(X_row * X_row, axis=0) / n_cols
    rstd = rsqrt(mean_square + eps)
    tl.store(RSTD_ptr, rstd)
    X_row = X_row * rstd
    if casting_mode == CASTING_LLAMA:
        X_row = X_row.to(X_dtype)
    Y_row = X_row * (offset + W_row)
    tl.store(Y_ptr + col_offsets, Y_row, mask=mask)
"""

SWIGLU = """
@triton.jit
def silu(x):
    return x * tl.sigmoid(x)


@triton.jit
def _swiglu_forward_kernel(
    a_ptr, b_ptr, c_ptr, stride, n_cols: tl.constexpr, BLOCK_SIZE: tl.constexpr
):
    program_id = tl.program_id(0).to(tl.int64)
    a_ptr += program_id * stride
    b_ptr += program_id * stride
    c_ptr += program_id * stride
    col_offsets = tl.arange(0, BLOCK_SIZE)
    mask = col_offsets < n_cols
    a_row = tl.load(a_ptr + col_offsets, mask=mask, other=0).to(tl.float32)
    b_row = tl.load(b_ptr + col_offsets, mask=mask, other=0)
    c_row = silu(a_row).cast(b_row.dtype) * b_row
    tl.store(c_ptr + col_offsets, c_row, mask=mask)
"""

LAYER_NORM = """
@triton.jit
def layer_norm_fwd(
    X, Y, W, B, Mean, Rstd, stride, N, eps, SAVE: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0)
    X += row * stride
    Y += row * stride
    cols = tl.arange(0, BLOCK)
    mask = cols < N
    x = tl.load(X + cols, mask=mask, other=0.0).to(tl.float32)
    mean = tl.sum(x, axis=0) / N
    x_zm = tl.where(mask, x - mean, 0.0)
    var = tl.sum(x_zm * x_zm, axis=0) / N
    rstd = 1 / tl.sqrt(var + eps)
    if SAVE:
        tl.store(Mean + row, mean)
        tl.store(Rstd + row, rstd)
    w = tl.load(W + cols, mask=mask).to(tl.float32)
    b = tl.load(B + cols, mask=mask).to(tl.float32)
    tl.store(Y + cols, x_zm * rstd * w + b, mask=mask)
"""
BARE_LAYER_NORM = (
    LAYER_NORM.replace("Mean, Rstd, ", "")
    .replace("SAVE: tl.constexpr, ", "")
    .replace(
        "    if SAVE:\n        tl.store(Mean + row, mean)\n        tl.store(Rstd + row, rstd)\n", ""
    )
)

ADD_RMS_NORM = """
@triton.jit
def _fused_add_rms_norm(
    Y_ptr, S_ptr, X_ptr, R_ptr, W_ptr, stride, n_cols, eps, BLOCK_SIZE: tl.constexpr
):
    row_idx = tl.program_id(0).to(tl.int64)
    col_offsets = tl.arange(0, BLOCK_SIZE)
    mask = col_offsets < n_cols
    X_row = tl.load(X_ptr + row_idx * stride + col_offsets, mask=mask, other=0)
    R_row = tl.load(R_ptr + row_idx * stride + col_offsets, mask=mask, other=0)
    S_row = X_row + R_row
    tl.store(S_ptr + row_idx * stride + col_offsets, S_row, mask=mask)
    W_row = tl.load(W_ptr + col_offsets, mask=mask, other=0)
    S_wide = S_row.to(tl.float32)
    rstd = tl.rsqrt(tl.sum(S_wide * S_wide, axis=0) / n_cols + eps)
    Y_row = (S_wide * rstd).to(S_row.dtype) * W_row
    tl.store(Y_ptr + row_idx * stride + col_offsets, Y_row, mask=mask)
"""

MATMUL = """
@triton.jit
def matmul_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K,
    stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    BLOCK_SIZE_M: tl.constexpr, BLOCK_SIZE_N: tl.constexpr, BLOCK_SIZE_K: tl.constexpr,
    GROUP_SIZE_M: tl.constexpr, ACTIVATION: tl.constexpr,
):
    pid = tl.program_id(axis=0)
    num_pid_m = tl.cdiv(M, BLOCK_SIZE_M)
    num_pid_n = tl.cdiv(N, BLOCK_SIZE_N)
    num_pid_in_group = GROUP_SIZE_M * num_pid_n
    group_id = pid // num_pid_in_group
    first_pid_m = group_id * GROUP_SIZE_M
    group_size_m = min(num_pid_m - first_pid_m, GROUP_SIZE_M)
    pid_m = first_pid_m + ((pid % num_pid_in_group) % group_size_m)
    pid_n = (pid % num_pid_in_group) // group_size_m
    offs_am = (pid_m * BLOCK_SIZE_M + tl.arange(0, BLOCK_SIZE_M)) % M
    offs_bn = (pid_n * BLOCK_SIZE_N + tl.arange(0, BLOCK_SIZE_N)) % N
    offs_k = tl.arange(0, BLOCK_SIZE_K)
    a_ptrs = a_ptr + (offs_am[:, None] * stride_am + offs_k[None, :] * stride_ak)
    b_ptrs = b_ptr + (offs_k[:, None] * stride_bk + offs_bn[None, :] * stride_bn)
    accumulator = tl.zeros((BLOCK_SIZE_M, BLOCK_SIZE_N), dtype=tl.float32)
    for k in range(0, tl.cdiv(K, BLOCK_SIZE_K)):
        a = tl.load(a_ptrs, mask=offs_k[None, :] < K - k * BLOCK_SIZE_K, other=0.0)
        b = tl.load(b_ptrs, mask=offs_k[:, None] < K - k * BLOCK_SIZE_K, other=0.0)
        accumulator = tl.dot(a, b, accumulator)
        a_ptrs += BLOCK_SIZE_K * stride_ak
        b_ptrs += BLOCK_SIZE_K * stride_bk
    if ACTIVATION == "leaky_relu":
        accumulator = tl.where(accumulator >= 0, accumulator, 0.01 * accumulator)
    c = accumulator.to(tl.float16)
    offs_cm = pid_m * BLOCK_SIZE_M + tl.arange(0, BLOCK_SIZE_M)
    offs_cn = pid_n * BLOCK_SIZE_N + tl.arange(0, BLOCK_SIZE_N)
    c_ptrs = c_ptr + stride_cm * offs_cm[:, None] + stride_cn * offs_cn[None, :]
    c_mask = (offs_cm[:, None] < M) & (offs_cn[None, :] < N)
    tl.store(c_ptrs, c, mask=c_mask)
"""

SOFTMAX = """
@triton.jit
def softmax_kernel(
    output_ptr, input_ptr, input_row_stride, output_row_stride, n_rows, n_cols,
    BLOCK_SIZE: tl.constexpr,
):
    row_idx = tl.program_id(0)
    row = input_ptr + row_idx * input_row_stride
    running = -float("inf") + 0.0
    total = 0.0
    for start in range(0, n_cols, BLOCK_SIZE):
        at = start + tl.arange(0, BLOCK_SIZE)
        v = tl.load(row + at, mask=at < n_cols, other=-float("inf"))
        new = tl.maximum(running, tl.max(v, axis=0))
        total = total * tl.exp(running - new) + tl.sum(tl.exp(v - new), axis=0)
        running = new
    for start in range(0, n_cols, BLOCK_SIZE):
        at = start + tl.arange(0, BLOCK_SIZE)
        v = tl.load(row + at, mask=at < n_cols, other=-float("inf"))
        tl.store(
            output_ptr + row_idx * output_row_stride + at, tl.exp(v - running) / total,
            mask=at < n_cols,
        )
"""

SCALE = """
@triton.jit
def _one(x, scale):
    return x * scale


@triton.jit
def scale_kernel(x_ptr, out_ptr, n_elements, scale, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    offsets = pid * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n_elements
    x = tl.load(x_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, _one(x, scale) + x * x, mask=mask)
"""

QUANT = """
@triton.jit
def _quantize_rows(x_ptr, q_ptr, s_ptr, row_size, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < row_size
    x = tl.load(x_ptr + row * row_size + cols, mask=mask, other=0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(x), axis=0) / 127.0, 1e-8)
    q = tl.floor(x / scale + 0.5)
    tl.store(q_ptr + row * row_size + cols, q.to(tl.int8), mask=mask)
    tl.store(s_ptr + row, scale)
"""

ROPE_IN_PLACE = """
@triton.jit
def _triton_rope(q_ptr, q_row_stride, cos_ptr, sin_ptr, hd: tl.constexpr, BLOCK: tl.constexpr):
    pid = tl.program_id(0).to(tl.int64)
    q_ptr = q_ptr + pid * q_row_stride
    at = tl.arange(0, BLOCK)
    half = at < hd // 2
    cos = tl.load(cos_ptr + pid * (hd // 2) + at, mask=half, other=0)
    sin = tl.load(sin_ptr + pid * (hd // 2) + at, mask=half, other=0)
    one = tl.load(q_ptr + at, mask=half, other=0)
    two = tl.load(q_ptr + hd // 2 + at, mask=half, other=0)
    tl.store(q_ptr + at, one * cos - two * sin, mask=half)
    tl.store(q_ptr + hd // 2 + at, two * cos + one * sin, mask=half)
"""

ROPE = (
    ROPE_IN_PLACE.replace("(q_ptr, q_row", "(q_ptr, o_ptr, q_row")
    .replace("    at = tl.arange", "    o_ptr = o_ptr + pid * q_row_stride\n    at = tl.arange")
    .replace("tl.store(q_ptr", "tl.store(o_ptr")
)

GROWING = """
@triton.jit
def growing_kernel(x_ptr, n_elements, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n_elements)
    tl.store(x_ptr + at, x * x * 1e4 + 3.0, mask=at < n_elements)
"""
"""Writes over what it reads; applied four times, it leaves float32."""

CROSS_ENTROPY = """
@triton.jit
def cross_entropy_kernel(
    X_ptr, X_stride, Y_ptr, loss_ptr, n_cols, ignore_index, BLOCK_SIZE: tl.constexpr
):
    program_id = tl.program_id(0).to(tl.int64)
    y = tl.load(Y_ptr + program_id)
    X_ptr += program_id * X_stride
    m = -float("inf") + 0.0
    d = 0.0
    picked = tl.load(X_ptr + y).to(tl.float32)
    for i in range(0, n_cols, BLOCK_SIZE):
        at = i + tl.arange(0, BLOCK_SIZE)
        x = tl.load(X_ptr + at, mask=at < n_cols, other=-float("inf")).to(tl.float32)
        m_new = tl.maximum(m, tl.max(x))
        d = d * tl.exp(m - m_new) + tl.sum(tl.exp(x - m_new))
        m = m_new
    tl.store(loss_ptr + program_id, m + tl.log(d) - picked)
"""


def pointer(name: str, dtype: str, numel: int, **more: Any) -> dict[str, Any]:
    return {
        "name": name, "kind": "pointer", "dtype": dtype, "value": None, "numel": numel,
        "aligned16": True, **more,
    }  # fmt: skip


def number(name: str, value: int) -> dict[str, Any]:
    return {"name": name, "kind": "int", "dtype": "i32", "value": value, "numel": None}


def real(name: str, value: float) -> dict[str, Any]:
    return {"name": name, "kind": "float", "dtype": "fp32", "value": value, "numel": None}


def const(name: str, value: object) -> dict[str, Any]:
    return {"name": name, "kind": "constexpr", "dtype": "", "value": value, "numel": None}


def launch(
    text: str, entry: str, params: Sequence[dict[str, Any]], grid: Sequence[int], **more: Any
) -> dict[str, Any]:
    source = HEADER + text
    digest = "sha256:" + hashlib.sha256(source.encode()).hexdigest()
    return {
        "kernel": f"thirdparty.ops:{entry}",
        "source_digest": digest,
        "source": source,
        "params": list(params),
        "options": {"num_warps": 4, "num_stages": 3},
        "grid": list(grid),
        "grid_source": None,
        "count": 10,
        **more,
    }


def rmsnorm(rows: int, cols: int = 256, **more: Any) -> dict[str, Any]:
    block = 1 << (cols - 1).bit_length()
    params = [
        pointer("Y_ptr", "bfloat16", rows * cols), number("Y_row_stride", cols),
        pointer("X_ptr", "bfloat16", rows * cols), number("X_row_stride", cols),
        pointer("W_ptr", "bfloat16", cols), number("W_row_stride", 1),
        pointer("RSTD_ptr", "float32", rows), number("RSTD_row_stride", 1),
        number("n_cols", cols), real("eps", 1e-6), real("offset", 0.0),
        const("casting_mode", 0), const("BLOCK_SIZE", block),
    ]  # fmt: skip
    return launch(RMSNORM, "_rms_norm_forward", params, [rows], **more)


def layer_norm(
    rows: int, cols: int = 384, *, text: str = LAYER_NORM, dtype: str = "bfloat16", **more: Any
) -> dict[str, Any]:
    saved = "Mean" in text
    params = [
        pointer("X", dtype, rows * cols), pointer("Y", dtype, rows * cols),
        pointer("W", dtype, cols), pointer("B", dtype, cols),
        *(pointer(name, "float32", rows) for name in ("Mean", "Rstd") if saved),
        number("stride", cols), number("N", cols), real("eps", 1e-5),
        *([const("SAVE", True)] if saved else []), const("BLOCK", 512),
    ]  # fmt: skip
    return launch(text, "layer_norm_fwd", params, [rows], **more)


def add_rms_norm(
    rows: int, cols: int = 384, *, text: str = ADD_RMS_NORM, **more: Any
) -> dict[str, Any]:
    names = ("Y_ptr", "S_ptr", "X_ptr", "R_ptr")
    params = [
        *(pointer(name, "float16", rows * cols) for name in names),
        pointer("W_ptr", "float16", cols), number("stride", cols), number("n_cols", cols),
        real("eps", 1e-6), const("BLOCK_SIZE", 512),
    ]  # fmt: skip
    return launch(text, "_fused_add_rms_norm", params, [rows], **more)


def swiglu(rows: int, cols: int = 384, **more: Any) -> dict[str, Any]:
    params = [
        *(pointer(name, "float16", rows * cols) for name in ("a_ptr", "b_ptr", "c_ptr")),
        number("stride", cols), const("n_cols", cols), const("BLOCK_SIZE", 512),
    ]  # fmt: skip
    return launch(SWIGLU, "_swiglu_forward_kernel", params, [rows], **more)


def matmul(
    m: int, n: int, k: int, *, bm: int = 64, bn: int = 64, bk: int = 32, **more: Any
) -> dict[str, Any]:
    params = [
        pointer("a_ptr", "fp16", m * k), pointer("b_ptr", "fp16", k * n),
        pointer("c_ptr", "fp16", m * n),
        number("M", m), number("N", n), number("K", k),
        number("stride_am", k), number("stride_ak", 1), number("stride_bk", n),
        number("stride_bn", 1), number("stride_cm", n), number("stride_cn", 1),
        const("BLOCK_SIZE_M", bm), const("BLOCK_SIZE_N", bn), const("BLOCK_SIZE_K", bk),
        const("GROUP_SIZE_M", 8), const("ACTIVATION", ""),
    ]  # fmt: skip
    return launch(MATMUL, "matmul_kernel", params, [-(-m // bm) * -(-n // bn)], **more)


def softmax(rows: int, cols: int, *, block: int = 256, **more: Any) -> dict[str, Any]:
    params = [
        pointer("output_ptr", "*fp32", rows * cols), pointer("input_ptr", "*fp32", rows * cols),
        number("input_row_stride", cols), number("output_row_stride", cols),
        number("n_rows", rows), number("n_cols", cols), const("BLOCK_SIZE", block),
    ]  # fmt: skip
    return launch(SOFTMAX, "softmax_kernel", params, [rows], **more)


def scale(count: int, *, block: int = 256, by: float = 0.5, **more: Any) -> dict[str, Any]:
    params = [
        pointer("x_ptr", "torch.float32", count), pointer("out_ptr", "torch.float32", count),
        number("n_elements", count), real("scale", by), const("BLOCK", block),
    ]  # fmt: skip
    return launch(SCALE, "scale_kernel", params, [-(-count // block)], **more)


def quantised(rows: int, cols: int = 512, **more: Any) -> dict[str, Any]:
    params = [
        pointer("x_ptr", "fp32", rows * cols), pointer("q_ptr", "i8", rows * cols),
        pointer("s_ptr", "fp32", rows), number("row_size", cols), const("BLOCK", cols),
    ]  # fmt: skip
    return launch(QUANT, "_quantize_rows", params, [rows], **more)


def rope(rows: int, hd: int = 64, *, in_place: bool = False, **more: Any) -> dict[str, Any]:
    outs = [] if in_place else [pointer("o_ptr", "fp32", rows * hd)]
    params = [
        pointer("q_ptr", "fp32", rows * hd), *outs, number("q_row_stride", hd),
        pointer("cos_ptr", "fp32", rows * hd // 2), pointer("sin_ptr", "fp32", rows * hd // 2),
        const("hd", hd), const("BLOCK", hd // 2),
    ]  # fmt: skip
    text = ROPE_IN_PLACE if in_place else ROPE
    return launch(text, "_triton_rope", params, [rows], **more)


def growing(count: int, *, block: int = 64, **more: Any) -> dict[str, Any]:
    params = [
        pointer("x_ptr", "fp32", count), number("n_elements", count), const("BLOCK", block),
    ]  # fmt: skip
    return launch(GROWING, "growing_kernel", params, [-(-count // block)], **more)


def cross_entropy(rows: int, cols: int = 512, **more: Any) -> dict[str, Any]:
    params = [
        pointer("X_ptr", "fp16", rows * cols), number("X_stride", cols),
        pointer("Y_ptr", "i64", rows), pointer("loss_ptr", "fp32", rows),
        number("n_cols", cols), number("ignore_index", 100), const("BLOCK_SIZE", 256),
    ]  # fmt: skip
    return launch(CROSS_ENTROPY, "cross_entropy_kernel", params, [rows], **more)

"""8-bit floats with scales a block, for few rows: the depth is split among a program's warps.

Each slice is one block or half of one, so that its scales are two numbers a row and a column.
Slices are added at the end, without memory that would have to be zero beforehand.
"""
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, D103

import triton
import triton.language as tl

SCALED = tl.constexpr(128)


@triton.jit
def gemm_fp8_slices(
    x,
    w,
    x_scale,
    w_scale,
    y,
    M,
    N: tl.constexpr,
    K: tl.constexpr,
    KB: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SLICES: tl.constexpr,
):
    wide = tl.cdiv(N, BLOCK_N)
    program = tl.program_id(0)
    rows = (program // wide) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = (program % wide) * BLOCK_N + tl.arange(0, BLOCK_N)
    row_start = (rows % M)[None, :, None].to(tl.int64) * K
    column_start = (columns % N)[None, None, :].to(tl.int64) * K
    row_scale = (rows % M)[None, :].to(tl.int64) * KB
    column_scale = ((columns % N) // SCALED)[None, :] * KB
    slices = tl.arange(0, SLICES)[:, None] * BLOCK_K
    total = tl.zeros((SLICES, BLOCK_M, BLOCK_N), dtype=tl.float32)
    for first in range(0, K, SLICES * BLOCK_K):
        at = first + slices + tl.arange(0, BLOCK_K)[None, :]
        if K % (SLICES * BLOCK_K) == 0:
            part = tl.load(x + row_start + at[:, None, :])
            weights = tl.load(w + column_start + at[:, :, None])
        else:
            keep = at < K
            part = tl.load(x + row_start + at[:, None, :], mask=keep[:, None, :], other=0.0)
            weights = tl.load(w + column_start + at[:, :, None], mask=keep[:, :, None], other=0.0)
        block = tl.minimum((first + slices) // SCALED, KB - 1)
        by_row = tl.load(x_scale + row_scale + block)
        by_column = tl.load(w_scale + column_scale + block)
        total += tl.dot(part, weights) * by_row[:, :, None] * by_column[:, None, :]
    whole = tl.sum(total, axis=0)
    inside = (rows < M)[:, None] & (columns < N)[None, :]
    target = rows[:, None].to(tl.int64) * N + columns[None, :]
    tl.store(y + target, whole.to(tl.bfloat16), mask=inside)

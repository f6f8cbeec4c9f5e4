"""bfloat16 matrix product for few rows: the depth is split among the warps of one program.

With few rows there are few tiles, each deep. Slices of the depth are multiplied side by side and
added at the end: split-K inside a program, without memory that would have to be zero beforehand.
"""
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, D103

import triton
import triton.language as tl


@triton.jit
def gemm_slices(
    x,
    w,
    y,
    M,
    N: tl.constexpr,
    K: tl.constexpr,
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
    depth = tl.arange(0, SLICES)[:, None] * BLOCK_K + tl.arange(0, BLOCK_K)[None, :]
    total = tl.zeros((SLICES, BLOCK_M, BLOCK_N), dtype=tl.float32)
    for first in range(0, K, SLICES * BLOCK_K):
        at = first + depth
        if K % (SLICES * BLOCK_K) == 0:
            part = tl.load(x + row_start + at[:, None, :])
            weights = tl.load(w + column_start + at[:, :, None])
        else:
            keep = at < K
            part = tl.load(x + row_start + at[:, None, :], mask=keep[:, None, :], other=0.0)
            weights = tl.load(w + column_start + at[:, :, None], mask=keep[:, :, None], other=0.0)
        total = tl.dot(part, weights, total)
    whole = tl.sum(total, axis=0)
    inside = (rows < M)[:, None] & (columns < N)[None, :]
    target = rows[:, None].to(tl.int64) * N + columns[None, :]
    tl.store(y + target, whole.to(tl.bfloat16), mask=inside)

"""bfloat16 matrix product for few rows: the depth is split among programs, in two launches.

With few rows there are few tiles, and most of a device would idle. Each program of the first launch
multiplies one part of the depth and writes float32 sums to scratch; the second launch adds the
parts of each output in their order, so that the answer is the same every time.
"""
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, D103

import triton
import triton.language as tl


@triton.jit
def gemm_split_k(
    x,
    w,
    partial,
    M,
    N: tl.constexpr,
    K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SPLITS: tl.constexpr,
):
    wide = tl.cdiv(N, BLOCK_N)
    share = tl.cdiv(tl.cdiv(K, BLOCK_K), SPLITS) * BLOCK_K
    program, split = tl.program_id(0), tl.program_id(1)
    rows = (program // wide) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = (program % wide) * BLOCK_N + tl.arange(0, BLOCK_N)
    row_start = (rows % M)[:, None].to(tl.int64) * K
    column_start = (columns % N)[None, :].to(tl.int64) * K
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for first in range(split * share, tl.minimum(K, (split + 1) * share), BLOCK_K):
        at = first + tl.arange(0, BLOCK_K)
        if K % BLOCK_K == 0:
            part = tl.load(x + row_start + at[None, :])
            weights = tl.load(w + column_start + at[:, None])
        else:
            part = tl.load(x + row_start + at[None, :], mask=(at < K)[None, :], other=0.0)
            weights = tl.load(w + column_start + at[:, None], mask=(at < K)[:, None], other=0.0)
        total = tl.dot(part, weights, total)
    inside = (rows < M)[:, None] & (columns < N)[None, :]
    row = split.to(tl.int64) * M + rows
    tl.store(partial + row[:, None] * N + columns[None, :], total, mask=inside)


@triton.jit
def gemm_split_k_sum(partial, y, M, N: tl.constexpr, SPLITS: tl.constexpr, BLOCK_SUM: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK_SUM + tl.arange(0, BLOCK_SUM)
    size = M.to(tl.int64) * N
    inside = at < size
    total = tl.zeros((BLOCK_SUM,), dtype=tl.float32)
    for split in range(0, SPLITS):
        total += tl.load(partial + split * size + at, mask=inside, other=0.0)
    tl.store(y + at, total.to(tl.bfloat16), mask=inside)

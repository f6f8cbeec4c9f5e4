"""8-bit floats with scales a block, multiplied in tiles, as most servers have it.

Programs that run together take tiles of the same few rows, so that what they read is in the cache.
"""
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, D103

import triton
import triton.language as tl

SCALED = tl.constexpr(128)


@triton.jit
def gemm_fp8_tiles(
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
    GROUP_M: tl.constexpr,
):
    high, wide = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    program = tl.program_id(0)
    first_row = (program // (GROUP_M * wide)) * GROUP_M
    group = tl.minimum(high - first_row, GROUP_M)
    place = program % (GROUP_M * wide)
    rows = (first_row + place % group) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = (place // group) * BLOCK_N + tl.arange(0, BLOCK_N)
    # Rows past the end are read from the start again and never stored: no mask in the loop.
    row_start = (rows % M)[:, None].to(tl.int64) * K
    column_start = (columns % N)[None, :].to(tl.int64) * K
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for first in range(0, K, BLOCK_K):
        at = first + tl.arange(0, BLOCK_K)
        if K % BLOCK_K == 0:
            part = tl.load(x + row_start + at[None, :])
            weights = tl.load(w + column_start + at[:, None])
        else:
            part = tl.load(x + row_start + at[None, :], mask=(at < K)[None, :], other=0.0)
            weights = tl.load(w + column_start + at[:, None], mask=(at < K)[:, None], other=0.0)
        block = first // SCALED
        by_row = tl.load(x_scale + (rows % M).to(tl.int64) * KB + block)
        by_column = tl.load(w_scale + (columns % N) // SCALED * KB + block)
        total += tl.dot(part, weights) * by_row[:, None] * by_column[None, :]
    inside = (rows < M)[:, None] & (columns < N)[None, :]
    target = rows[:, None].to(tl.int64) * N + columns[None, :]
    tl.store(y + target, total.to(tl.bfloat16), mask=inside)

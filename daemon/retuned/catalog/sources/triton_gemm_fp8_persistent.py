"""8-bit floats with scales a block, by programs that stay: each takes one tile after another.

There are as many programs as the device runs at once, so that the last round is not half empty and
reading the next tile overlaps with storing the one before.
"""
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, D103

import triton
import triton.language as tl

SCALED = tl.constexpr(128)


@triton.jit
def place_of(tile, high, wide, GROUP_M: tl.constexpr):
    """Return row and column of a tile: down some rows, then to the next column."""
    first_row = (tile // (GROUP_M * wide)) * GROUP_M
    group = tl.minimum(high - first_row, GROUP_M)
    place = tile % (GROUP_M * wide)
    return first_row + place % group, place // group


@triton.jit
def gemm_fp8_persistent(
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
    for tile in range(tl.program_id(0), high * wide, tl.num_programs(0)):
        row, column = place_of(tile, high, wide, GROUP_M)
        rows = row * BLOCK_M + tl.arange(0, BLOCK_M)
        columns = column * BLOCK_N + tl.arange(0, BLOCK_N)
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

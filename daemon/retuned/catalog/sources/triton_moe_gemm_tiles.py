"""Grouped product of a mixture of experts in tiles: routes of one expert share its weights.

Which tile is whose is found here, from where each expert's routes end: there are as many programs
as there could be tiles, and those that find none end at once.
"""
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, D103

import triton
import triton.language as tl


@triton.jit
def moe_gemm_tiles(
    x,
    w,
    order,
    ends,
    weight,
    y,
    E: tl.constexpr,
    T: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    wide = tl.cdiv(N, BLOCK_N)
    program = tl.program_id(0)
    tile = program // wide
    experts = tl.arange(0, BLOCK_E)
    end = tl.load(ends + experts, mask=experts < E, other=0)
    start = tl.load(ends + experts - 1, mask=(experts > 0) & (experts < E), other=0)
    tiles = tl.where(experts < E, (end - start + BLOCK_M - 1) // BLOCK_M, 0)
    before = tl.cumsum(tiles, axis=0) - tiles
    mine = (before <= tile) & (tile < before + tiles)
    expert = tl.sum(tl.where(mine, experts, 0), axis=0)
    first = tl.sum(tl.where(mine, start + (tile - before) * BLOCK_M, 0), axis=0)
    last = tl.sum(tl.where(mine, end, 0), axis=0)
    if last > first:
        place = first + tl.arange(0, BLOCK_M)
        columns = (program % wide) * BLOCK_N + tl.arange(0, BLOCK_N)
        route = tl.load(order + place, mask=place < last, other=0)
        row_start = (route // T)[:, None].to(tl.int64) * K
        column_start = (expert.to(tl.int64) * N + columns % N)[None, :] * K
        total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for depth in range(0, K, BLOCK_K):
            at = depth + tl.arange(0, BLOCK_K)
            if K % BLOCK_K == 0:
                part = tl.load(x + row_start + at[None, :])
                weights = tl.load(w + column_start + at[:, None])
            else:
                part = tl.load(x + row_start + at[None, :], mask=(at < K)[None, :], other=0.0)
                weights = tl.load(w + column_start + at[:, None], mask=(at < K)[:, None], other=0.0)
            total = tl.dot(part, weights, total)
        gain = tl.load(weight + route, mask=place < last, other=0.0)
        inside = (place < last)[:, None] & (columns < N)[None, :]
        target = route[:, None].to(tl.int64) * N + columns[None, :]
        tl.store(y + target, (total * gain[:, None]).to(tl.bfloat16), mask=inside)

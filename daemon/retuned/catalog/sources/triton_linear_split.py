"""Weight-only int8 linear on bfloat16 matrix units, without losing float32's precision.

An int8 weight is exact in bfloat16. A float32 is the sum of three bfloat16 numbers. So three
products on the matrix units, each exact, summed in float32, are the float32 product.
"""
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, D103

import triton
import triton.language as tl

LARGEST = tl.constexpr(3.38e38)


@triton.jit
def rest(value, taken):
    """Return the rest of a number after `taken`; 0 where the number is infinite, huge or NaN."""
    ordinary = tl.abs(value) < LARGEST
    return tl.where(ordinary, value - taken.to(tl.float32), 0.0)


@triton.jit
def linear_split(
    x,
    wq,
    scale,
    y,
    M,
    N: tl.constexpr,
    K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    blocks = tl.cdiv(N, BLOCK_N)
    program = tl.program_id(0)
    rows = (program // blocks) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = (program % blocks) * BLOCK_N + tl.arange(0, BLOCK_N)
    row_start = rows[:, None].to(tl.int64) * K
    column_start = columns[None, :].to(tl.int64) * K
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for first in range(0, K, BLOCK_K):
        at = first + tl.arange(0, BLOCK_K)
        keep = (rows < M)[:, None] & (at < K)[None, :]
        part = tl.load(x + row_start + at[None, :], mask=keep, other=0.0)
        keep = (columns < N)[None, :] & (at < K)[:, None]
        weights = tl.load(wq + column_start + at[:, None], mask=keep, other=0)
        exact = weights.to(tl.float32).to(tl.bfloat16)
        high = part.to(tl.bfloat16)
        left = rest(part, high)
        middle = left.to(tl.bfloat16)
        low = rest(left, middle).to(tl.bfloat16)
        total = tl.dot(low, exact, total)
        total = tl.dot(middle, exact, total)
        total = tl.dot(high, exact, total)
    gain = tl.load(scale + columns, mask=columns < N, other=0.0)
    inside = (rows < M)[:, None] & (columns < N)[None, :]
    place = rows[:, None].to(tl.int64) * N + columns[None, :]
    tl.store(y + place, total * gain[None, :], mask=inside)

"""Weight-only int8 linear, one row of x a program: a block of outputs as plain dot products."""
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, D103

import triton
import triton.language as tl


@triton.jit
def linear_row_dots(
    x,
    wq,
    scale,
    y,
    N: tl.constexpr,
    K: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    blocks = tl.cdiv(N, BLOCK_N)
    program = tl.program_id(0)
    row = (program // blocks).to(tl.int64)
    column = (program % blocks) * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = column < N
    start = column[:, None].to(tl.int64) * K
    total = tl.zeros((BLOCK_N, BLOCK_K), dtype=tl.float32)
    for first in range(0, K, BLOCK_K):
        at = first + tl.arange(0, BLOCK_K)
        part = tl.load(x + row * K + at, mask=at < K, other=0.0)
        keep = inside[:, None] & (at < K)[None, :]
        weights = tl.load(wq + start + at[None, :], mask=keep, other=0)
        total += weights.to(tl.float32) * part[None, :]
    gain = tl.load(scale + column, mask=inside, other=0.0)
    tl.store(y + row * N + column, tl.sum(total, axis=1) * gain, mask=inside)

"""Weight-only int8 linear in tiles: a block of rows shares the weights that it reads."""
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, D103

import triton
import triton.language as tl


@triton.jit
def linear_tiles(
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
        total = tl.dot(part, weights.to(tl.float32), total, input_precision="ieee")
    gain = tl.load(scale + columns, mask=columns < N, other=0.0)
    inside = (rows < M)[:, None] & (columns < N)[None, :]
    place = rows[:, None].to(tl.int64) * N + columns[None, :]
    tl.store(y + place, total * gain[None, :], mask=inside)

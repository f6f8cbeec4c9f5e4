"""Weight-only int8 linear for a row or two: the depth is split among programs, in two launches.

Each program of the first launch adds up one part of a row's dot products and writes it to scratch;
the second adds the parts in their order and scales.
"""
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, D103

import triton
import triton.language as tl


@triton.jit
def linear_split_k(
    x,
    wq,
    partial,
    M,
    N: tl.constexpr,
    K: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SPLITS: tl.constexpr,
):
    blocks = tl.cdiv(N, BLOCK_N)
    share = tl.cdiv(tl.cdiv(K, BLOCK_K), SPLITS) * BLOCK_K
    program, split = tl.program_id(0), tl.program_id(1)
    row = (program // blocks).to(tl.int64)
    column = (program % blocks) * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = column < N
    start = column[:, None].to(tl.int64) * K
    total = tl.zeros((BLOCK_N, BLOCK_K), dtype=tl.float32)
    for first in range(split * share, tl.minimum(K, (split + 1) * share), BLOCK_K):
        at = first + tl.arange(0, BLOCK_K)
        part = tl.load(x + row * K + at, mask=at < K, other=0.0)
        keep = inside[:, None] & (at < K)[None, :]
        weights = tl.load(wq + start + at[None, :], mask=keep, other=0)
        total += weights.to(tl.float32) * part[None, :]
    target = (split.to(tl.int64) * M + row) * N + column
    tl.store(partial + target, tl.sum(total, axis=1), mask=inside)


@triton.jit
def linear_split_k_sum(
    partial, scale, y, M, N: tl.constexpr, SPLITS: tl.constexpr, BLOCK_SUM: tl.constexpr
):
    at = tl.program_id(0).to(tl.int64) * BLOCK_SUM + tl.arange(0, BLOCK_SUM)
    size = M.to(tl.int64) * N
    inside = at < size
    total = tl.zeros((BLOCK_SUM,), dtype=tl.float32)
    for split in range(0, SPLITS):
        total += tl.load(partial + split * size + at, mask=inside, other=0.0)
    gain = tl.load(scale + at % N, mask=inside, other=0.0)
    tl.store(y + at, total * gain, mask=inside)

"""Grouped product of a mixture of experts, a route a program.

For few tokens: hardly two of them meet in one expert, so that tiles would be almost empty.
"""
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, D103

import triton
import triton.language as tl


@triton.jit
def moe_gemm_routes(
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
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    wide = tl.cdiv(N, BLOCK_N)
    program = tl.program_id(0)
    place = program // wide
    experts = tl.arange(0, BLOCK_E)
    end = tl.load(ends + experts, mask=experts < E, other=0)
    passed = (experts < E) & (end <= place)
    expert = tl.sum(passed.to(tl.int32), axis=0)
    route = tl.load(order + place)
    columns = (program % wide) * BLOCK_N + tl.arange(0, BLOCK_N)
    row_start = (route // T).to(tl.int64) * K
    column_start = (expert.to(tl.int64) * N + columns % N)[:, None] * K
    total = tl.zeros((BLOCK_N, BLOCK_K), dtype=tl.float32)
    for depth in range(0, K, BLOCK_K):
        at = depth + tl.arange(0, BLOCK_K)
        keep = at < K
        part = tl.load(x + row_start + at, mask=keep, other=0.0).to(tl.float32)
        weights = tl.load(w + column_start + at[None, :], mask=keep[None, :], other=0.0)
        total += weights.to(tl.float32) * part[None, :]
    gain = tl.load(weight + route)
    value = tl.sum(total, axis=1) * gain
    target = route.to(tl.int64) * N + columns
    tl.store(y + target, value.to(tl.bfloat16), mask=columns < N)

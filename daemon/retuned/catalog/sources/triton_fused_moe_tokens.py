"""A whole mixture of experts for few tokens, in two launches: a route a program, then a token.

Hardly two tokens meet in one expert, so that nothing is sorted and tiles would be almost empty:
weights are read once for each route, and what they are multiplied with stays in float32.
"""
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, D103

import triton
import triton.language as tl


@triton.jit
def fused_moe_tokens(
    x,
    w_up,
    ids,
    hidden,
    E: tl.constexpr,
    T: tl.constexpr,
    F: tl.constexpr,
    W: tl.constexpr,
    K: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    wide = tl.cdiv(F, BLOCK_N)
    program = tl.program_id(0)
    route = (program // wide).to(tl.int64)
    columns = (program % wide) * BLOCK_N + tl.arange(0, BLOCK_N)
    expert = tl.load(ids + route)
    if (expert >= 0) & (expert < E):
        start = (expert.to(tl.int64) * W + columns % F)[:, None] * K
        gates = tl.zeros((BLOCK_N, BLOCK_K), dtype=tl.float32)
        ups = tl.zeros((BLOCK_N, BLOCK_K), dtype=tl.float32)
        for depth in range(0, K, BLOCK_K):
            at = depth + tl.arange(0, BLOCK_K)
            keep = at < K
            part = tl.load(x + (route // T) * K + at, mask=keep, other=0.0).to(tl.float32)
            weights = tl.load(w_up + start + at[None, :], mask=keep[None, :], other=0.0)
            gates += weights.to(tl.float32) * part[None, :]
            weights = tl.load(w_up + start + F * K + at[None, :], mask=keep[None, :], other=0.0)
            ups += weights.to(tl.float32) * part[None, :]
        gate, up = tl.sum(gates, axis=1), tl.sum(ups, axis=1)
        tl.store(hidden + route * F + columns, gate * tl.sigmoid(gate) * up, mask=columns < F)


@triton.jit
def fused_moe_tokens_down(
    hidden,
    w_down,
    ids,
    weight,
    y,
    E: tl.constexpr,
    T: tl.constexpr,
    F: tl.constexpr,
    K: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    wide = tl.cdiv(K, BLOCK_N)
    program = tl.program_id(0)
    token = (program // wide).to(tl.int64)
    columns = (program % wide) * BLOCK_N + tl.arange(0, BLOCK_N)
    value = tl.zeros((BLOCK_N,), dtype=tl.float32)
    for slot in range(0, T):
        route = token * T + slot
        expert = tl.load(ids + route)
        here = (expert >= 0) & (expert < E)
        start = (tl.where(here, expert, 0).to(tl.int64) * K + columns % K)[:, None] * F
        total = tl.zeros((BLOCK_N, BLOCK_K), dtype=tl.float32)
        for depth in range(0, F, BLOCK_K):
            at = depth + tl.arange(0, BLOCK_K)
            keep = at < tl.where(here, F, 0)
            part = tl.load(hidden + route * F + at, mask=keep, other=0.0)
            weights = tl.load(w_down + start + at[None, :], mask=keep[None, :], other=0.0)
            total += weights.to(tl.float32) * part[None, :]
        gain = tl.where(here, tl.load(weight + route), 0.0)
        value += tl.sum(total, axis=1) * gain
    tl.store(y + token * K + columns, value.to(tl.bfloat16), mask=columns < K)

"""Causal attention, one query and head a program: keys are read block by block."""
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, D103

import triton
import triton.language as tl


@triton.jit
def attention_query(
    q,
    k,
    v,
    out,
    T,
    S,
    H: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_S: tl.constexpr,
):
    program = tl.program_id(0).to(tl.int64)
    head = program % H
    seen = S - T + program // H + 1
    lane = tl.arange(0, BLOCK_D)
    query = tl.load(q + program * D + lane, mask=lane < D, other=0.0)
    root = tl.sqrt_rn(tl.full((BLOCK_S,), D, tl.float32))
    peak = -float("inf")
    total = 0.0
    mixed = tl.zeros((BLOCK_D,), dtype=tl.float32)
    for first in range(0, seen, BLOCK_S):
        keys = first + tl.arange(0, BLOCK_S)
        keep = (keys < seen)[:, None] & (lane < D)[None, :]
        place = (keys[:, None].to(tl.int64) * H + head) * D + lane[None, :]
        key = tl.load(k + place, mask=keep, other=0.0)
        score = tl.sum(key * query[None, :], axis=1) / root
        score = tl.where(keys < seen, score, -float("inf"))
        higher = tl.maximum(peak, tl.max(score, axis=0))
        base = tl.where(higher == -float("inf"), 0.0, higher)
        weight = tl.exp(score - base)
        shrink = tl.exp(peak - base)
        value = tl.load(v + place, mask=keep, other=0.0)
        mixed = mixed * shrink + tl.sum(weight[:, None] * value, axis=0)
        total = total * shrink + tl.sum(weight, axis=0)
        peak = higher
    tl.store(out + program * D + lane, mixed / total, mask=lane < D)

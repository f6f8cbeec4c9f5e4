"""Decoding over a paged cache, one query head a program: plain dot products in float32."""
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, D103

import triton
import triton.language as tl


@triton.jit
def paged_attention_query(
    q,
    k,
    v,
    table,
    seen,
    out,
    W,
    H: tl.constexpr,
    G: tl.constexpr,
    D: tl.constexpr,
    P: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_S: tl.constexpr,
):
    program = tl.program_id(0).to(tl.int64)
    sequence, group = program // H, program % H // (H // G)
    length = tl.load(seen + sequence)
    lane = tl.arange(0, BLOCK_D)
    query = tl.load(q + program * D + lane, mask=lane < D, other=0.0).to(tl.float32)
    root = tl.sqrt_rn(tl.full((BLOCK_S,), D, tl.float32))
    peak = -float("inf")
    total = 0.0
    mixed = tl.zeros((BLOCK_D,), dtype=tl.float32)
    for first in range(0, length, BLOCK_S):
        keys = first + tl.arange(0, BLOCK_S)
        page = tl.load(table + sequence * W + keys // P, mask=keys < length, other=0)
        place = (page.to(tl.int64) * P + keys % P) * G + group
        at = place[:, None] * D + lane[None, :]
        keep = (keys < length)[:, None] & (lane < D)[None, :]
        key = tl.load(k + at, mask=keep, other=0.0).to(tl.float32)
        score = tl.sum(key * query[None, :], axis=1) / root
        score = tl.where(keys < length, score, -float("inf"))
        higher = tl.maximum(peak, tl.max(score, axis=0))
        base = tl.where(higher == -float("inf"), 0.0, higher)
        weight = tl.exp(score - base)
        shrink = tl.exp(peak - base)
        value = tl.load(v + at, mask=keep, other=0.0).to(tl.float32)
        mixed = mixed * shrink + tl.sum(weight[:, None] * value, axis=0)
        total = total * shrink + tl.sum(weight, axis=0)
        peak = higher
    tl.store(out + program * D + lane, (mixed / total).to(tl.bfloat16), mask=lane < D)

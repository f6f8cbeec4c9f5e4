"""Decoding over a paged cache, all query heads that share keys in one program, on matrix units.

The cache is read once for the whole group. Weights are rounded to bfloat16 before they meet the
values, as servers do.
"""
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, D103

import triton
import triton.language as tl


@triton.jit
def paged_attention_groups(
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
    BLOCK_G: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_S: tl.constexpr,
):
    program = tl.program_id(0).to(tl.int64)
    sequence, group = program // G, program % G
    length = tl.load(seen + sequence)
    member, lane = tl.arange(0, BLOCK_G), tl.arange(0, BLOCK_D)
    own = (program * (H // G) + member[:, None]) * D + lane[None, :]
    inside = (member < H // G)[:, None] & (lane < D)[None, :]
    query = tl.load(q + own, mask=inside, other=0.0)
    root = tl.sqrt_rn(tl.full((BLOCK_G, BLOCK_S), D, tl.float32))
    peak = tl.full((BLOCK_G,), -float("inf"), tl.float32)
    total = tl.zeros((BLOCK_G,), dtype=tl.float32)
    mixed = tl.zeros((BLOCK_G, BLOCK_D), dtype=tl.float32)
    for first in range(0, length, BLOCK_S):
        keys = first + tl.arange(0, BLOCK_S)
        page = tl.load(table + sequence * W + keys // P, mask=keys < length, other=0)
        place = (page.to(tl.int64) * P + keys % P) * G + group
        at = place[:, None] * D + lane[None, :]
        keep = (keys < length)[:, None] & (lane < D)[None, :]
        key = tl.load(k + at, mask=keep, other=0.0)
        score = tl.dot(query, tl.trans(key)) / root
        score = tl.where((keys < length)[None, :], score, -float("inf"))
        higher = tl.maximum(peak, tl.max(score, axis=1))
        base = tl.where(higher == -float("inf"), 0.0, higher)
        weight = tl.exp(score - base[:, None])
        shrink = tl.exp(peak - base)
        value = tl.load(v + at, mask=keep, other=0.0)
        mixed = tl.dot(weight.to(tl.bfloat16), value, mixed * shrink[:, None])
        total = total * shrink + tl.sum(weight, axis=1)
        peak = higher
    tl.store(out + own, (mixed / total[:, None]).to(tl.bfloat16), mask=inside)

"""Decoding over a paged cache for few sequences: each one's keys are split among programs.

With few sequences there are few groups of heads, and most of a device would idle. Each program of
the first launch sees one part of a sequence's keys and writes peak, sum and mixture to scratch; the
second launch brings the parts of each head together, in one order always.
"""
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, D103

import triton
import triton.language as tl


@triton.jit
def paged_attention_splits(
    q,
    k,
    v,
    table,
    seen,
    mixture,
    peaks,
    totals,
    W,
    H: tl.constexpr,
    G: tl.constexpr,
    D: tl.constexpr,
    P: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_S: tl.constexpr,
    SPLITS: tl.constexpr,
):
    program, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    sequence, group = program // G, program % G
    length = tl.load(seen + sequence)
    share = tl.cdiv(tl.cdiv(length, BLOCK_S), SPLITS) * BLOCK_S
    member, lane = tl.arange(0, BLOCK_G), tl.arange(0, BLOCK_D)
    head = program * (H // G) + member
    inside = (member < H // G)[:, None] & (lane < D)[None, :]
    query = tl.load(q + head[:, None] * D + lane[None, :], mask=inside, other=0.0)
    root = tl.sqrt_rn(tl.full((BLOCK_G, BLOCK_S), D, tl.float32))
    peak = tl.full((BLOCK_G,), -float("inf"), tl.float32)
    total = tl.zeros((BLOCK_G,), dtype=tl.float32)
    mixed = tl.zeros((BLOCK_G, BLOCK_D), dtype=tl.float32)
    for first in range(split * share, tl.minimum(length, (split + 1) * share), BLOCK_S):
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
    part = head * SPLITS + split
    tl.store(peaks + part, peak, mask=member < H // G)
    tl.store(totals + part, total, mask=member < H // G)
    tl.store(mixture + part[:, None] * D + lane[None, :], mixed, mask=inside)


@triton.jit
def paged_attention_splits_join(
    mixture,
    peaks,
    totals,
    out,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    SPLITS: tl.constexpr,
):
    head = tl.program_id(0).to(tl.int64)
    split, lane = tl.arange(0, SPLITS), tl.arange(0, BLOCK_D)
    part = head * SPLITS + split
    peak = tl.load(peaks + part)
    highest = tl.max(peak, axis=0)
    base = tl.where(highest == -float("inf"), 0.0, highest)
    weight = tl.exp(peak - base)
    total = tl.sum(tl.load(totals + part) * weight, axis=0)
    keep = (lane < D)[None, :] & (split < SPLITS)[:, None]
    mixed = tl.load(mixture + part[:, None] * D + lane[None, :], mask=keep, other=0.0)
    joined = tl.sum(mixed * weight[:, None], axis=0) / total
    tl.store(out + head * D + lane, joined.to(tl.bfloat16), mask=lane < D)

"""Causal attention, a block of queries of one head a program: the keys are read once for all.

Where a key is hidden from some queries of the block, its value must not reach them even if it is
no number: zero times it would not be zero. Such values are taken out of the product and what they
do to those who see them is added by itself.
"""
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, D103

import triton
import triton.language as tl


@triton.jit
def seen_by(hidden_from, marked):
    return tl.dot(hidden_from, marked.to(tl.float32), input_precision="ieee") > 0.0


@triton.jit
def strange_part(visible, value):
    """Return NaN or infinities where a query sees a value that is one, else zero."""
    inf = float("inf")
    up = seen_by(visible, value == inf)
    down = seen_by(visible, value == -inf)
    none = seen_by(visible, value != value) | (up & down)
    sign = tl.where(up, inf, tl.where(down, -inf, 0.0))
    return tl.where(none, float("nan"), sign)


@triton.jit
def attention_tiles(
    q,
    k,
    v,
    out,
    T,
    S,
    H: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_S: tl.constexpr,
):
    blocks = tl.cdiv(T, BLOCK_T)
    head = tl.program_id(0) // blocks
    first_query = (tl.program_id(0) % blocks) * BLOCK_T
    queries = first_query + tl.arange(0, BLOCK_T)
    lane = tl.arange(0, BLOCK_D)
    inside = (queries < T)[:, None] & (lane < D)[None, :]
    own = (queries[:, None].to(tl.int64) * H + head) * D + lane[None, :]
    query = tl.load(q + own, mask=inside, other=0.0)
    root = tl.sqrt_rn(tl.full((BLOCK_T, BLOCK_S), D, tl.float32))
    seen = S - T + queries + 1
    last = tl.minimum(S, S - T + first_query + BLOCK_T)
    peak = tl.full((BLOCK_T,), -float("inf"), tl.float32)
    total = tl.zeros((BLOCK_T,), dtype=tl.float32)
    mixed = tl.zeros((BLOCK_T, BLOCK_D), dtype=tl.float32)
    for first in range(0, last, BLOCK_S):
        keys = first + tl.arange(0, BLOCK_S)
        keep = (keys < last)[:, None] & (lane < D)[None, :]
        place = (keys[:, None].to(tl.int64) * H + head) * D + lane[None, :]
        key = tl.load(k + place, mask=keep, other=0.0)
        score = tl.dot(query, tl.trans(key), input_precision="ieee")
        visible = keys[None, :] < seen[:, None]
        score = tl.where(visible, score / root, -float("inf"))
        higher = tl.maximum(peak, tl.max(score, axis=1))
        base = tl.where(higher == -float("inf"), 0.0, higher)
        weight = tl.exp(score - base[:, None])
        shrink = tl.exp(peak - base)
        value = tl.load(v + place, mask=keep, other=0.0)
        strange = (value - value) != 0.0
        plain = tl.where(strange, 0.0, value)
        mixed = mixed * shrink[:, None]
        mixed = tl.dot(weight, plain, mixed, input_precision="ieee")
        if tl.max(tl.max(strange.to(tl.int32), axis=1), axis=0) > 0:
            mixed += strange_part(visible.to(tl.float32), value)
        total = total * shrink + tl.sum(weight, axis=1)
        peak = higher
    tl.store(out + own, mixed / total[:, None], mask=inside)

"""Gating of experts: logit and place in one integer, so that a maximum finds both."""
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, D103

import triton
import triton.language as tl

LEAST = tl.constexpr(-281474976710656)


@triton.jit
def topk_gating_packed(
    logits,
    weights,
    ids,
    M,
    E: tl.constexpr,
    K: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    SLOTS: tl.constexpr,
):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    at = tl.arange(0, BLOCK)
    slot = tl.arange(0, SLOTS)
    keep = (rows < M)[:, None] & (at < E)[None, :]
    place = rows[:, None].to(tl.int64) * E + at[None, :]
    value = tl.load(logits + place, mask=keep, other=0.0)
    # The bits of a float, those of a negative one turned round, are in the order of the numbers;
    # minus zero, which equals zero, must have its bits. Lower places make the larger integer.
    bits = tl.where(value == 0.0, 0.0, value).to(tl.int32, bitcast=True)
    order = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64)
    packed = order * 65536 + (65535 - at)[None, :]
    packed = tl.where((at < E)[None, :], packed, LEAST)
    chosen = tl.full((ROWS, SLOTS), LEAST, tl.int64)
    for turn in range(K):
        best = tl.max(packed, axis=1)[:, None]
        chosen = tl.where((slot == turn)[None, :], best, chosen)
        packed = tl.where(packed == best, LEAST, packed)
    used = (slot < K)[None, :]
    order = (chosen >> 16).to(tl.int32)
    logit = (order ^ ((order >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
    logit = tl.where(used, logit, -float("inf"))
    part = tl.exp(logit - tl.max(logit, axis=1)[:, None])
    part = part / tl.sum(part, axis=1)[:, None]
    keep = (rows < M)[:, None] & used
    place = rows[:, None].to(tl.int64) * K + slot[None, :]
    tl.store(weights + place, part, mask=keep)
    tl.store(ids + place, (65535 - (chosen & 65535)).to(tl.int32), mask=keep)

"""Gating of experts: the largest logit and its first place, K times; then the weights."""
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, D103

import triton
import triton.language as tl


@triton.jit
def topk_gating_rounds(
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
    gone = -float("inf")
    keep = (rows < M)[:, None] & (at < E)[None, :]
    place = rows[:, None].to(tl.int64) * E + at[None, :]
    # A logit may be minus infinity itself: what is struck out must be below it.
    value = tl.maximum(tl.load(logits + place, mask=keep, other=0.0), -3.4028234663852886e38)
    value = tl.where((at < E)[None, :], value, gone)
    chosen = tl.full((ROWS, SLOTS), gone, tl.float32)
    expert = tl.zeros((ROWS, SLOTS), dtype=tl.int32)
    for turn in range(K):
        best, first = tl.max(value, axis=1, return_indices=True)
        here = (slot == turn)[None, :]
        chosen = tl.where(here, best[:, None], chosen)
        expert = tl.where(here, first[:, None], expert)
        value = tl.where(at[None, :] == first[:, None], gone, value)
    part = tl.exp(chosen - tl.max(chosen, axis=1)[:, None])
    part = part / tl.sum(part, axis=1)[:, None]
    keep = (rows < M)[:, None] & (slot < K)[None, :]
    place = rows[:, None].to(tl.int64) * K + slot[None, :]
    tl.store(weights + place, part, mask=keep)
    tl.store(ids + place, expert, mask=keep)

"""Softmax block by block: maximum and sum in one pass, then the row again."""
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, D103

import triton
import triton.language as tl


@triton.jit
def softmax_online(x, y, N: tl.constexpr, BLOCK: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * N
    peak = tl.full((BLOCK,), -float("inf"), tl.float32)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for first in range(0, N, BLOCK):
        at = first + tl.arange(0, BLOCK)
        value = tl.load(x + start + at, mask=at < N, other=-float("inf")).to(tl.float32)
        higher = tl.maximum(peak, value)
        base = tl.where(higher == -float("inf"), 0.0, higher)
        total = total * tl.exp(peak - base) + tl.exp(value - base)
        peak = higher
    top = tl.max(peak, axis=0)
    base = tl.where(top == -float("inf"), 0.0, top)
    whole = tl.sum(total * tl.exp(peak - base), axis=0)
    for first in range(0, N, BLOCK):
        at = first + tl.arange(0, BLOCK)
        value = tl.load(x + start + at, mask=at < N, other=-float("inf")).to(tl.float32)
        tl.store(y + start + at, tl.exp(value - base) / whole, mask=at < N)

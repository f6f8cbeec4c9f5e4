"""Softmax in three passes over the row: maximum, sum, weights."""
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, D103

import triton
import triton.language as tl


@triton.jit
def softmax_passes(x, y, N: tl.constexpr, BLOCK: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * N
    peak = tl.full((BLOCK,), -float("inf"), tl.float32)
    for first in range(0, N, BLOCK):
        at = first + tl.arange(0, BLOCK)
        value = tl.load(x + start + at, mask=at < N, other=-float("inf")).to(tl.float32)
        peak = tl.maximum(peak, value)
    top = tl.max(peak, axis=0)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for first in range(0, N, BLOCK):
        at = first + tl.arange(0, BLOCK)
        value = tl.load(x + start + at, mask=at < N, other=-float("inf")).to(tl.float32)
        total += tl.exp(value - top)
    whole = tl.sum(total, axis=0)
    for first in range(0, N, BLOCK):
        at = first + tl.arange(0, BLOCK)
        value = tl.load(x + start + at, mask=at < N, other=-float("inf")).to(tl.float32)
        tl.store(y + start + at, tl.exp(value - top) / whole, mask=at < N)

"""Softmax, for the arguments of a user's kernel: a program per row.

``softmax_held`` has the row in registers, ``softmax_streamed`` reads it block by block, twice. The
factor of the logits is an argument.
"""
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, D103

import triton
import triton.language as tl


@triton.jit
def softmax_held(x, y, scale, N: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    value = tl.load(x + row * N + at, mask=at < N, other=0.0).to(tl.float32) * scale
    value = tl.where(at < N, value, -float("inf"))
    weight = tl.exp(value - tl.max(value, axis=0))
    tl.store(y + row * N + at, weight / tl.sum(weight, axis=0), mask=at < N)


@triton.jit
def softmax_streamed(x, y, scale, N: tl.constexpr, BLOCK: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * N
    peak = tl.full((BLOCK,), -float("inf"), tl.float32)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for first in range(0, N, BLOCK):
        at = first + tl.arange(0, BLOCK)
        value = tl.load(x + start + at, mask=at < N, other=0.0).to(tl.float32) * scale
        value = tl.where(at < N, value, -float("inf"))
        higher = tl.maximum(peak, value)
        base = tl.where(higher == -float("inf"), 0.0, higher)
        total = total * tl.exp(peak - base) + tl.exp(value - base)
        peak = higher
    top = tl.max(peak, axis=0)
    base = tl.where(top == -float("inf"), 0.0, top)
    whole = tl.sum(total * tl.exp(peak - base), axis=0)
    for first in range(0, N, BLOCK):
        at = first + tl.arange(0, BLOCK)
        value = tl.load(x + start + at, mask=at < N, other=0.0).to(tl.float32) * scale
        tl.store(y + start + at, tl.exp(value - base) / whole, mask=at < N)

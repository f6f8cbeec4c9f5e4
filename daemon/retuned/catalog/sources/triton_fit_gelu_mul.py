"""Gated GELU, tanh form, for the arguments of a user's kernel: a program per row and block.

Gate and up are two tensors, or the halves of one, so where they begin and how far apart their rows
lie are arguments.
"""
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, D103

import triton
import triton.language as tl


@triton.jit
def gelu_mul_tiles(
    gate,
    up,
    y,
    I: tl.constexpr,  # noqa: E741
    APART: tl.constexpr,
    BLOCK: tl.constexpr,
):
    blocks = tl.cdiv(I, BLOCK)
    row = (tl.program_id(0) // blocks).to(tl.int64)
    at = (tl.program_id(0) % blocks) * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(gate + row * APART + at, mask=at < I, other=0.0).to(tl.float32)
    b = tl.load(up + row * APART + at, mask=at < I, other=0.0).to(tl.float32)
    twice = a * (1.5957691216057308 + 0.07135481627260025 * a * a)
    tl.store(y + row * I + at, a / (1.0 + tl.exp(-twice)) * b, mask=at < I)

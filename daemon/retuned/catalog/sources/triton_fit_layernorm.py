"""Layer normalisation, for the arguments of a user's kernel: a program per row.

``layernorm_whole`` holds the row in registers, ``layernorm_thrice`` reads it block by block, three
times. An argument selects whether the row's mean and factor are written.
"""
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, D103

import triton
import triton.language as tl


@triton.jit
def layernorm_whole(
    x,
    weight,
    bias,
    y,
    mean,
    factor,
    eps,
    H: tl.constexpr,
    LEAVES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    value = tl.load(x + row * H + at, mask=at < H, other=0.0).to(tl.float32)
    # Far from zero, a mean that is off by a rounding is off by much of what is left.
    middle = tl.div_rn(tl.sum(value, axis=0), H * 1.0)
    left = tl.where(at < H, value - middle, 0.0)
    root = 1.0 / tl.sqrt_rn(tl.sum(left * left, axis=0) / H + eps)
    if LEAVES:
        tl.store(mean + row, middle)
        tl.store(factor + row, root)
    gain = tl.load(weight + at, mask=at < H, other=0.0).to(tl.float32)
    shift = tl.load(bias + at, mask=at < H, other=0.0).to(tl.float32)
    tl.store(y + row * H + at, left * root * gain + shift, mask=at < H)


@triton.jit
def layernorm_thrice(
    x,
    weight,
    bias,
    y,
    mean,
    factor,
    eps,
    H: tl.constexpr,
    LEAVES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for first in range(0, H, BLOCK):
        at = first + tl.arange(0, BLOCK)
        total += tl.load(x + row * H + at, mask=at < H, other=0.0).to(tl.float32)
    middle = tl.div_rn(tl.sum(total, axis=0), H * 1.0)
    squares = tl.zeros((BLOCK,), dtype=tl.float32)
    for first in range(0, H, BLOCK):
        at = first + tl.arange(0, BLOCK)
        value = tl.load(x + row * H + at, mask=at < H, other=0.0).to(tl.float32)
        left = tl.where(at < H, value - middle, 0.0)
        squares += left * left
    root = 1.0 / tl.sqrt_rn(tl.sum(squares, axis=0) / H + eps)
    if LEAVES:
        tl.store(mean + row, middle)
        tl.store(factor + row, root)
    for first in range(0, H, BLOCK):
        at = first + tl.arange(0, BLOCK)
        value = tl.load(x + row * H + at, mask=at < H, other=0.0).to(tl.float32)
        gain = tl.load(weight + at, mask=at < H, other=0.0).to(tl.float32)
        shift = tl.load(bias + at, mask=at < H, other=0.0).to(tl.float32)
        tl.store(y + row * H + at, (value - middle) * root * gain + shift, mask=at < H)

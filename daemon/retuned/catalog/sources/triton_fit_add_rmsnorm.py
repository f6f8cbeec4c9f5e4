"""Sum of two rows and its root mean square normalisation, for the arguments of a user's kernel.

A program per row: ``add_rmsnorm_whole`` holds it in registers, ``add_rmsnorm_twice`` reads both
block by block, twice. Other inputs and outputs of users' kernels are arguments.
"""
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, D103

import triton
import triton.language as tl


@triton.jit
def add_rmsnorm_whole(
    x,
    residual,
    weight,
    y,
    summed,
    factor,
    eps,
    offset,
    H: tl.constexpr,
    LEAVES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    value = tl.load(x + row * H + at, mask=at < H, other=0.0).to(tl.float32)
    value += tl.load(residual + row * H + at, mask=at < H, other=0.0).to(tl.float32)
    tl.store(summed + row * H + at, value, mask=at < H)
    gain = tl.load(weight + at, mask=at < H, other=0.0).to(tl.float32) + offset
    root = 1.0 / tl.sqrt_rn(tl.sum(value * value, axis=0) / H + eps)
    if LEAVES:
        tl.store(factor + row, root)
    tl.store(y + row * H + at, value * root * gain, mask=at < H)


@triton.jit
def add_rmsnorm_twice(
    x,
    residual,
    weight,
    y,
    summed,
    factor,
    eps,
    offset,
    H: tl.constexpr,
    LEAVES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * H
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for first in range(0, H, BLOCK):
        at = first + tl.arange(0, BLOCK)
        value = tl.load(x + row + at, mask=at < H, other=0.0).to(tl.float32)
        value += tl.load(residual + row + at, mask=at < H, other=0.0).to(tl.float32)
        tl.store(summed + row + at, value, mask=at < H)
        total += value * value
    root = 1.0 / tl.sqrt_rn(tl.sum(total, axis=0) / H + eps)
    if LEAVES:
        tl.store(factor + tl.program_id(0).to(tl.int64), root)
    # What was stored may be rounded, and is another thread's to see only after a barrier.
    for first in range(0, H, BLOCK):
        at = first + tl.arange(0, BLOCK)
        value = tl.load(x + row + at, mask=at < H, other=0.0).to(tl.float32)
        value += tl.load(residual + row + at, mask=at < H, other=0.0).to(tl.float32)
        gain = tl.load(weight + at, mask=at < H, other=0.0).to(tl.float32) + offset
        tl.store(y + row + at, value * root * gain, mask=at < H)

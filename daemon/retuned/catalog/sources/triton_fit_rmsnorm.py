"""Root mean square normalisation, for the arguments of a user's kernel: a program per row.

``rmsnorm_whole`` holds the row in registers, ``rmsnorm_twice`` reads it block by block, twice.
Other inputs and outputs of users' kernels are arguments: the gain's offset, the row's factor.
"""
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, D103

import triton
import triton.language as tl


@triton.jit
def rmsnorm_whole(
    x, weight, y, factor, eps, offset, H: tl.constexpr, LEAVES: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    value = tl.load(x + row * H + at, mask=at < H, other=0.0).to(tl.float32)
    gain = tl.load(weight + at, mask=at < H, other=0.0).to(tl.float32) + offset
    root = 1.0 / tl.sqrt_rn(tl.sum(value * value, axis=0) / H + eps)
    if LEAVES:
        tl.store(factor + row, root)
    tl.store(y + row * H + at, value * root * gain, mask=at < H)


@triton.jit
def rmsnorm_twice(
    x, weight, y, factor, eps, offset, H: tl.constexpr, LEAVES: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for first in range(0, H, BLOCK):
        at = first + tl.arange(0, BLOCK)
        value = tl.load(x + row * H + at, mask=at < H, other=0.0).to(tl.float32)
        total += value * value
    root = 1.0 / tl.sqrt_rn(tl.sum(total, axis=0) / H + eps)
    if LEAVES:
        tl.store(factor + row, root)
    for first in range(0, H, BLOCK):
        at = first + tl.arange(0, BLOCK)
        value = tl.load(x + row * H + at, mask=at < H, other=0.0).to(tl.float32)
        gain = tl.load(weight + at, mask=at < H, other=0.0).to(tl.float32) + offset
        tl.store(y + row * H + at, value * root * gain, mask=at < H)

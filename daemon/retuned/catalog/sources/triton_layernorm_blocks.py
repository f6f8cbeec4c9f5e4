"""Layer normalisation: mean, deviations, output; a row is read three times, block by block."""
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, D103

import triton
import triton.language as tl


@triton.jit
def layernorm_blocks(x, weight, bias, y, H: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * H
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for first in range(0, H, BLOCK):
        at = first + tl.arange(0, BLOCK)
        total += tl.load(x + row + at, mask=at < H, other=0.0).to(tl.float32)
    # Far from zero, a mean that is off by a rounding is off by much of what is left.
    mean = tl.div_rn(tl.sum(total, axis=0), H * 1.0)
    squares = tl.zeros((BLOCK,), dtype=tl.float32)
    for first in range(0, H, BLOCK):
        at = first + tl.arange(0, BLOCK)
        value = tl.load(x + row + at, mask=at < H, other=0.0).to(tl.float32)
        left = tl.where(at < H, value - mean, 0.0)
        squares += left * left
    root = tl.sqrt_rn(tl.sum(squares, axis=0) / H + 1e-5)
    for first in range(0, H, BLOCK):
        at = first + tl.arange(0, BLOCK)
        value = tl.load(x + row + at, mask=at < H, other=0.0).to(tl.float32)
        gain = tl.load(weight + at, mask=at < H, other=0.0).to(tl.float32)
        shift = tl.load(bias + at, mask=at < H, other=0.0).to(tl.float32)
        tl.store(y + row + at, (value - mean) / root * gain + shift, mask=at < H)

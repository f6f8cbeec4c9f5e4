"""Sum of two rows and its root mean square normalisation: both are read twice, block by block."""
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, D103

import triton
import triton.language as tl


@triton.jit
def add_rmsnorm_blocks(x, residual, weight, y, summed, H: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * H
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for first in range(0, H, BLOCK):
        at = first + tl.arange(0, BLOCK)
        left = tl.load(x + row + at, mask=at < H, other=0.0).to(tl.float32)
        value = left + tl.load(residual + row + at, mask=at < H, other=0.0).to(tl.float32)
        tl.store(summed + row + at, value, mask=at < H)
        total += value * value
    root = tl.sqrt_rn(tl.sum(total, axis=0) / H + 1e-6)
    # What was stored may be rounded, and is another thread's to see only after a barrier.
    for first in range(0, H, BLOCK):
        at = first + tl.arange(0, BLOCK)
        left = tl.load(x + row + at, mask=at < H, other=0.0).to(tl.float32)
        value = left + tl.load(residual + row + at, mask=at < H, other=0.0).to(tl.float32)
        gain = tl.load(weight + at, mask=at < H, other=0.0).to(tl.float32)
        tl.store(y + row + at, value / root * gain, mask=at < H)

"""Per-token quantisation block by block: the row is read for its maximum, and again."""
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, D103

import triton
import triton.language as tl

LEAST = tl.constexpr(1e-10)


@triton.jit
def quant_blocks(x, q, scale, H: tl.constexpr, BLOCK: tl.constexpr, LARGEST: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    peak = tl.zeros((BLOCK,), dtype=tl.float32)
    for first in range(0, H, BLOCK):
        at = first + tl.arange(0, BLOCK)
        value = tl.load(x + row * H + at, mask=at < H, other=0.0).to(tl.float32)
        peak = tl.maximum(peak, tl.abs(value))
    gain = tl.maximum(tl.max(peak, axis=0) / LARGEST, LEAST)
    for first in range(0, H, BLOCK):
        at = first + tl.arange(0, BLOCK)
        value = tl.load(x + row * H + at, mask=at < H, other=0.0).to(tl.float32)
        small = value / gain
        if q.dtype.element_ty == tl.int8:
            small = tl.floor(small + 0.5)
        tl.store(q + row * H + at, small.to(q.dtype.element_ty), mask=at < H)
    tl.store(scale + row, gain)

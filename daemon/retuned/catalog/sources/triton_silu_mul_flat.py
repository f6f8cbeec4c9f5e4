"""Gated activation over all outputs as one long line."""
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, D103

import triton
import triton.language as tl


@triton.jit
def silu_mul_flat(x, y, M, I: tl.constexpr, G: tl.constexpr, BLOCK: tl.constexpr):  # noqa: E741
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < M.to(tl.int64) * I
    start = at // I * G + at % I
    gate = tl.load(x + start, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(x + start + I, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + at, gate / (1.0 + tl.exp(-gate)) * up, mask=inside)

"""All elements as one long line."""
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, D103

import triton
import triton.language as tl


@triton.jit
def scale_bias_flat(x, residual, scale, bias, y, M, H: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at // H < M
    column = at % H
    gain = tl.load(scale + column, mask=inside, other=0.0)
    shift = tl.load(bias + column, mask=inside, other=0.0)
    added = tl.load(residual + at, mask=inside, other=0.0) * gain
    tl.store(y + at, tl.load(x + at, mask=inside, other=0.0) + added + shift, mask=inside)

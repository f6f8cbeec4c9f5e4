"""Some rows a program; scale and bias are loaded once for all of them."""
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, D103

import triton
import triton.language as tl


@triton.jit
def scale_bias_block(
    x, residual, scale, bias, y, M, H: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    keep = (rows < M)[:, None] & (column < H)[None, :]
    at = rows[:, None].to(tl.int64) * H + column[None, :]
    gain = tl.load(scale + column, mask=column < H, other=0.0)
    shift = tl.load(bias + column, mask=column < H, other=0.0)
    added = tl.load(residual + at, mask=keep, other=0.0) * gain[None, :]
    value = tl.load(x + at, mask=keep, other=0.0) + added + shift[None, :]
    tl.store(y + at, value, mask=keep)

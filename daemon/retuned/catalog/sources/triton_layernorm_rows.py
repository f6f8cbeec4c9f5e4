"""Layer normalisation: whole rows in registers, some rows a program."""
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, D103

import triton
import triton.language as tl


@triton.jit
def layernorm_rows(
    x,
    weight,
    bias,
    y,
    M,
    H: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    at = tl.arange(0, BLOCK)
    keep = (rows < M)[:, None] & (at < H)[None, :]
    place = rows[:, None].to(tl.int64) * H + at[None, :]
    value = tl.load(x + place, mask=keep, other=0.0).to(tl.float32)
    # Far from zero, a mean that is off by a rounding is off by much of what is left.
    mean = tl.div_rn(tl.sum(value, axis=1), H * 1.0)
    left = tl.where(keep, value - mean[:, None], 0.0)
    root = tl.sqrt_rn(tl.sum(left * left, axis=1) / H + 1e-5)
    gain = tl.load(weight + at, mask=at < H, other=0.0).to(tl.float32)
    shift = tl.load(bias + at, mask=at < H, other=0.0).to(tl.float32)
    tl.store(y + place, left / root[:, None] * gain[None, :] + shift[None, :], mask=keep)

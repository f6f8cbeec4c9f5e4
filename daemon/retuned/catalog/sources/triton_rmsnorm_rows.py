"""Root mean square normalisation: whole rows in registers, some rows a program."""
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, D103

import triton
import triton.language as tl


@triton.jit
def rmsnorm_rows(x, weight, y, M, H: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    at = tl.arange(0, BLOCK)
    keep = (rows < M)[:, None] & (at < H)[None, :]
    place = rows[:, None].to(tl.int64) * H + at[None, :]
    value = tl.load(x + place, mask=keep, other=0.0).to(tl.float32)
    mean = tl.sum(value * value, axis=1) / H
    gain = tl.load(weight + at, mask=at < H, other=0.0).to(tl.float32)
    tl.store(y + place, value / tl.sqrt_rn(mean + 1e-6)[:, None] * gain[None, :], mask=keep)

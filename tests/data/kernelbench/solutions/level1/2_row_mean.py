# ---
# params: {BLOCK: 1024}
# grid: ["n96"]
# ---
# ruff: noqa
# mypy: ignore-errors
import triton
import triton.language as tl


@triton.jit
def kernel(x, out, n96: tl.constexpr, n1000: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    values = tl.load(x + row * n1000 + column, mask=column < n1000, other=0.0)
    tl.store(out + row, tl.sum(values, axis=0) / n1000)

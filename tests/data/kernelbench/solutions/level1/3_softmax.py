# ---
# params: {BLOCK: 1024}
# grid: ["n48"]
# ---
# ruff: noqa
# mypy: ignore-errors
import triton
import triton.language as tl


@triton.jit
def kernel(x, out, n48: tl.constexpr, n700: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * n700 + tl.arange(0, BLOCK)
    inside = tl.arange(0, BLOCK) < n700
    row = tl.load(x + at, mask=inside, other=-float("inf"))
    powers = tl.exp(row - tl.max(row, axis=0))
    tl.store(out + at, powers / tl.sum(powers, axis=0), mask=inside)

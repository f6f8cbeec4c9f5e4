"""Kernels as third parties write them, and launches of them; nothing here knows of Retuned."""

# ruff: noqa: ANN001, ANN201 - kernels have types that no annotation says
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

OFFSET = tl.constexpr(2)
GAIN = tl.constexpr(3)


@triton.jit
def bump(value):
    """What a kernel calls."""
    return value * GAIN + OFFSET


@triton.jit
def affine(x_ptr, y_ptr, n, factor, BLOCK: tl.constexpr):
    """y = bump(x * factor); the grid depends on the block."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(y_ptr + at, bump(tl.load(x_ptr + at, mask=inside) * factor), mask=inside)


@triton.jit
def rows(x_ptr, y_ptr, n_cols, BLOCK: tl.constexpr, DOUBLE: tl.constexpr = True):
    """One program a row: the number of rows shows in the grid alone."""
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < n_cols
    value = tl.load(x_ptr + row * n_cols + at, mask=inside)
    if DOUBLE:
        value = value * 2
    tl.store(y_ptr + row * n_cols + at, value, mask=inside)


@triton.jit
def shifted(x_ptr, y_ptr, n, by=3, BLOCK: tl.constexpr = 16):
    """A number that may be left out."""
    at = tl.arange(0, BLOCK)
    inside = at < n
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=inside) + by, mask=inside)


@triton.jit
def grow(x_ptr, n, BLOCK: tl.constexpr):
    """Reads and writes the same memory."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(x_ptr + at, tl.load(x_ptr + at, mask=inside) + 1, mask=inside)


@triton.jit(do_not_specialize=["n"])
def plain_length(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    """As affine, with a length that is not specialised."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=inside), mask=inside)


@triton.heuristics({"BLOCK": lambda args: triton.next_power_of_2(args["n"])})
@triton.jit
def by_rule(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    """A block that a rule computes."""
    at = tl.arange(0, BLOCK)
    inside = at < n
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=inside), mask=inside)


@triton.autotune([triton.Config({"BLOCK": 16}, num_warps=1)], key=["n"])
@triton.jit
def tuned(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    """A block that an Autotuner gives."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=inside) + 1, mask=inside)


def cdiv_grid(n: int) -> Any:
    """Grid that depends on the block."""
    return lambda meta: (triton.cdiv(n, meta["BLOCK"]),)


def launch_affine(n: int, *, factor: float = 0.5, block: int = 16) -> tuple[Any, Any]:
    """Launch once; return the output and what it must be."""
    x = torch.arange(n, dtype=torch.float32)
    y = torch.zeros_like(x)
    affine[cdiv_grid(n)](x, y, n, factor, BLOCK=block)
    return y, x * factor * 3 + 2


def launch_rows(m: int, n: int, *, block: int = 16) -> tuple[Any, Any]:
    """Launch once; return the output and what it must be."""
    x = torch.arange(m * n, dtype=torch.float32).view(m, n)
    y = torch.zeros_like(x)
    rows[(m,)](x, y, n, block)
    return y, x * 2


@triton.jit
def spare(x_ptr, y_ptr, n, scratch_ptr=None, BLOCK: tl.constexpr = 16):
    """A pointer that may be left out."""
    at = tl.arange(0, BLOCK)
    inside = at < n
    value = tl.load(x_ptr + at, mask=inside)
    if scratch_ptr is not None:
        tl.store(scratch_ptr + at, value, mask=inside)
    tl.store(y_ptr + at, value, mask=inside)


@triton.jit
def optional(x_ptr, bias_ptr, y_ptr, n, BLOCK: tl.constexpr):
    """A pointer that may be None, which is another kernel."""
    at = tl.arange(0, BLOCK)
    inside = at < n
    value = tl.load(x_ptr + at, mask=inside)
    if bias_ptr is not None:
        value += tl.load(bias_ptr + at, mask=inside)
    tl.store(y_ptr + at, value, mask=inside)

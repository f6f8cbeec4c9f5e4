"""Sources of Triton variants for tests: honest ones, and changes that make them cheat."""

from __future__ import annotations

from typing import Any

from retuned.contract import Language, Solution, SourceFile

SOFTMAX = "softmax_n32"
LINEAR = "linear_w8_n16_k32"

HEAD = """import triton
import triton.language as tl

"""
ROW = (
    HEAD
    + """
@triton.jit
def kernel(x, y, M, N: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    mask = at < N
    v = tl.load(x + row * N + at, mask=mask, other=float("-inf"))
    e = tl.exp(v - tl.max(v, axis=0))
    out = e / tl.sum(e, axis=0)
    tl.store(y + row * N + at, out, mask=mask)
"""
)
TILE = (
    HEAD
    + """
@triton.jit
def kernel(
    x, wq, scale, y, M, N: tl.constexpr, K: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        inside = (m[:, None] < M) & (k[None, :] < K)
        a = tl.load(x + m[:, None] * K + k[None, :], mask=inside, other=0.0)
        inside = (n[None, :] < N) & (k[:, None] < K)
        b = tl.load(wq + n[None, :] * K + k[:, None], mask=inside, other=0).to(tl.float32)
        acc = tl.dot(a, b, acc, input_precision="ieee")
    s = tl.load(scale + n, mask=n < N, other=0.0)
    inside = (m[:, None] < M) & (n[None, :] < N)
    tl.store(y + m[:, None] * N + n[None, :], acc * s[None, :], mask=inside)
"""
)


def changed(old: str, new: str, *, source: str = ROW) -> str:
    """Replace a piece that must be there."""
    assert old in source
    return source.replace(old, new)


def softmax(source: str = ROW, **more: Any) -> Solution:
    """Return a softmax, one program per row where nothing else is said."""
    return _solution(source, {"params": {"BLOCK": 32}, "grid": ("M",), **more}, SOFTMAX)


def linear(source: str = TILE, **more: Any) -> Solution:
    """Return a linear layer in tiles."""
    body = {
        "params": {"BM": 16, "BN": 16, "BK": 16},
        "grid": ("cdiv(M, BM)", "cdiv(N, BN)"),
        **more,
    }
    return _solution(source, body, LINEAR)


def _solution(source: str, more: dict[str, Any], definition: str) -> Solution:
    body = {
        "name": "candidate",
        "definition": definition,
        "language": Language.TRITON,
        "entry": "kernel",
        "sources": (SourceFile(path="kernel.py", content=source),),
        "structure": "hostile",
    }
    return Solution.model_validate({**body, **more})

"""The five operators a decoder is made of, and their plain PyTorch form.

Input order is the order of the catalog's definitions. Everything is float32 except int8 weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Tensor = Any
"""A `torch.Tensor`; torch itself is imported only by those who compute."""

RMS_EPSILON = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Operators:
    """What the model calls. Each returns a new tensor and changes none of its inputs."""

    linear_w8: Callable[[Tensor, Tensor, Tensor], Tensor]
    """x[M,K], wq[N,K] int8, scale[N] -> [M,N]."""
    rmsnorm: Callable[[Tensor, Tensor], Tensor]
    """x[M,H], weight[H] -> [M,H]."""
    silu_mul: Callable[[Tensor], Tensor]
    """x[M,2I], gate then up -> [M,I]."""
    attention: Callable[[Tensor, Tensor, Tensor], Tensor]
    """q[T,H,D], k[S,H,D], v[S,H,D] -> [T,H,D]; the queries are the last T of S, causal."""
    softmax: Callable[[Tensor], Tensor]
    """x[M,N] -> [M,N], over N."""


def plain_operators() -> Operators:
    """Return the operators as PyTorch has them: for tests, and where no compiler is at hand."""
    import torch
    from torch.nn import functional

    def linear_w8(x: Tensor, wq: Tensor, scale: Tensor) -> Tensor:
        return functional.linear(x, wq.to(torch.float32)) * scale

    def rmsnorm(x: Tensor, weight: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + RMS_EPSILON) * weight

    def silu_mul(x: Tensor) -> Tensor:
        gate, up = x.chunk(2, dim=-1)
        return functional.silu(gate) * up

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        rows, total = q.shape[0], k.shape[0]
        seen = torch.ones(rows, total, dtype=torch.bool, device=q.device).tril(total - rows)
        query, key, value = (t.transpose(0, 1).unsqueeze(0) for t in (q, k, v))
        mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=seen)
        return mixed.squeeze(0).transpose(0, 1).contiguous()

    def softmax(x: Tensor) -> Tensor:
        return x.softmax(-1)

    return Operators(
        linear_w8=linear_w8,
        rmsnorm=rmsnorm,
        silu_mul=silu_mul,
        attention=attention,
        softmax=softmax,
    )

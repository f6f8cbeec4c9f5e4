"""The catalog's operators as PyTorch users write them, for torch.compile to do its best with.

Each takes a definition's inputs in its order and returns its outputs in its order. Sums and roots
are in float32, as the models that the field serves have them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

Peer = Callable[..., tuple[Tensor, ...]]

_EPSILON = 1e-6
_BLOCK = 128


def rmsnorm(x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    """x[M,H] and weight[H] to y[M,H]."""
    wide = x.float()
    scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + _EPSILON)
    return ((wide * scale * weight.float()).to(x.dtype),)


def add_rmsnorm(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    """x[M,H], residual[M,H] and weight[H] to y[M,H] and the sum[M,H]."""
    total = x.float() + residual.float()
    scale = torch.rsqrt(total.pow(2).mean(-1, keepdim=True) + _EPSILON)
    return (total * scale * weight.float()).to(x.dtype), total.to(x.dtype)


def layernorm(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
    """x[M,H], weight and bias[H] to y[M,H]."""
    return (functional.layer_norm(x, x.shape[-1:], weight, bias, 1e-5),)


def silu_mul(x: Tensor) -> tuple[Tensor, ...]:
    """x[M,2I] to y[M,I]."""
    gate, up = x.chunk(2, dim=-1)
    return ((functional.silu(gate.float()) * up.float()).to(x.dtype),)


def gelu_mul(x: Tensor) -> tuple[Tensor, ...]:
    """x[M,2I] to y[M,I]; the tangent's approximation."""
    gate, up = x.chunk(2, dim=-1)
    return ((functional.gelu(gate.float(), approximate="tanh") * up.float()).to(x.dtype),)


def rope(positions: Tensor, q: Tensor, k: Tensor, cache: Tensor) -> tuple[Tensor, ...]:
    """positions[M], q[M,Q,D], k[M,K,D] and cache[P,D] to turned q and k."""
    cosine, sine = cache[positions].float()[:, None, :].chunk(2, dim=-1)

    def turned(heads: Tensor) -> Tensor:
        low, high = heads.float().chunk(2, dim=-1)
        parts = [low * cosine - high * sine, high * cosine + low * sine]
        return torch.cat(parts, dim=-1).to(heads.dtype)

    return turned(q), turned(k)


def softmax(x: Tensor) -> tuple[Tensor, ...]:
    """x[M,N] to y[M,N]."""
    return (torch.softmax(x, dim=-1),)


def topk_gating(logits: Tensor) -> tuple[Tensor, ...]:
    """logits[M,E] to weights and ids of the best eight."""
    best, ids = torch.topk(logits, 8, dim=-1)
    return torch.softmax(best, dim=-1), ids.to(torch.int32)


def gemm(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    """x[M,K] and w[N,K] to y[M,N]."""
    return (x @ w.t(),)


def gemm_fp8(x: Tensor, w: Tensor, x_scale: Tensor, w_scale: Tensor) -> tuple[Tensor, ...]:
    """x[M,K], w[N,K] and their scales by blocks of 128 to y[M,N], made wide first."""
    by_row = x_scale.repeat_interleave(_BLOCK, dim=1)[:, : x.shape[1]]
    by_block = w_scale.repeat_interleave(_BLOCK, dim=0).repeat_interleave(_BLOCK, dim=1)
    left = (x.float() * by_row).to(torch.bfloat16)
    right = (w.float() * by_block[: w.shape[0], : w.shape[1]]).to(torch.bfloat16)
    return (left @ right.t(),)


def scaled_gemm_fp8(x: Tensor, w: Tensor, x_scale: Tensor, w_scale: Tensor) -> tuple[Tensor, ...]:
    """Return the same by the library's own scaled product, which wants columns of scales."""
    columns = x_scale.t().contiguous().t()
    return (
        torch._scaled_mm(x, w.t(), scale_a=columns, scale_b=w_scale.t(), out_dtype=torch.bfloat16),
    )


def linear_w8(x: Tensor, wq: Tensor, scale: Tensor) -> tuple[Tensor, ...]:
    """x[M,K], wq[N,K] int8 and scale[N] to y[M,N]."""
    return (((x @ wq.to(x.dtype).t()) * scale).to(x.dtype),)


def quant_fp8(x: Tensor) -> tuple[Tensor, ...]:
    """x[M,H] to q[M,H] and scale[M]."""
    wide = x.float()
    scale = torch.clamp(wide.abs().amax(-1) / 448.0, min=1e-10)
    return (wide / scale[:, None]).to(torch.float8_e4m3fn), scale


def quant_int8(x: Tensor) -> tuple[Tensor, ...]:
    """x[M,H] to q[M,H] and scale[M]."""
    wide = x.float()
    scale = torch.clamp(wide.abs().amax(-1) / 127.0, min=1e-10)
    return torch.round(wide / scale[:, None]).clamp(-127, 127).to(torch.int8), scale


def paged_attention(
    q: Tensor, k: Tensor, v: Tensor, table: Tensor, seen: Tensor
) -> tuple[Tensor, ...]:
    """q[B,H,D], k and v[C,P,G,D], table[B,W] and seen[B] to out[B,H,D]."""
    sequences, _, width = q.shape
    _, page, groups, _ = k.shape
    length = table.shape[1] * page
    pages = table.clamp(0, k.shape[0] - 1)
    key, value = (
        cache[pages].reshape(sequences, length, groups, width).transpose(1, 2) for cache in (k, v)
    )
    mask = (torch.arange(length, device=q.device)[None, :] < seen[:, None])[:, None, None, :]
    out = functional.scaled_dot_product_attention(
        q[:, :, None, :], key, value, attn_mask=mask, enable_gqa=True
    )
    return (out[:, :, 0, :],)


def moe_gemm(
    x: Tensor, w: Tensor, order: Tensor, ends: Tensor, weight: Tensor
) -> tuple[Tensor, ...]:
    """x[M,K], w[E,N,K], order[M,T], ends[E] and weight[M,T] to y[M,T,N]."""
    tokens, slots = order.shape
    routes = order.reshape(-1).long()
    product = torch._grouped_mm(x[routes // slots], w.transpose(-2, -1), offs=ends)
    weighed = (product.float() * weight.reshape(-1)[routes, None]).to(x.dtype)
    out = torch.empty_like(weighed)
    out[routes] = weighed
    return (out.reshape(tokens, slots, -1),)


PEERS: Mapping[str, tuple[Peer, ...]] = {
    "rmsnorm": (rmsnorm,),
    "add_rmsnorm": (add_rmsnorm,),
    "layernorm": (layernorm,),
    "silu_mul": (silu_mul,),
    "gelu_mul": (gelu_mul,),
    "rope": (rope,),
    "softmax": (softmax,),
    "topk_gating": (topk_gating,),
    "gemm_bf16": (gemm,),
    "gemm_fp8": (gemm_fp8, scaled_gemm_fp8),
    "linear_w8": (linear_w8,),
    "quant_fp8": (quant_fp8,),
    "quant_int8": (quant_int8,),
    "paged_attention_bf16": (paged_attention,),
    "moe_gemm_bf16": (moe_gemm,),
}
"""By operator; of several that are right, the fastest is the peer."""


def peers_of(op_type: str) -> tuple[Peer, ...]:
    """Return the PyTorch forms of an operator, whatever its element type."""
    for name in (op_type, op_type.removesuffix("_bf16").removesuffix("_fp16")):
        if name in PEERS:
            return PEERS[name]
    return ()


def compiled(peer: Peer) -> Any:  # noqa: ANN401 - what torch.compile returns
    """Return the form as PyTorch's compiler tunes it, without the compiler's graphs."""
    return torch.compile(peer, mode="max-autotune-no-cudagraphs", dynamic=False, fullgraph=True)

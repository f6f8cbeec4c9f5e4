"""A plugin of vLLM that puts a tunable into a server without a GPU.

vLLM's build for CPUs has no Triton kernel. This one runs in Triton's interpreter inside each layer
of the model: it copies a part of the hidden state to itself, so that answers depend on what it
writes and every configuration gives the same answer.
"""

# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

import functools
from typing import Any

import torch
import triton
import triton.language as tl

ELEMENTS = 256


@triton.jit
def _copied(x_ptr: Any, out_ptr: Any, n: Any, wide: Any, BLOCK: tl.constexpr) -> None:
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + at, mask=at < n, other=0.0), mask=at < n)


CONFIGS = [triton.Config({"BLOCK": size}, num_warps=2, num_stages=1) for size in (8, 64, 256)]
copied = triton.autotune(configs=CONFIGS, key=["wide"])(_copied)


def register() -> None:
    """Put the kernel into Qwen2's feed-forward layers; called by vLLM in each of its processes."""
    from vllm.model_executor.models.qwen2 import (  # type: ignore[import-not-found]
        Qwen2MLP,
    )

    copied.cache[1, "torch.float32", "torch.float32"] = CONFIGS[0]  # chosen once, and badly
    stock = Qwen2MLP.forward

    @functools.wraps(stock)
    def forward(layer: Any, hidden: Any) -> Any:
        piece = hidden.flatten()[:ELEMENTS].to(torch.float32)
        out = torch.empty_like(piece)
        count = piece.numel()
        copied[lambda meta: (triton.cdiv(count, meta["BLOCK"]),)](piece, out, n=count, wide=1)
        whole = hidden.clone()
        whole.view(-1)[:count] = out.to(hidden.dtype)
        return stock(layer, whole)

    Qwen2MLP.forward = forward

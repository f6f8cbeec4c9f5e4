"""A plugin of vLLM: a tunable whose configurations take known extra time, in a server on a CPU.

As in `fake_tunable`, the kernel runs in Triton's interpreter and copies a
part of each layer's hidden state to itself. `EXTRA` is a number of further operations without an
effect on the answer; the server's own choice has none.
"""

# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

import functools
from typing import Any

import torch
import triton
import triton.language as tl

ELEMENTS = 256
EXTRAS = (0, 4, 8, 16, 32, 64, 128)


@triton.jit
def _copied(
    x_ptr: Any, out_ptr: Any, n: Any, wide: Any, BLOCK: tl.constexpr, EXTRA: tl.constexpr
) -> None:
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x_ptr + at, mask=at < n, other=0.0)
    for _ in range(EXTRA):
        value = value * 1.0
    tl.store(out_ptr + at, value, mask=at < n)


CONFIGS = [
    triton.Config({"BLOCK": ELEMENTS, "EXTRA": extra}, num_warps=2, num_stages=1)
    for extra in EXTRAS
]
copied = triton.autotune(configs=CONFIGS, key=["wide"])(_copied)


def register() -> None:
    """Put the kernel into Qwen2's feed-forward layers; called by vLLM in each of its processes."""
    from vllm.model_executor.models.qwen2 import (  # type: ignore[import-not-found]
        Qwen2MLP,
    )

    copied.cache[1, "torch.float32", "torch.float32"] = CONFIGS[0]
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

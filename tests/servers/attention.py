"""vLLM's attention launcher, run on small inputs in Triton's interpreter."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
import triton
import triton.language as tl
from tests.servers.sources import running

MODULE = "vllm.v1.attention.ops.triton_unified_attention"
HELPERS = "vllm.v1.attention.ops.triton_attention_helpers"
_HEADS, _KV_HEADS, _HEAD, _BLOCK = 4, 2, 16, 16


class KVQuantMode(enum.IntEnum):
    """vLLM's own numbers; the kernel takes them as constants."""

    NONE = 0
    FP8_PER_TENSOR = 1
    INT8_PER_TOKEN_HEAD = 2
    FP8_PER_TOKEN_HEAD = 3
    INT4_PER_TOKEN_HEAD = 4


@contextmanager
def attention(folder: Path) -> Iterator[ModuleType]:
    """Import the launcher's module of one version."""
    platform = SimpleNamespace(
        fp8_dtype=lambda: torch.float8_e4m3fn, is_device_capability_family=lambda _: False
    )
    names: dict[str, Mapping[str, Any]] = {
        "vllm.envs": {"VLLM_BATCH_INVARIANT": False},
        "vllm.platforms": {"current_platform": platform},
        "vllm.triton_utils": {"tl": tl, "triton": triton},
        "vllm.v1.kv_cache_interface": {"KVQuantMode": KVQuantMode},
    }
    with running(folder, [HELPERS, MODULE], names) as modules:
        yield modules[MODULE]


def arguments(queries: Sequence[int], keys: Sequence[int], *, segments: int) -> dict[str, Any]:
    """Return the arguments of one call: sequences with so many new rows and so many keys."""
    torch.manual_seed(0)
    rows, pages = sum(queries), [-(-each // _BLOCK) for each in keys]
    pool = (sum(pages), _BLOCK, _KV_HEADS, _HEAD)
    table = torch.zeros(len(keys), max(pages), dtype=torch.int32)
    places, taken = torch.randperm(sum(pages), dtype=torch.int32), 0
    for at, count in enumerate(pages):
        table[at, :count] = places[taken : taken + count]
        taken += count
    starts = torch.tensor([0, *queries]).cumsum(0).to(torch.int32)
    return {
        "q": torch.randn(rows, _HEADS, _HEAD),
        "k": torch.randn(pool),
        "v": torch.randn(pool),
        "out": torch.full((rows, _HEADS, _HEAD), float("nan")),
        "cu_seqlens_q": starts,
        "max_seqlen_q": max(queries),
        "seqused_k": torch.tensor(keys, dtype=torch.int32),
        "max_seqlen_k": max(keys),
        "softmax_scale": _HEAD**-0.5,
        "causal": True,
        "window_size": (-1, -1),
        "block_table": table,
        "softcap": 0,
        "q_descale": None,
        "k_descale": None,
        "v_descale": None,
        "seq_threshold_3D": 128 if segments else None,
        "num_par_softmax_segments": segments or None,
        "softmax_segm_output": torch.empty(rows, _HEADS, segments, _HEAD) if segments else None,
        "softmax_segm_max": torch.empty(rows, _HEADS, segments) if segments else None,
        "softmax_segm_expsum": torch.empty(rows, _HEADS, segments) if segments else None,
    }


def expected(call: Mapping[str, Any]) -> torch.Tensor:
    """Return the answer by PyTorch, from the pages that the table names."""
    answer = torch.empty_like(call["out"])
    starts = call["cu_seqlens_q"].tolist()
    for at, keys in enumerate(call["seqused_k"].tolist()):
        first, last = starts[at], starts[at + 1]
        pages = call["block_table"][at].long()
        k = call["k"][pages].flatten(0, 1)[:keys].repeat_interleave(_HEADS // _KV_HEADS, 1)
        v = call["v"][pages].flatten(0, 1)[:keys].repeat_interleave(_HEADS // _KV_HEADS, 1)
        scores = torch.einsum("qhd,khd->hqk", call["q"][first:last], k) * call["softmax_scale"]
        past = torch.arange(keys)[None, :] - torch.arange(keys - (last - first), keys)[:, None]
        weights = scores.masked_fill(past > 0, float("-inf")).softmax(-1)
        answer[first:last] = torch.einsum("hqk,khd->qhd", weights, v)
    return answer

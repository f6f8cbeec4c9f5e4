"""vLLM's look-up of configurations for fused mixture-of-experts kernels, run without a device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
import triton
import triton.language as tl
from tests.servers.sources import running

PACKAGE = "vllm.model_executor.layers.fused_moe"
MODULE = f"{PACKAGE}.fused_moe"


@contextmanager
def fused_moe(folder: Path, tuned: Path | None = None) -> Iterator[ModuleType]:
    """Import the look-up's module of one version, on an H200; with a user's folder where given."""
    names: dict[str, Mapping[str, Any]] = {
        "vllm.envs": {
            "VLLM_BATCH_INVARIANT": False,
            "VLLM_TUNED_CONFIG_FOLDER": tuned and str(tuned),
        },
        "vllm.platforms": {"current_platform": SimpleNamespace(is_rocm=lambda: False)},
        "vllm.triton_utils": {"tl": tl, "triton": triton},
        "vllm.utils.platform_utils": {"get_device_name_as_file_name": lambda: "NVIDIA_H200"},
        PACKAGE: {"get_config": lambda: None},
        f"{PACKAGE}.utils": {
            "resolve_moe_use_td": lambda: False,
            "warn_if_moe_use_td_ineffective": lambda *_, **__: None,
        },
    }
    with running(folder, [MODULE], names) as modules:
        yield modules[MODULE]


def asked(module: ModuleType, tokens: int, *, experts: int = 128) -> dict[str, int]:
    """Ask as the layer does; 128 experts have a file in the package, and 7 have none."""
    answer: dict[str, int] = module.try_get_optimal_moe_config(
        (experts, 1536, 2048), (experts, 2048, 768), 8, None, tokens
    )
    return answer


def experts_of(tokens: int, experts: int, width: int) -> dict[str, torch.Tensor]:
    """Return the inputs of the first of a layer's two launches: each token goes to two experts."""
    torch.manual_seed(0)
    routes = torch.stack([torch.randperm(experts)[:2] for _ in range(tokens)])
    return {
        "states": torch.randn(tokens, width),
        "weights": torch.randn(experts, 48, width),
        "routes": routes,
    }


def launched(
    module: ModuleType, layer: Mapping[str, torch.Tensor], row: Mapping[str, int]
) -> torch.Tensor:
    """Launch the kernel by the server's own function with one row of a table."""
    ids, blocks = aligned(layer["routes"], len(layer["weights"]), row["BLOCK_SIZE_M"])
    answer = torch.full((len(layer["states"]), 2, 48), float("nan"))
    _invoke(module, row, ids=ids, blocks=blocks, A=layer["states"], B=layer["weights"], C=answer)
    return answer


def _invoke(
    module: ModuleType,
    row: Mapping[str, int],
    *,
    ids: torch.Tensor,
    blocks: torch.Tensor,
    **changed: Any,
) -> None:
    """Call the server's launcher for the first of a layer's two products, without scales."""
    plain: dict[str, Any] = {
        "A_scale": None,
        "B_scale": None,
        "topk_weights": None,
        "sorted_token_ids": ids,
        "expert_ids": blocks,
        "num_tokens_post_padded": torch.tensor([len(ids)], dtype=torch.int32),
        "mul_routed_weight": False,
        "top_k": 2,
        "config": dict(row),
        "compute_type": tl.float32,
        "use_fp8_w8a8": False,
        "use_int8_w8a8": False,
        "use_int8_w8a16": False,
        "use_int4_w4a16": False,
        "per_channel_quant": False,
    }
    module.invoke_fused_moe_triton_kernel(**(plain | changed))


def launched_naive(module: ModuleType, row: Mapping[str, int]) -> None:
    """Launch without routes in the order of experts, on a kernel that is a stand-in."""
    ids, blocks = aligned(torch.zeros(20, 2, dtype=torch.int64), 4, row["BLOCK_SIZE_M"])
    tensors = {"A": torch.empty(20, 80), "B": torch.empty(4, 48, 80), "C": torch.empty(20, 2, 48)}
    _invoke(module, row, ids=ids, blocks=blocks, **tensors, sorted_token_ids=None)


def launched_fp8(module: ModuleType, row: Mapping[str, int]) -> None:
    """Launch with weights scaled by blocks of 64, on a kernel that is a stand-in."""
    ids, blocks = aligned(torch.zeros(20, 2, dtype=torch.int64), 4, row["BLOCK_SIZE_M"])
    _invoke(
        module,
        row,
        ids=ids,
        blocks=blocks,
        A=torch.empty(20, 128, dtype=torch.float8_e4m3fn),
        B=torch.empty(4, 192, 128, dtype=torch.float8_e4m3fn),
        C=torch.empty(20, 2, 192),
        A_scale=torch.ones(20, 2),
        B_scale=torch.ones(4, 3, 2),
        compute_type=tl.bfloat16,
        use_fp8_w8a8=True,
        block_shape=[64, 64],
    )


def aligned(routes: torch.Tensor, experts: int, block: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return routes by expert, each padded to whole blocks, and the expert of each block."""
    flat, ids, blocks = routes.flatten(), [], []
    for expert in range(experts):
        own = (flat == expert).nonzero().flatten()
        padding = -len(own) % block
        ids.append(torch.cat([own, torch.full((padding,), len(flat))]))
        blocks += [expert] * (len(ids[-1]) // block)
    return torch.cat(ids).to(torch.int32), torch.tensor(blocks, dtype=torch.int32)


def expected(layer: Mapping[str, torch.Tensor]) -> torch.Tensor:
    return torch.einsum("tk,tenk->ten", layer["states"], layer["weights"][layer["routes"]])

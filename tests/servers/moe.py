"""vLLM's look-up of configurations for fused mixture-of-experts kernels, run without a device."""

from __future__ import annotations

import math
import sys
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
LAYERS = f"{PACKAGE}.experts.triton_moe"


@contextmanager
def fused_moe(folder: Path, tuned: Path | None = None) -> Iterator[ModuleType]:
    """Import the look-up's module of one version, on an H200; with a user's folder where given."""
    with running(folder, [MODULE], _names(tuned)) as modules:
        yield modules[MODULE]


@contextmanager
def expert_layers(folder: Path) -> Iterator[ModuleType]:
    """Import the module of Triton experts of one version with the look-up's.

    Their base class, and vLLM's compiled operators that sort and add up, are stand-ins in Python.
    """
    names = _names(None)
    names |= {
        "vllm": {"_custom_ops": SimpleNamespace(moe_sum=_summed)},
        f"{PACKAGE}.modular_kernel": {"FusedMoEExpertsModular": Experts},
        f"{PACKAGE}.experts.lora_experts_mixin": {"LoRAExpertsMixin": WithoutAdapters},
        f"{PACKAGE}.moe_align_block_size": {"moe_align_block_size": _sorted},
    }
    names[f"{PACKAGE}.utils"] = {
        **names[f"{PACKAGE}.utils"],
        "_resize_cache": lambda cache, shape: cache.flatten()[: math.prod(shape)].view(*shape),
        "moe_kernel_quantize_input": lambda states, *_, **__: (states, None),
    }
    with running(folder, [MODULE, LAYERS], names) as modules:
        yield modules[LAYERS]


def _names(tuned: Path | None) -> dict[str, Mapping[str, Any]]:
    return {
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


class WithoutAdapters:
    """In place of vLLM's methods for adapters: they look rows up, as its own, and add nothing."""

    _lora_context: Any = None

    def apply_w13_lora(self, *_: Any, **given: Any) -> tuple[None, ...]:
        _look_up(given)
        return (None,) * 4

    def apply_w2_lora(self, *_: Any, **given: Any) -> None:
        _look_up(given)


def _look_up(given: Mapping[str, Any]) -> None:
    module = sys.modules[MODULE]
    shapes = given["w1"].shape, given["w2"].shape
    for _ in range(2):  # shrink and expand
        module.try_get_optimal_moe_config(*shapes, given["top_k_num"], None, given["num_tokens"])


class Experts:
    """In place of vLLM's base class: what ``apply`` asks it for, without quantisation."""

    def __init__(self, *_: Any) -> None:
        self.quant_config = SimpleNamespace(
            config_name=lambda dtype: None,
            **dict.fromkeys(("use_fp8_w8a8", "use_int8_w8a8", "use_int8_w8a16"), False),
            use_int4_w4a16=False,
            **dict.fromkeys(("gemm1_clamp_limit", "gemm1_alpha", "gemm1_beta")),
        )
        self.activation_config = SimpleNamespace(clamp_limit=None)
        self.per_act_token_quant = False
        named = ("block_shape", "quant_dtype", "a1_scale", "w1_scale", "w2_scale")
        vars(self).update(dict.fromkeys((*named, "w1_bias", "w2_bias", "post_gemm2_hook")))

    def moe_problem_size(
        self, states: torch.Tensor, w1: torch.Tensor, _: torch.Tensor, ids: torch.Tensor
    ) -> tuple[int, ...]:
        return len(w1), len(states), w1.shape[1], states.shape[1], ids.shape[1]

    def adjust_N_for_activation(self, wide: int, activation: Any) -> int:
        return wide // 2

    def activation(self, _: Any, output: torch.Tensor, given: torch.Tensor, **__: Any) -> None:
        gate, up = given.chunk(2, dim=-1)
        output.copy_(torch.nn.functional.silu(gate) * up)

    def _uses_post_gemm2_hook(self, tokens: int) -> bool:
        return False


def _summed(products: torch.Tensor, output: torch.Tensor, *_: Any) -> None:
    torch.sum(products, dim=1, out=output)


def _sorted(
    routes: torch.Tensor, block: int, experts: int, *_: Any, **__: Any
) -> tuple[torch.Tensor, ...]:
    ids, blocks = aligned(routes, experts, block)
    return ids, blocks, torch.tensor([len(ids)], dtype=torch.int32)


def layer_call(tokens: int) -> dict[str, Any]:
    """Return the arguments of a layer of four experts; its output lies in a workspace, as there."""
    torch.manual_seed(0)
    width, inner = 32, 32
    workspace = torch.full((tokens * 2 * width,), float("nan"))
    return {
        "output": workspace[: tokens * width].view(tokens, width),
        "hidden_states": torch.randn(tokens, width),
        "w1": torch.randn(4, 2 * inner, width),
        "w2": torch.randn(4, width, inner),
        "topk_weights": torch.rand(tokens, 2),
        "topk_ids": torch.stack([torch.randperm(4)[:2] for _ in range(tokens)]),
        "activation": "silu",
        "global_num_experts": -1,
        "expert_map": None,
        "a1q_scale": None,
        "a2_scale": None,
        "workspace13": workspace,
        "workspace2": torch.full((tokens * 2 * 2 * inner,), float("nan")),
        "expert_tokens_meta": None,
        "apply_router_weight_on_input": False,
    }


def layer_output(call: Mapping[str, Any]) -> torch.Tensor:
    """Return what a layer's output has to be."""
    chosen = call["w1"][call["topk_ids"]]
    gate, up = torch.einsum("tk,teik->tei", call["hidden_states"], chosen).chunk(2, dim=-1)
    inner = torch.nn.functional.silu(gate) * up
    products = torch.einsum("tei,teki->tek", inner, call["w2"][call["topk_ids"]])
    return (products * call["topk_weights"][..., None]).sum(1)


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

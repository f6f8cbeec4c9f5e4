"""Model folders with random weights: configuration, tokenizer, safetensors; nothing is downloaded.

Weights are scaled by fan-in and norms are 1, so activations are of order one and a greedy answer
depends on the whole prompt.

    python -m benchmarks.gpu.vllm_live.models OUT dense|mamba2|hybrid|moe_fp8_e256|moe_fp8_e512
"""

from __future__ import annotations

import itertools
import json
import math
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

VOCABULARY = 32_000
_BLOCK = 128
_MOST_TENSORS = 4000
"""Of one file."""
_LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "vocab_size": VOCABULARY,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 32_768,
    "rope_theta": 10_000.0,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "attention_bias": False,
    "mlp_bias": False,
    "dtype": "bfloat16",
    "hidden_size": 2048,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "intermediate_size": 8192,
}
_MAMBA2: dict[str, Any] = {
    "architectures": ["Mamba2ForCausalLM"],
    "model_type": "mamba2",
    "vocab_size": VOCABULARY,
    "hidden_size": 2048,
    "num_hidden_layers": 24,
    "num_heads": 64,
    "head_dim": 64,
    "state_size": 128,
    "n_groups": 8,
    "chunk_size": 128,
    "expand": 2,
    "conv_kernel": 4,
    "use_bias": False,
    "use_conv_bias": True,
    "hidden_act": "silu",
    "layer_norm_epsilon": 1e-5,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "rms_norm": True,
    "residual_in_fp32": False,
    "time_step_limit": [0.0, 1e9],
    "dtype": "bfloat16",
}
_HYBRID: dict[str, Any] = {
    "architectures": ["NemotronHForCausalLM"],
    "model_type": "nemotron_h",
    "vocab_size": VOCABULARY,
    "hidden_size": 2048,
    "hybrid_override_pattern": "MM-M*-" * 6,
    "num_hidden_layers": 36,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 4096,
    "mlp_hidden_act": "relu2",
    "mamba_num_heads": 64,
    "mamba_head_dim": 64,
    "ssm_state_size": 128,
    "n_groups": 8,
    "chunk_size": 128,
    "expand": 2,
    "conv_kernel": 4,
    "use_bias": False,
    "use_conv_bias": True,
    "layer_norm_epsilon": 1e-5,
    "max_position_embeddings": 32_768,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "residual_in_fp32": False,
    "dtype": "bfloat16",
}
"""A small Nemotron-H: 18 Mamba2 layers, 6 of attention, 12 MLPs."""


def _moe_fp8(experts: int, width: int) -> dict[str, Any]:
    layers = 24
    kept = [
        f"model.layers.{layer}.{name}"
        for layer in range(layers)
        for name in (*(f"self_attn.{x}_proj" for x in "qkvo"), "mlp.gate")
    ]
    return _LLAMA | {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "rms_norm_eps": 1e-6,
        "num_hidden_layers": layers,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "intermediate_size": 6144,
        "moe_intermediate_size": width,
        "num_experts": experts,
        "num_experts_per_tok": 10,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "quantization_config": {
            "quant_method": "fp8",
            "activation_scheme": "dynamic",
            "fmt": "e4m3",
            "weight_block_size": [_BLOCK, _BLOCK],
            "modules_to_not_convert": [*kept, "lm_head"],
        },
    }


KINDS: Mapping[str, dict[str, Any]] = {
    "dense": _LLAMA,
    "mamba2": _MAMBA2,
    "hybrid": _HYBRID,
    # vLLM 0.26 has no file for these on an H100 80GB HBM3 and on an H200, respectively
    "moe_fp8_e256": _moe_fp8(256, 256),
    "moe_fp8_e512": _moe_fp8(512, 128),
    "tiny": _LLAMA
    | {
        "hidden_size": 512,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "intermediate_size": 1408,
    },
}


def tokenizer(folder: Path) -> None:
    """Write a tokenizer of one made-up word a token."""
    syllables = [a + b for a in "bcdfghjklmnprstvwz" for b in "aeiou"]
    words = (" " + "".join(s) for n in (2, 3) for s in itertools.product(syllables, repeat=n))
    special = ["<pad>", "<s>", "</s>", "<unk>"]
    listed = itertools.islice(itertools.chain(special, words), VOCABULARY)
    vocabulary = {word.strip(): index for index, word in enumerate(listed)}
    flags = {
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }
    (folder / "tokenizer.json").write_text(
        json.dumps(
            {
                "version": "1.0",
                "truncation": None,
                "padding": None,
                "added_tokens": [{"id": i, "content": c, **flags} for i, c in enumerate(special)],
                "normalizer": None,
                "pre_tokenizer": {"type": "WhitespaceSplit"},
                "post_processor": None,
                "decoder": None,
                "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"},
            }
        )
    )
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "bos_token": "<s>",
                "eos_token": "</s>",
                "unk_token": "<unk>",
                "pad_token": "<pad>",
                "clean_up_tokenization_spaces": False,
                "model_max_length": 32_768,
            }
        )
    )


Tensor = tuple[str, tuple[int, ...], str]
"""Name, shape, and how its numbers are drawn."""


def _llama(config: Mapping[str, Any]) -> Iterator[Tensor]:
    hidden, head = config["hidden_size"], config["head_dim"]
    query, key = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    yield "model.embed_tokens.weight", (VOCABULARY, hidden), "normal"
    yield "lm_head.weight", (VOCABULARY, hidden), "fan-in"
    yield "model.norm.weight", (hidden,), "ones"
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        yield at + "input_layernorm.weight", (hidden,), "ones"
        yield at + "post_attention_layernorm.weight", (hidden,), "ones"
        yield at + "self_attn.q_proj.weight", (query, hidden), "fan-in"
        yield at + "self_attn.k_proj.weight", (key, hidden), "fan-in"
        yield at + "self_attn.v_proj.weight", (key, hidden), "fan-in"
        yield at + "self_attn.o_proj.weight", (hidden, query), "fan-in"
        experts, width, draw = 0, config["intermediate_size"], "fan-in"
        if config["model_type"] == "qwen3_moe":
            yield at + "self_attn.q_norm.weight", (head,), "ones"
            yield at + "self_attn.k_norm.weight", (head,), "ones"
            yield at + "mlp.gate.weight", (config["num_experts"], hidden), "fan-in"
            experts, width, draw = config["num_experts"], config["moe_intermediate_size"], "fp8"
        parts = [f"mlp.experts.{each}." for each in range(experts)] or ["mlp."]
        for part in parts:
            yield at + part + "gate_proj.weight", (width, hidden), draw
            yield at + part + "up_proj.weight", (width, hidden), draw
            yield at + part + "down_proj.weight", (hidden, width), draw


def _mamba2(config: Mapping[str, Any]) -> Iterator[Tensor]:
    hidden = config["hidden_size"]
    yield "backbone.embeddings.weight", (VOCABULARY, hidden), "normal"
    yield "lm_head.weight", (VOCABULARY, hidden), "fan-in"
    yield "backbone.norm_f.weight", (hidden,), "ones"
    for layer in range(config["num_hidden_layers"]):
        at = f"backbone.layers.{layer}."
        yield at + "norm.weight", (hidden,), "ones"
        heads, size = config["num_heads"], config["head_dim"]
        yield from _mamba_mixer(config, at, heads=heads, size=size, state=config["state_size"])


def _hybrid(config: Mapping[str, Any]) -> Iterator[Tensor]:
    hidden, size = config["hidden_size"], config["head_dim"]
    query, key = config["num_attention_heads"] * size, config["num_key_value_heads"] * size
    yield "backbone.embeddings.weight", (VOCABULARY, hidden), "normal"
    yield "lm_head.weight", (VOCABULARY, hidden), "fan-in"
    yield "backbone.norm_f.weight", (hidden,), "ones"
    for layer, kind in enumerate(config["hybrid_override_pattern"]):
        at = f"backbone.layers.{layer}."
        yield at + "norm.weight", (hidden,), "ones"
        if kind == "M":
            heads, width = config["mamba_num_heads"], config["mamba_head_dim"]
            state = config["ssm_state_size"]
            yield from _mamba_mixer(config, at, heads=heads, size=width, state=state)
        elif kind == "*":
            yield at + "mixer.q_proj.weight", (query, hidden), "fan-in"
            yield at + "mixer.k_proj.weight", (key, hidden), "fan-in"
            yield at + "mixer.v_proj.weight", (key, hidden), "fan-in"
            yield at + "mixer.o_proj.weight", (hidden, query), "fan-in"
        else:
            yield at + "mixer.up_proj.weight", (config["intermediate_size"], hidden), "fan-in"
            yield at + "mixer.down_proj.weight", (hidden, config["intermediate_size"]), "fan-in"


def _mamba_mixer(
    config: Mapping[str, Any], at: str, *, heads: int, size: int, state: int
) -> Iterator[Tensor]:
    hidden, inner = config["hidden_size"], heads * size
    groups = 2 * config["n_groups"] * state
    yield at + "mixer.in_proj.weight", (2 * inner + groups + heads, hidden), "fan-in"
    yield at + "mixer.conv1d.weight", (inner + groups, 1, config["conv_kernel"]), "fan-in"
    yield at + "mixer.conv1d.bias", (inner + groups,), "zeros"
    yield at + "mixer.A_log", (heads,), "a-log"
    yield at + "mixer.D", (heads,), "ones"
    yield at + "mixer.dt_bias", (heads,), "dt-bias"
    yield at + "mixer.norm.weight", (inner,), "ones"
    yield at + "mixer.out_proj.weight", (hidden, inner), "fan-in"


_PARTS = {"mamba2": _mamba2, "nemotron_h": _hybrid}


def make(folder: Path, kind: str) -> None:
    """Write a model folder; one that is complete stays as it is."""
    import torch
    from safetensors.torch import save_file

    if (folder / "model.safetensors").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    config = KINDS[kind]
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    tokenizer(folder)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    generator = torch.Generator(device).manual_seed(0)
    tensors: dict[str, Any] = {}
    shared: dict[str, Any] = {}
    shards = 0
    for name, shape, draw in _PARTS.get(config["model_type"], _llama)(config):
        if draw == "fp8":  # all layers have the same experts, which saves a minute
            expert = name.partition(".mlp.")[2]
            if expert not in shared:
                drawn = torch.randn(shape, generator=generator, device=device)
                shared[expert] = drawn.to(torch.float8_e4m3fn).cpu()
            tensors[name] = shared[expert].clone()  # a file has no tensor twice
            blocks = tuple(math.ceil(length / _BLOCK) for length in shape)
            scale = torch.full(blocks, shape[-1] ** -0.5, dtype=torch.float32)
            tensors[name + "_scale_inv"] = scale
            continue
        if len(tensors) > _MOST_TENSORS:
            save_file(tensors, folder / f"model-{shards}.safetensors", metadata={"format": "pt"})
            tensors, shards = {}, shards + 1
        tensors[name] = _drawn(shape, draw, generator=generator, device=device)
    save_file(tensors, folder / "part.safetensors", metadata={"format": "pt"})
    (folder / "part.safetensors").rename(folder / "model.safetensors")


def _drawn(shape: tuple[int, ...], draw: str, *, generator: Any, device: str) -> Any:  # noqa: ANN401
    import torch

    if draw == "ones":
        return torch.ones(shape, dtype=torch.bfloat16)
    if draw == "zeros":
        return torch.zeros(shape, dtype=torch.bfloat16)
    if draw in ("a-log", "dt-bias"):
        uniform = torch.rand(shape, generator=generator, device=device)
        if draw == "a-log":
            return (1 + 15 * uniform).log().to(torch.bfloat16).cpu()
        step = (math.log(1e-3) + uniform * (math.log(0.1) - math.log(1e-3))).exp()
        return step.expm1().log().to(torch.bfloat16).cpu()
    scale = 1.0 if draw == "normal" else math.prod(shape[1:]) ** -0.5
    drawn = torch.randn(shape, generator=generator, device=device) * scale
    return drawn.to(torch.bfloat16).cpu()


if __name__ == "__main__":
    make(Path(sys.argv[1]) / sys.argv[2], sys.argv[2])

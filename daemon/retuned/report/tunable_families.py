"""Kernel families by name: where each configuration comes from, and what Retuned can change.

One table for the survey and for ``docs/tunables.md``. A name decides on a family only: whether a
kernel has a configuration at all, the living server reports.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

_LONGEST_NAME = 4096
"""Characters of a kernel's name that are compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """Time of the configuration in use over that of the best one, from measurements on an H200."""

    low: float
    """Smallest measured ratio."""
    high: float
    """Largest measured ratio."""
    expected: float
    """Ratio that the survey counts with; nearer to `low` where cases differ."""
    note: str
    """Cases that were measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelFamily:
    """Kernels whose configuration is chosen in the same place."""

    name: str
    """Stable word, kebab-case."""
    title: str
    """Name for people."""
    patterns: tuple[str, ...]
    """Regular expressions, searched in the kernel's name."""
    seam: str
    """Where the server chooses; empty if Python cannot reach the choice."""
    reach: tuple[str, ...] = ()
    """Ways in which Retuned changes it today, cheapest first: ``next-call``, ``recapture``,
    ``restart``."""
    reason: str = ""
    """Code in `REASONS` why it cannot be changed in a running server; empty if it can."""
    prior: Prior | None = None
    """Measured ratios; None without a measurement."""

    @property
    def live(self) -> bool:
        """Whether Retuned changes it in a running server."""
        return not self.reason


REASONS: Mapping[str, str] = MappingProxyType(
    {
        "adapter-missing": "Python chooses the configuration; Retuned has no adapter for it yet",
        "ahead-of-time": "the kernel was compiled with its configuration before the server started",
        "choice-in-library": "a compiled library chooses among its kernels",
        "communication": "the kernel moves data between GPUs; its speed depends on all ranks",
        "kernel-unknown": "no family of the table has this name",
        "needs-server": "only the running server reports whether this kernel has configurations",
        "private-launcher": "PyTorch's Inductor keeps launchers in a private interface; Retuned "
        "has no adapter for it yet",
        "read-at-start": "the server reads its table at start only; `retuned tuned` writes it",
        "version-untested": "this name comes from a vLLM version that Retuned was not tested with",
    }
)
"""Stable codes of what cannot be changed, each with its reason."""

WAYS: Mapping[str, tuple[float | None, str]] = MappingProxyType(
    {
        "next-call": (6.3e-5, "63 us at a safe point between two steps (measured: 50 to 91 us)"),
        "recapture": (
            1.1,
            "1.1 s for each captured batch size at an idle moment, compile included (one size "
            "measured); then 24 to 42 us for each exchange",
        ),
        "restart": (None, "one start of the server"),
    }
)
"""Ways of change: seconds (None without a measurement) and their cost in words."""

_SSD = Prior(
    low=1.0,
    high=1.8,
    expected=1.3,
    note="Mamba2 SSD: 1.3 to 1.8 in 8 of 8 draws for one model, 1.0 to 1.1 for another",
)
_DELTA = Prior(
    low=1.05, high=1.31, expected=1.2, note="gated delta rule: 1.2 to 1.3 from 2,048 tokens on"
)
_FROZEN = Prior(
    low=1.0, high=1.3, expected=1.05, note="no measurement of this kernel; range of its relatives"
)
_ATTENTION = Prior(
    low=1.1,
    high=3.8,
    expected=1.6,
    note="Triton attention: decode 1.1 to 3.8, prefill 3.3 to 3.6, mixed 1.5",
)
_MOE = Prior(
    low=1.0,
    high=1.46,
    expected=1.03,
    note="fused MoE: 1.1 to 1.46 from 128 to 1,024 tokens in block-FP8, 1.00 to 1.03 elsewhere",
)

FAMILIES: tuple[KernelFamily, ...] = (
    KernelFamily(
        name="attention",
        title="Triton unified attention (vLLM)",
        patterns=(r"^kernel_unified_attention$", r"^reduce_segments$"),
        seam="literals in `unified_attention`",
        reach=("next-call", "recapture"),
        prior=_ATTENTION,
    ),
    KernelFamily(
        name="attention-other-version",
        title="Triton unified attention of another vLLM version",
        patterns=(r"^kernel_unified_attention_", r"^kernel_reduce_segments"),
        seam="literals in `unified_attention`",
        reason="version-untested",
        prior=_ATTENTION,
    ),
    KernelFamily(
        name="moe",
        title="Fused mixture of experts, Triton (vLLM)",
        patterns=(r"^fused_moe_kernel(?:_gptq_awq)?$",),
        seam="`get_moe_configs`, JSON tables",
        reach=("next-call", "recapture", "restart"),
        prior=_MOE,
    ),
    KernelFamily(
        name="autotune-ssd",
        title="Autotuned Mamba2 SSD",
        patterns=(
            r"^_chunk_(?:scan|state|cumsum)_(?:fwd|varlen)",
            r"^_state_passing_fwd",
            r"^_bmm_chunk_fwd",
        ),
        seam="`Autotuner.cache`",
        reach=("next-call", "recapture"),
        prior=_SSD,
    ),
    KernelFamily(
        name="autotune-delta",
        title="Autotuned gated delta rule, KDA and relatives (FLA)",
        patterns=(
            r"^chunk_(?:fwd_kernel_o|gated_delta_rule_fwd|scaled_dot_kkt|local_cumsum|kda|gla)",
            r"^(?:merge_16x16_to_|solve_tril_|recompute_w_u_fwd|kda_gate_)",
            r"^(?:l2norm_fwd_kernel|layer_norm_gated_fwd_kernel)",
        ),
        seam="`Autotuner.cache`",
        reach=("next-call", "recapture"),
        prior=_DELTA,
    ),
    KernelFamily(
        name="lora",
        title="LoRA shrink and expand",
        patterns=(r"^_(?:lora_(?:shrink|expand)_kernel|fused_moe_lora_)",),
        seam="`get_lora_op_configs`, `load_lora_op_config`",
        reason="adapter-missing",
        prior=Prior(low=1.0, high=2.4, expected=1.6, note="LoRA: 1.2 to 2.4 at nearly every size"),
    ),
    KernelFamily(
        name="mamba-table",
        title="Mamba state update",
        patterns=(r"^_selective_scan_update_kernel",),
        seam="`get_ssm_configs`",
        reason="adapter-missing",
    ),
    KernelFamily(
        name="block-product",
        title="Dense block-FP8 and block-INT8 products, Triton",
        patterns=(
            r"^_w8a8_triton_block_scaled_mm",
            r"^_w8a8_block_(?:fp8|int8)_matmul",
        ),
        seam="`get_w8a8_block_fp8_configs`",
        reason="adapter-missing",
        prior=Prior(
            low=1.0,
            high=3.4,
            expected=1.3,
            note="dense block-FP8: 1.3 to 3.4 without a table, 1.0 to 1.4 with one",
        ),
    ),
    KernelFamily(
        name="scaled-product",
        title="Scaled products by literals, Triton",
        patterns=(r"^scaled_mm_kernel$", r"^awq_(?:gemm|dequantize)_kernel", r"^triton_w4a16_"),
        seam="literals in `triton_scaled_mm`",
        reason="adapter-missing",
    ),
    KernelFamily(
        name="triton-kernels",
        title="Products of the package triton_kernels (gpt-oss)",
        patterns=(r"^_p?_?matmul_ogs", r"^_finalize_matmul", r"^_combined_routing", r"^_topk_"),
        seam="`opt_flags` of `matmul_ogs`",
        reason="adapter-missing",
    ),
    KernelFamily(
        name="attention-literals",
        title="Other Triton attention (MLA decode, prefix, SGLang)",
        patterns=(
            r"^_fwd_(?:grouped_)?kernel(?:_stage[12]|_alibi)?$",
            r"^kernel_paged_attention_2d$",
            r"^merge_attn_states_kernel$",
        ),
        seam="literals in the launchers",
        reason="adapter-missing",
    ),
    KernelFamily(
        name="inductor",
        title="Inductor's generated kernels",
        patterns=(r"^triton_(?:poi|red|per|tem|mm|for|unk|split)_",),
        seam="`CachingAutotuner.launchers`",
        reason="private-launcher",
        prior=Prior(
            low=1.0,
            high=2.2,
            expected=1.02,
            note="Inductor: 1.3 to 2.2 in two of seven patterns at 2,048 tokens, 1.0 at decode",
        ),
    ),
    KernelFamily(
        name="helion",
        title="Helion",
        patterns=(r"^_helion_",),
        seam="`ConfigManager`",
        reason="adapter-missing",
    ),
    KernelFamily(
        name="deep-gemm",
        title="DeepGEMM",
        patterns=(r"deep_gemm", r"^sm(?:90|100)_(?:fp8|bf16|m_grouped)\w*gemm"),
        seam="",
        reason="choice-in-library",
    ),
    KernelFamily(
        name="flash-attention",
        title="FlashAttention, FlashMLA, cuDNN and AOTriton attention",
        patterns=(
            r"flash(?:_|::)?(?:fwd|bwd|attn|mla)",
            r"FlashAttn",
            r"\bflash::",
            r"_native_sdpa_",
            r"\bfmha",
            r"^(?:attn|bwd)_(?:fwd|kernel)",
        ),
        seam="",
        reason="ahead-of-time",
    ),
    KernelFamily(
        name="flashinfer",
        title="FlashInfer tactics",
        patterns=(
            r"flashinfer",
            r"Batch(?:Prefill|Decode|MLA)\w*With",
            r"trtllm|tensorrt_llm",
        ),
        seam="`flashinfer.autotuner.AutoTuner`",
        reason="adapter-missing",
    ),
    KernelFamily(
        name="aiter",
        title="AITER and Composable Kernel",
        patterns=(r"aiter", r"(?:^|\W)(?:_ZN\d+)?ck(?:_tile)?(?:\d|::)", r"^_ZN(?:2ck|7ck_tile)"),
        seam="AITER's CSV tables",
        reach=("restart",),
        reason="read-at-start",
    ),
    KernelFamily(
        name="hipblaslt",
        title="hipBLASLt and rocBLAS products",
        patterns=(r"^Cijk_", r"rocblas", r"hipblaslt"),
        seam="TunableOp's CSV",
        reach=("restart",),
        reason="read-at-start",
    ),
    KernelFamily(
        name="marlin",
        title="Marlin, Machete and Humming",
        patterns=(r"[Mm]arlin", r"machete", r"humming"),
        seam="",
        reason="ahead-of-time",
    ),
    KernelFamily(
        name="cublas",
        title="cuBLAS and CUTLASS products",
        patterns=(
            r"^nvjet_",
            r"cublas",
            r"cutlass",
            r"^(?:sm\d+|volta|turing|ampere|hopper)_\w*gemm",
            r"^gemm",
            r"^void (?:gemv|gemm)",
            r"splitKreduce_kernel",
        ),
        seam="",
        reason="choice-in-library",
    ),
    KernelFamily(
        name="communication",
        title="Communication between ranks",
        patterns=(
            r"nccl|rccl",
            r"cross_device_reduce|multimem_all_reduce|_all_reduce_|allreduce_fusion",
        ),
        seam="",
        reason="communication",
    ),
    KernelFamily(
        name="convolution",
        title="cuDNN, MIOpen and cuFFT",
        patterns=(
            r"cudnn",
            r"^igemm_",
            r"[Mm][Ii][Oo]pen",
            r"^SubTensorOp",
            r"^batched_transpose_",
            r"_implicit_gemm_",
            r"\bfft",
        ),
        seam="",
        reason="choice-in-library",
    ),
    KernelFamily(
        name="compiled",
        title="PyTorch's and the servers' own compiled kernels",
        patterns=(
            r"\bat::|at_cuda_detail|at_hip_detail",
            r"\b(?:cub|thrust|c10|hipcub|rocprim)::",
            r"\b(?:vllm|sgl|sglang|moe)::",
            r"::",
            r"^void ",
            r"^_Z",
            r"^__amd_rocclr|^Mem(?:cpy|set)",
        ),
        seam="",
        reason="ahead-of-time",
    ),
    KernelFamily(
        name="plain",
        title="A plain name, perhaps a Triton kernel",
        patterns=(r"^[A-Za-z_]\w*$",),
        seam="`Autotuner.cache`, if the kernel is autotuned",
        reason="needs-server",
        prior=_FROZEN,
    ),
)
"""Every family; of several that fit a name, the first is meant."""

UNKNOWN = KernelFamily(
    name="unknown", title="Names of no family", patterns=(), seam="", reason="kernel-unknown"
)
"""Family of a name that fits none."""

_COMPILED = tuple(
    (family, re.compile("|".join(f"(?:{each})" for each in family.patterns))) for family in FAMILIES
)


@lru_cache(maxsize=16_384)
def family_of(kernel: str) -> KernelFamily:
    """Return the family of a kernel's name; the name is untrusted text of any length.

    Examples
    --------
    >>> family_of("_chunk_scan_fwd_kernel").name, family_of("nvjet_sm90_tst_64x8").name
    ('autotune-ssd', 'cublas')
    """
    name = kernel[:_LONGEST_NAME]
    return next((family for family, pattern in _COMPILED if pattern.search(name)), UNKNOWN)


def _near(axes: Mapping[str, int], low: int, high: int) -> bool:
    return low <= axes.get("tokens", 0) <= high


def prior_of(
    family: str, kernel: str, *, how: str, axes: Mapping[str, int], block: bool = False
) -> Prior | None:
    """Return what measurements say about one key of a server's tunable; None if none fits.

    Parameters
    ----------
    family
        The tunable's family as the server reports it: ``autotune``, ``attention``, ``moe``.
    kernel
        Its name in traces.
    how
        How the server chose: ``frozen``, ``exact``, ``nearest``, ``default``, ``literal``,
        ``table``.
    axes
        The key's axes.
    block
        Whether the weights are scaled by blocks (``moe``).
    """
    if how == "table":
        return Prior(low=1.0, high=1.0, expected=1.0, note="a table is in force for this key")
    if family == "attention":
        return _attention(axes)
    if family == "moe":
        return _experts(axes, how=how, block=block)
    if family == "autotune":
        if how == "exact":
            return Prior(low=1.0, high=1.03, expected=1.0, note="autotuned at this very key")
        return family_of(kernel).prior or _FROZEN
    return None


def _attention(axes: Mapping[str, int]) -> Prior:
    rows, sequences = axes.get("rows", 0), max(axes.get("sequences", 0), 1)
    if axes.get("decode"):
        return Prior(low=1.1, high=3.8, expected=1.6, note="decode: 1.1 to 3.8 alone")
    if rows >= 2048 and rows // sequences >= 512:
        return Prior(low=3.28, high=3.61, expected=3.3, note="prefill: 3.3 to 3.6 alone")
    if rows >= 256:
        return Prior(low=1.0, high=3.6, expected=1.5, note="mixed prefill and decode: 1.5 alone")
    return Prior(low=1.0, high=1.54, expected=1.1, note="short prefill: not measured")


def _experts(axes: Mapping[str, int], *, how: str, block: bool) -> Prior:
    if not block or not _near(axes, 65, 2048):
        return Prior(low=1.0, high=1.09, expected=1.0, note="1.00 to 1.09 at these sizes")
    if how == "default":
        return Prior(low=1.03, high=1.46, expected=1.25, note="without a table: 1.1 to 1.46")
    return Prior(low=1.0, high=1.13, expected=1.02, note="with a table: 1.0 to 1.13")

"""A server with kernels of vLLM 0.26 under Triton's interpreter, as its layers launch them.

Argument: a folder with the text of each kernel, assembled from vLLM's files, because vLLM itself is
not installed. Speaks as ``serving.py``.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import torch
from tests.lifting.serving import serve

from retuned.runtime.intercept.hook import Interceptor
from retuned.runtime.triton.interpret import mend_interpreter

KERNELS = {
    "rms_norm": "vllm.model_executor.kernels.mhc.triton:_rmsnorm_nw_kernel",
    "gemma": "vllm.models.minimax_m3.amd.ops.gemma_rmsnorm:_gemma_rmsnorm_kernel",
    "swiglu": "vllm.models.minimax_m3.amd.ops.swiglu_oai:_swiglu_oai_kernel",
    "quantize": "vllm.model_executor.layers.quantization.utils.int8_utils:"
    "_per_token_group_quant_int8",
    "gated_norm": "vllm.model_executor.layers.mamba.ops.layernorm_gated:"
    "_layer_norm_fwd_1pass_kernel",
    "merge": "vllm.v1.attention.ops.triton_merge_attn_states:merge_attn_states_kernel",
}
"""Short name -> kernel; lifting once refused each of them."""
COLS, BLOCK, HEADS, HEAD = 96, 128, 4, 16


def imported(folder: Path) -> dict[str, Any]:
    found = {}
    for short, name in KERNELS.items():
        kernel = name.partition(":")[2]
        spec = importlib.util.spec_from_file_location(f"vllm_{kernel}", folder / f"{kernel}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[module.__name__] = module
        spec.loader.exec_module(module)
        found[short] = getattr(module, kernel)
    return found


def numbers(*shape: int) -> torch.Tensor:
    count = torch.Size(shape).numel()
    return torch.linspace(-1.0, 1.0, count).roll(count // 3).reshape(shape)


def normed(ops: dict[str, Any], rows: int) -> dict[str, torch.Tensor]:
    x, weight = numbers(rows, COLS), numbers(COLS)
    plain, gemma = torch.empty(rows, COLS).half(), torch.empty(rows, COLS).half()
    mamba, factors = torch.empty(rows, COLS), torch.empty(rows)
    ops["rms_norm"][(rows,)](x, plain, COLS, COLS, 1e-6, RBLOCK=BLOCK)
    ops["gemma"][(rows,)](x, weight, gemma, COLS, COLS, 1, 1e-6, BLOCK_N=BLOCK)
    ops["gated_norm"][(rows, 1)](
        x, mamba, weight, None, None, None, factors, COLS, COLS, 0, rows, COLS, 1e-6,
        BLOCK_N=BLOCK, HAS_BIAS=False, HAS_Z=False, NORM_BEFORE_GATE=True, IS_RMS_NORM=True,
    )  # fmt: skip
    return {"rms_norm": plain, "gemma": gemma, "gated_norm": mamba, "factors": factors}


def gated(ops: dict[str, Any], rows: int, cols: int = COLS) -> dict[str, torch.Tensor]:
    both, out = numbers(rows, 2 * cols), torch.empty(rows, cols).half()
    ops["swiglu"][(rows, -(-cols // 64))](
        both, out, cols, 2 * cols, 1, cols, 1, 1.7, 1.0, 7.0, HAS_LIMIT=True, BLOCK_I=64
    )
    return {"swiglu": out}


def quantized(ops: dict[str, Any], rows: int) -> dict[str, torch.Tensor]:
    out, scales = torch.empty(rows, COLS, dtype=torch.int8), torch.empty(rows)
    ops["quantize"][(rows,)](
        numbers(rows, COLS), out, scales, COLS, COLS, 1e-10, -128.0, 127.0, BLOCK=BLOCK
    )
    return {"quantized": out, "scales": scales}


def merged(ops: dict[str, Any], tokens: int) -> dict[str, torch.Tensor]:
    prefix, suffix = numbers(tokens, HEADS, HEAD), numbers(tokens, HEADS, HEAD).flip(0)
    before, after = numbers(HEADS, tokens), numbers(HEADS, tokens).flip(0)
    out, sums = torch.empty(tokens, HEADS, HEAD), torch.empty(HEADS, tokens)
    ops["merge"][(tokens, HEADS)](
        out, sums, prefix, before, suffix, after, HEAD, HEAD, None, HEAD, HEAD, True, 10**6, False,
        FP8_MIN=-448.0, FP8_MAX=448.0,
    )  # fmt: skip
    return {"merged": out, "sums": sums}


def main() -> None:
    """Launch, show, swap, launch again."""
    mend_interpreter()
    ops = imported(Path(sys.argv[1]))
    hook = Interceptor()
    hook.install()

    def launched(rows: int) -> dict[str, torch.Tensor]:
        parts = (each(ops, rows) for each in (normed, gated, quantized, merged))
        return {name: tensor for part in parts for name, tensor in part.items()}

    def ask() -> None:
        for rows in (3, 5, 2):
            launched(rows)
        for cols in (40, COLS):  # more rows than a tile has columns tell the grids apart
            gated(ops, 70, cols)

    serve(ask, lambda: {n: each.tolist() for n, each in launched(5).items()}, hook=hook)


if __name__ == "__main__":
    main()

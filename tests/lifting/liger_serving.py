"""A server with Liger's kernels under Triton's interpreter, as a Llama-shaped model launches them.

Arguments: a folder with the package's sources. Speaks as ``serving.py``.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

import torch
from tests.lifting.serving import serve

from retuned.runtime.intercept.hook import Interceptor
from retuned.runtime.triton.interpret import mend_interpreter

HIDDEN, WIDE, VOCABULARY = 96, 160, 40
HEADS, GROUPS, HEAD = 4, 2, 16
MODULES = (
    *("cross_entropy", "experimental.embedding", "fused_add_rms_norm", "geglu", "layer_norm"),
    *("rms_norm", "rope", "softmax", "swiglu"),
)


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    count = torch.Size(shape).numel()
    return torch.linspace(-1.0, 1.0, count).roll(count // 3).reshape(shape).to(dtype)


class Model:
    """The kernels of one forward pass, one by one."""

    def __init__(self) -> None:
        self.ops: dict[str, Any] = {
            name.rpartition(".")[2]: importlib.import_module(f"liger_kernel.ops.{name}")
            for name in MODULES
        }

    def forward(self, rows: int) -> dict[str, Any]:
        """Launch what an inference launches; return what came of it."""
        ops, half = self.ops, torch.bfloat16
        x, weight = numbers(rows, HIDDEN), numbers(HIDDEN)
        gate, up = numbers(rows, WIDE), numbers(rows, WIDE).flip(0)
        q, k = numbers(1, rows, HEADS, HEAD), numbers(1, rows, GROUPS, HEAD)
        cos, sin = numbers(1, rows, HEAD).cos(), numbers(1, rows, HEAD).sin()
        normed = ops["rms_norm"].rms_norm_forward
        added = ops["fused_add_rms_norm"].fused_add_rms_norm_forward
        rotated = ops["rope"].rope_forward(q.transpose(1, 2), k.transpose(1, 2), cos, sin)
        return {
            "rms": normed(x.to(half), weight.to(half), 1e-6, 0.0, "llama", None)[0],
            "gemma": normed(x, weight, 1e-6, 1.0, "gemma", None)[0],
            "added": added(x, x.flip(0), weight, 1e-6, 0.0, "llama")[0],
            "layer": ops["layer_norm"].layer_norm_forward(x, weight, weight, 1e-6)[0],
            "swiglu": ops["swiglu"].swiglu_forward(gate, up)[2],
            "packed": ops["swiglu"].swiglu_fused_gate_up_forward(numbers(rows, 2 * WIDE))[1],
            "geglu": ops["geglu"].geglu_forward(gate, up)[2],
            "softmax": ops["softmax"]._softmax_forward(x)[0],
            "q": rotated[0],
            "k": rotated[1],
        }

    def seldom(self, rows: int) -> None:
        """Launch what only other devices, sizes or the training of a model do."""
        ops = self.ops
        wide, out = numbers(rows, WIDE), torch.empty(rows, WIDE)
        ops["swiglu"]._swiglu_forward_kernel_tiled[(rows, 2)](
            wide, wide, out, WIDE, 1.0, WIDE, BLOCK_SIZE=128, num_warps=4
        )
        x, rstd = numbers(rows, HIDDEN), torch.empty(rows)
        ops["rms_norm"]._block_rms_norm_forward_kernel[(-(-rows // 16),)](
            torch.empty_like(x), HIDDEN, x, HIDDEN, numbers(HIDDEN), 1, rstd, 1, rows, HIDDEN,
            1e-6, 0.0, 0, elementwise_affine=True, BLOCK_SIZE=128, BLOCK_ROW=16,
        )  # fmt: skip
        targets = torch.arange(rows) % VOCABULARY
        ops["cross_entropy"].cross_entropy_forward(
            numbers(rows, VOCABULARY), targets, None, -100, 0.0, 0.0, "mean", None, False
        )
        table = numbers(VOCABULARY, HIDDEN)
        ops["embedding"].LigerEmbeddingFunction.apply(table, targets)


def main() -> None:
    """Launch, show, swap, launch again."""
    sys.path.append(sys.argv[1])
    hook = Interceptor()
    hook.install()
    mend_interpreter()  # before Liger takes the device library's functions by name
    model = Model()
    hook.install()

    def ask() -> None:
        for rows in (1, 5, 12):
            model.forward(rows)
        for rows in (1, 5, 150):
            model.seldom(rows)

    def answers() -> dict[str, list[Any]]:
        return {name: tensor.tolist() for name, tensor in model.forward(5).items()}

    serve(ask, answers, hook=hook)


if __name__ == "__main__":
    main()

"""Which kernels are for training and which for testing. Pure.

Kernels that share sources or ideas are kin, and a kin is in one split as a whole: whoever has seen
how rmsnorm is won knows half of layernorm. The split of a kin depends on its name and the seed
alone, so it stays what it is however a data set grows.
"""

from __future__ import annotations

import hashlib

from retuned_bench.dataset.records import Split

SEED = "retuned-93"
"""Of the usual split: the first of its kind by which each split has kernels of the catalog."""

_KINS = {
    "matrix": ("linear", "gemm", "moe_gemm", "matmul"),
    "norms": ("rmsnorm", "add_rmsnorm", "layernorm"),
    "gated": ("silu_mul", "gelu_mul"),
    "attention": ("attention", "paged_attention"),
    "quant": ("quant",),
    "softmax": ("softmax", "topk_gating"),
    "rope": ("rope",),
}
_TRAIN, _VALIDATION = 0.7, 0.85


def kin_of(op_type: str) -> str:
    """Return the kin of an operator; one that is not the catalog's is its own.

    Examples
    --------
    >>> kin_of("linear_w8_bf16"), kin_of("moe_gemm_bf16"), kin_of("scale_bias")
    ('matrix', 'matrix', 'scale_bias')
    """
    name = op_type.lower()
    for kin, stems in _KINS.items():
        if any(name == stem or name.startswith(f"{stem}_") for stem in stems):
            return kin
    return name


def split_of(kin: str, *, seed: str = SEED) -> Split:
    """Return the split of a kin: 70 % train, 15 % validation, 15 % test of many kins.

    Examples
    --------
    >>> split_of("matrix") is split_of("matrix")
    True
    """
    number = hashlib.sha256(f"{seed}\0{kin}".encode()).digest()
    place = int.from_bytes(number[:8], "big") / 2**64
    if place < _TRAIN:
        return Split.TRAIN
    return Split.VALIDATION if place < _VALIDATION else Split.TEST

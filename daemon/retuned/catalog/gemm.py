"""gemm_bf16: the linear layers of a model in bfloat16; Triton only."""

from __future__ import annotations

import numpy as np

from retuned.catalog import inputs
from retuned.catalog.entry import Array, Cost, KernelEntry, build_solution, reference_text
from retuned.catalog.family import Family, fixed, variable
from retuned.catalog.references import gemm as reference
from retuned.catalog.triton.gemm import BF16, few_rows
from retuned.catalog.triton.space import fitting
from retuned.contract import Definition, DType, Language, TensorSpec

FAMILIES = (*inputs.COMMON, "denormals", "exact-integer")
"""Denormals only here: eight bits cannot represent them, and scales would lift them."""


def _make(lengths: dict[str, int], rng: np.random.Generator, family: str) -> dict[str, Array]:
    rows, columns, depth = lengths["M"], lengths["N"], lengths["K"]
    if family == "exact-integer":
        x, w = inputs.exact_factors(rng, rows, columns, depth)
    else:
        x = inputs.activations(rng, (rows, depth), family)
        w = inputs.activations(rng, (columns, depth), "randn") / np.float32(np.sqrt(depth))
    return {"x": inputs.in_format(x, DType.BFLOAT16), "w": inputs.in_format(w, DType.BFLOAT16)}


def _cost(lengths: dict[str, int]) -> Cost:
    rows, columns, depth = lengths["M"], lengths["N"], lengths["K"]
    return Cost(
        flops=2.0 * rows * columns * depth,
        read_bytes=2.0 * (rows + columns) * depth,
        write_bytes=2.0 * rows * columns,
    )


def _build(name: str, constants: dict[str, int]) -> KernelEntry:
    definition = Definition(
        name=name,
        op_type="gemm_bf16",
        description="y[M,N] = x[M,K] @ w[N,K]^T in bfloat16, summed in float32",
        axes={
            "M": variable("tokens in the step"),
            "N": fixed(constants["N"]),
            "K": fixed(constants["K"]),
        },
        inputs={
            "x": TensorSpec(shape=("M", "K"), dtype=DType.BFLOAT16),
            "w": TensorSpec(shape=("N", "K"), dtype=DType.BFLOAT16, constant=True),
        },
        outputs={"y": TensorSpec(shape=("M", "N"), dtype=DType.BFLOAT16)},
        reference=reference_text("gemm"),
    )
    return KernelEntry(
        definition=definition,
        families=FAMILIES,
        spaces=tuple(fitting(space, definition) for space in BF16),
        incumbent=build_solution(definition, BF16[0], few_rows(BF16[0], definition)),
        make=_make,
        compute=reference.run,
        cost=_cost,
    )


FAMILY = Family(
    op_type="gemm_bf16",
    template="gemm_bf16_n{N}_k{K}",
    description="linear layer in bfloat16",
    shapes=(("M", "K"), ("N", "K")),
    dtypes=("bfloat16", "bfloat16"),
    build=_build,
    languages=(Language.TRITON,),
)

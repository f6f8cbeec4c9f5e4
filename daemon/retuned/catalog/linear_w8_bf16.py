"""linear_w8_bf16: weight-only int8 linear layers of a bfloat16 model; Triton only."""

from __future__ import annotations

import numpy as np

from retuned.catalog import inputs
from retuned.catalog.entry import Array, Cost, KernelEntry, build_solution, reference_text
from retuned.catalog.family import Family, fixed, floats, variable
from retuned.catalog.references import linear_w8 as reference
from retuned.catalog.triton.gemm import W8, few_rows
from retuned.catalog.triton.space import fitting
from retuned.contract import Definition, DType, Language, TensorSpec


def _make(lengths: dict[str, int], rng: np.random.Generator, family: str) -> dict[str, Array]:
    rows, columns, depth = lengths["M"], lengths["N"], lengths["K"]
    if family == "exact-integer":
        x, whole = inputs.exact_factors(rng, rows, columns, depth)
        wq = whole.astype(np.int8)
        scale = np.float32(2.0) ** rng.integers(-3, 1, columns).astype(np.float32)
    else:
        x = inputs.activations(rng, (rows, depth), family)
        wq = inputs.int8_weights(rng, (columns, depth))
        spread = rng.uniform(0.5, 1.5, columns) / (74.0 * np.sqrt(depth))
        scale = spread.astype(np.float32)
    return {"x": inputs.in_format(x, DType.BFLOAT16), "wq": wq, "scale": scale}


def _cost(lengths: dict[str, int]) -> Cost:
    rows, columns, depth = lengths["M"], lengths["N"], lengths["K"]
    return Cost(
        flops=2.0 * rows * columns * depth,
        read_bytes=2.0 * rows * depth + columns * depth + 4.0 * columns,
        write_bytes=2.0 * rows * columns,
    )


def _build(name: str, constants: dict[str, int]) -> KernelEntry:
    definition = Definition(
        name=name,
        op_type="linear_w8_bf16",
        description="y[M,N] = x[M,K] @ (wq[N,K] * scale[N])^T; bfloat16, int8 weights",
        axes={
            "M": variable("tokens in the step"),
            "N": fixed(constants["N"]),
            "K": fixed(constants["K"]),
        },
        inputs={
            "x": TensorSpec(shape=("M", "K"), dtype=DType.BFLOAT16),
            "wq": TensorSpec(shape=("N", "K"), dtype=DType.INT8, constant=True),
            "scale": floats("N", weight=True),
        },
        outputs={"y": TensorSpec(shape=("M", "N"), dtype=DType.BFLOAT16)},
        reference=reference_text("linear_w8"),
    )
    return KernelEntry(
        definition=definition,
        families=(*inputs.COMMON, "exact-integer"),
        spaces=tuple(fitting(space, definition) for space in W8),
        incumbent=build_solution(definition, W8[0], few_rows(W8[0], definition)),
        make=_make,
        compute=reference.run,
        cost=_cost,
    )


FAMILY = Family(
    op_type="linear_w8_bf16",
    template="linear_w8_bf16_n{N}_k{K}",
    description="linear layer in bfloat16, int8 weights with a scale per output",
    shapes=(("M", "K"), ("N", "K"), ("N",)),
    dtypes=("bfloat16", "int8", "float32"),
    build=_build,
    languages=(Language.TRITON,),
)

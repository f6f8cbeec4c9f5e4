"""moe_gemm_bf16: the grouped product inside a fused mixture of experts; Triton only.

A fused layer is two of these with an activation between them. Servers sort routes by expert on the
device and pad each expert's part to the kernel's block of rows, so the input depends on a parameter
of the kernel. Here it does not: `order` is the plain sort, `ends` the running count, and a kernel
finds its tiles itself. The weight of a route is multiplied in, as in the second of the two
products; the first gets ones.
"""

from __future__ import annotations

import numpy as np

from retuned.catalog import inputs
from retuned.catalog.entry import Array, Cost, KernelEntry, build_solution, reference_text
from retuned.catalog.family import Family, fixed, floats, variable
from retuned.catalog.references import moe_gemm as reference
from retuned.catalog.triton.moe_gemm import moe_gemm
from retuned.catalog.triton.space import fitting
from retuned.contract import (
    Definition,
    DType,
    Language,
    TensorSpec,
    ValueLike,
    ValueRule,
)
from retuned.errors import UsageError

MOST_EXPERTS = 1024
"""Above every model's count, and few enough for one program to count."""
FAMILIES = (*inputs.COMMON, "crowded", "exact-integer")
"""``crowded``: every token goes to the same experts, and the others are idle."""


def _make(lengths: dict[str, int], rng: np.random.Generator, family: str) -> dict[str, Array]:
    tokens, slots, experts = lengths["M"], lengths["T"], lengths["E"]
    columns, depth = lengths["N"], lengths["K"]
    if family == "exact-integer":
        x, w = inputs.exact_factors(rng, tokens, experts * columns, depth)
        weight = np.float32(2.0) ** rng.integers(-3, 1, (tokens, slots)).astype(np.float32)
    else:
        plain = "randn" if family == "crowded" else family
        x = inputs.activations(rng, (tokens, depth), plain)
        w = inputs.activations(rng, (experts * columns, depth), "randn") / np.sqrt(
            np.float32(depth)
        )
        weight = rng.uniform(0.05, 1.0, (tokens, slots)).astype(np.float32)
    order, ends = _routing(rng, lengths, crowded=family == "crowded")
    return {
        "x": inputs.in_format(x, DType.BFLOAT16),
        "w": inputs.in_format(w, DType.BFLOAT16).reshape(experts, columns, depth),
        "order": order,
        "ends": ends,
        "weight": weight,
    }


def _routing(
    rng: np.random.Generator, lengths: dict[str, int], *, crowded: bool
) -> tuple[Array, Array]:
    """Choose different experts per token, some of them far more popular than others, and sort."""
    experts = lengths["E"]
    favour = np.linspace(3.0, 0.0, experts)[rng.permutation(experts)]
    if crowded:
        favour = np.linspace(1e6, 0.0, experts)
    score = favour + rng.gumbel(size=(lengths["M"], experts))
    chosen = np.argsort(-score, axis=1)[:, : lengths["T"]].reshape(-1)
    order = np.argsort(chosen, kind="stable").astype(np.int32)
    ends = np.cumsum(np.bincount(chosen, minlength=experts)).astype(np.int32)
    return order.reshape(lengths["M"], lengths["T"]), ends


def _cost(lengths: dict[str, int]) -> Cost:
    routes = lengths["M"] * lengths["T"]
    # As many experts as even routing meets on average: that of few tokens leaves some out.
    missed = (1.0 - lengths["T"] / lengths["E"]) ** lengths["M"]
    touched = lengths["E"] * (1.0 - missed)
    return Cost(
        flops=2.0 * routes * lengths["N"] * lengths["K"],
        read_bytes=2.0 * (touched * lengths["N"] + lengths["M"]) * lengths["K"] + 8.0 * routes,
        write_bytes=2.0 * routes * lengths["N"],
    )


def _settle(lengths: dict[str, int]) -> dict[str, int] | None:
    fits = 1 <= lengths["T"] <= lengths["E"] <= MOST_EXPERTS
    return lengths if fits else None


def _build(name: str, constants: dict[str, int]) -> KernelEntry:
    if _settle(constants) is None:
        raise UsageError(f"{name}: needs T <= E <= {MOST_EXPERTS}, got {constants}")
    definition = Definition(
        name=name,
        op_type="moe_gemm_bf16",
        description="y[route] = (x[token] @ w[expert]^T) * weight[route], routes sorted by expert",
        axes={
            "M": variable("tokens in the step"),
            "E": fixed(constants["E"]),
            "T": fixed(constants["T"]),
            "N": fixed(constants["N"]),
            "K": fixed(constants["K"]),
        },
        inputs={
            "x": TensorSpec(shape=("M", "K"), dtype=DType.BFLOAT16),
            "w": TensorSpec(shape=("E", "N", "K"), dtype=DType.BFLOAT16, constant=True),
            "order": TensorSpec(
                shape=("M", "T"),
                dtype=DType.INT32,
                values=ValueRule(like=ValueLike.PERMUTATION),
            ),
            "ends": TensorSpec(
                shape=("E",),
                dtype=DType.INT32,
                values=ValueRule(like=ValueLike.OFFSETS, high="M * T"),
            ),
            "weight": floats("M", "T"),
        },
        outputs={"y": TensorSpec(shape=("M", "T", "N"), dtype=DType.BFLOAT16)},
        reference=reference_text("moe_gemm"),
    )
    spaces, point = moe_gemm(definition)
    return KernelEntry(
        definition=definition,
        families=FAMILIES,
        spaces=tuple(fitting(space, definition) for space in spaces),
        incumbent=build_solution(definition, spaces[0], point),
        make=_make,
        compute=reference.run,
        cost=_cost,
    )


FAMILY = Family(
    op_type="moe_gemm_bf16",
    template="moe_gemm_bf16_e{E}_t{T}_n{N}_k{K}",
    description="grouped product of a mixture of experts in bfloat16",
    shapes=(("M", "K"), ("E", "N", "K"), ("M", "T"), ("E",), ("M", "T")),
    dtypes=("bfloat16", "bfloat16", "int32", "int32", "float32"),
    build=_build,
    settle=_settle,
    languages=(Language.TRITON,),
)

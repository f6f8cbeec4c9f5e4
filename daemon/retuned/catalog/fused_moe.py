"""fused_moe_bf16: a whole mixture of experts, from routes to the combined output; Triton only.

A router gives each of a token's slots the expert's number and the weight of its output. A number
outside the experts belongs to another machine and adds nothing. The incumbent does what servers do,
each step a launch: sort the routes, a grouped product, SiLU and multiply, a second grouped product
with the weights in it, and the sum over slots.
"""

from __future__ import annotations

import numpy as np

from retuned.catalog import inputs
from retuned.catalog.entry import Array, Cost, KernelEntry, build_solution, reference_text
from retuned.catalog.family import Family, fixed, floats, variable, whole
from retuned.catalog.moe_gemm import MOST_EXPERTS
from retuned.catalog.references import fused_moe as reference
from retuned.catalog.triton.fused_moe import fused_moe
from retuned.catalog.triton.space import fitting
from retuned.contract import Definition, DType, Language, TensorSpec
from retuned.errors import UsageError

FAMILIES = (*inputs.COMMON, "crowded", "elsewhere")
"""``crowded``: every token goes to the same experts. ``elsewhere``: some routes, sometimes all of a
token, go to experts of another machine.
"""


def _make(lengths: dict[str, int], rng: np.random.Generator, family: str) -> dict[str, Array]:
    tokens, slots, experts = lengths["M"], lengths["T"], lengths["E"]
    features, width = lengths["F"], lengths["K"]
    plain = "randn" if family in ("crowded", "elsewhere") else family
    x = inputs.activations(rng, (tokens, width), plain)
    up = inputs.activations(rng, (experts * 2 * features, width), "randn")
    down = inputs.activations(rng, (experts * width, features), "randn")
    ids = _routes(rng, lengths, family)
    weight = rng.uniform(0.05, 1.0, (tokens, slots)).astype(np.float32)
    return {
        "x": inputs.in_format(x, DType.BFLOAT16),
        "w_up": inputs.in_format(up / np.sqrt(np.float32(width)), DType.BFLOAT16).reshape(
            experts, 2 * features, width
        ),
        "w_down": inputs.in_format(down / np.sqrt(np.float32(features)), DType.BFLOAT16).reshape(
            experts, width, features
        ),
        "ids": ids,
        "weight": weight / weight.sum(axis=1, keepdims=True),
    }


def _routes(rng: np.random.Generator, lengths: dict[str, int], family: str) -> Array:
    """Choose different experts per token, some of them far more popular than others."""
    experts = lengths["E"]
    top = 1e6 if family == "crowded" else 3.0
    favour = np.linspace(top, 0.0, experts)
    if family != "crowded":
        favour = favour[rng.permutation(experts)]
    score = favour + rng.gumbel(size=(lengths["M"], experts))
    ids = np.argsort(-score, axis=1)[:, : lengths["T"]].astype(np.int32)
    if family == "elsewhere":
        away = rng.random(ids.shape) < 0.4
        away[::3] |= rng.random((away[::3].shape[0], 1)) < 0.5
        ids = np.where(away, np.int32(-1), ids)
    return np.ascontiguousarray(ids)


def _cost(lengths: dict[str, int]) -> Cost:
    routes = lengths["M"] * lengths["T"]
    touched = min(lengths["E"], routes)
    weights = 3.0 * lengths["F"] * lengths["K"]
    return Cost(
        flops=2.0 * routes * weights,
        read_bytes=2.0 * (touched * weights + lengths["M"] * lengths["K"]) + 8.0 * routes,
        write_bytes=2.0 * lengths["M"] * lengths["K"],
    )


def _settle(lengths: dict[str, int]) -> dict[str, int] | None:
    fits = 1 <= lengths["T"] <= lengths["E"] <= MOST_EXPERTS
    return lengths if fits and lengths.get("W", 2 * lengths["F"]) == 2 * lengths["F"] else None


def _build(name: str, constants: dict[str, int]) -> KernelEntry:
    if _settle(constants) is None:
        raise UsageError(f"{name}: needs T <= E <= {MOST_EXPERTS}, got {constants}")
    definition = _definition(name, constants)
    spaces, point = fused_moe(definition)
    return KernelEntry(
        definition=definition,
        families=FAMILIES,
        spaces=tuple(fitting(space, definition) for space in spaces),
        incumbent=build_solution(definition, spaces[0], point),
        make=_make,
        compute=reference.run,
        cost=_cost,
    )


def _definition(name: str, constants: dict[str, int]) -> Definition:
    return Definition(
        name=name,
        op_type="fused_moe_bf16",
        description="y = sum over slots of weight * (silu(x @ gate^T) * (x @ up^T)) @ down^T",
        axes={
            "M": variable("tokens in the step"),
            "E": fixed(constants["E"]),
            "T": fixed(constants["T"]),
            "F": fixed(constants["F"]),
            "W": fixed(2 * constants["F"]),
            "K": fixed(constants["K"]),
        },
        inputs={
            "x": TensorSpec(shape=("M", "K"), dtype=DType.BFLOAT16),
            "w_up": TensorSpec(shape=("E", "W", "K"), dtype=DType.BFLOAT16, constant=True),
            "w_down": TensorSpec(shape=("E", "K", "F"), dtype=DType.BFLOAT16, constant=True),
            "ids": TensorSpec(shape=("M", "T"), dtype=DType.INT32, values=whole("E - 1")),
            "weight": floats("M", "T"),
        },
        outputs={"y": TensorSpec(shape=("M", "K"), dtype=DType.BFLOAT16)},
        reference=reference_text("fused_moe"),
    )


FAMILY = Family(
    op_type="fused_moe_bf16",
    template="fused_moe_bf16_e{E}_t{T}_f{F}_k{K}",
    description="whole mixture of experts in bfloat16",
    shapes=(("M", "K"), ("E", "W", "K"), ("E", "K", "F"), ("M", "T"), ("M", "T")),
    dtypes=("bfloat16", "bfloat16", "bfloat16", "int32", "float32"),
    build=_build,
    settle=_settle,
    languages=(Language.TRITON,),
)

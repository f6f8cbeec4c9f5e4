"""paged_attention_bf16: one new position per sequence over a paged cache; Triton only.

The cache has the layout of servers with flash attention: page, position in the page, head, channel.
Splitting one long sequence among programs needs a second launch to combine the parts.
"""

from __future__ import annotations

import numpy as np

from retuned.catalog import inputs
from retuned.catalog.entry import Array, Cost, KernelEntry, build_solution, reference_text
from retuned.catalog.family import Family, fixed, variable, whole
from retuned.catalog.references import paged_attention as reference
from retuned.catalog.triton.paged_attention import paged_attention
from retuned.catalog.triton.space import fitting
from retuned.contract import Definition, DType, Language, TensorSpec
from retuned.errors import UsageError

HEAD_STEP = 16
"""Head sizes are multiples of this, the minimum of matrix units."""
STALE = 2**31 - 1
"""Value that the family ``ragged`` leaves in table entries that kernels must not follow."""
FAMILIES = (*inputs.COMMON, "logits-60", "ragged")


def _make(lengths: dict[str, int], rng: np.random.Generator, family: str) -> dict[str, Array]:
    heads = (lengths["G"], lengths["D"])
    shapes = {
        "q": (lengths["B"], lengths["H"], lengths["D"]),
        "k": (lengths["C"], lengths["P"], *heads),
        "v": (lengths["C"], lengths["P"], *heads),
    }
    made = _tensors(rng, shapes, family)
    total = lengths["W"] * lengths["P"]
    least = 1 if family == "ragged" else max(1, total // 2)
    seen = rng.integers(least, total + 1, lengths["B"])
    table = rng.integers(0, lengths["C"], (lengths["B"], lengths["W"]))
    if family == "ragged":
        used = -(-seen // lengths["P"])
        table[np.arange(lengths["W"])[None, :] >= used[:, None]] = STALE
    return {
        **{name: inputs.in_format(values, DType.BFLOAT16) for name, values in made.items()},
        "table": table.astype(np.int32),
        "seen": seen.astype(np.int32),
    }


def _tensors(
    rng: np.random.Generator, shapes: dict[str, tuple[int, ...]], family: str
) -> dict[str, inputs.Floats]:
    made = {name: inputs.activations(rng, shape, "randn") for name, shape in shapes.items()}
    if family in inputs.PLANTED:
        inputs.planted(rng, made[str(rng.choice(sorted(made)))], inputs.PLANTED[family])
    elif family in ("logits-60", "outlier"):
        # Integers: a rounded logit of 100 would move its weight.
        spread, outlier = (13, 1) if family == "logits-60" else (3, 32)
        for name in ("q", "k"):
            whole = rng.integers(-spread, spread + 1, shapes[name])
            made[name] = whole.astype(np.float32)
        made["k"][..., int(rng.integers(shapes["k"][-1]))] *= np.float32(outlier)
        made["q"] /= np.float32(8.0 if family == "outlier" else 1.0)
    elif family == "randn-large":
        made["v"] *= np.float32(1e3)
    elif family != "ragged":
        made = {name: inputs.activations(rng, shape, family) for name, shape in shapes.items()}
    return made


def _cost(lengths: dict[str, int]) -> Cost:
    total = 0.75 * lengths["B"] * lengths["W"] * lengths["P"]
    width = float(lengths["H"] * lengths["D"])
    return Cost(
        flops=4.0 * width * total,
        read_bytes=4.0 * total * lengths["G"] * lengths["D"] + 2.0 * lengths["B"] * width,
        write_bytes=2.0 * lengths["B"] * width,
    )


def _settle(lengths: dict[str, int]) -> dict[str, int] | None:
    fits = lengths["D"] % HEAD_STEP == 0 and lengths["H"] % lengths["G"] == 0
    return lengths if fits else None


def _build(name: str, constants: dict[str, int]) -> KernelEntry:
    if _settle(constants) is None:
        raise UsageError(
            f"{name}: the head size must be a multiple of {HEAD_STEP}, and H of G, got {constants}"
        )
    cache = TensorSpec(shape=("C", "P", "G", "D"), dtype=DType.BFLOAT16)
    heads = TensorSpec(shape=("B", "H", "D"), dtype=DType.BFLOAT16)
    definition = Definition(
        name=name,
        op_type="paged_attention_bf16",
        description="attention of one new position per sequence over its pages, scaled by D^-1/2",
        axes={
            "B": variable("sequences"),
            "C": variable("pages in the cache"),
            "W": variable("pages that a row of the table has room for"),
            "H": fixed(constants["H"]),
            "G": fixed(constants["G"]),
            "D": fixed(constants["D"]),
            "P": fixed(constants["P"]),
        },
        inputs={
            "q": heads,
            "k": cache,
            "v": cache,
            "table": TensorSpec(shape=("B", "W"), dtype=DType.INT32, values=whole("C - 1")),
            "seen": TensorSpec(shape=("B",), dtype=DType.INT32, values=whole("W * P", least=1)),
        },
        outputs={"out": heads},
        reference=reference_text("paged_attention"),
    )
    spaces, point = paged_attention(definition)
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
    op_type="paged_attention_bf16",
    template="paged_attention_bf16_h{H}_g{G}_d{D}_p{P}",
    description="decoding attention in bfloat16 over a paged cache",
    shapes=(("B", "H", "D"), ("C", "P", "G", "D"), ("C", "P", "G", "D"), ("B", "W"), ("B",)),
    dtypes=("bfloat16", "bfloat16", "bfloat16", "int32", "int32"),
    build=_build,
    settle=_settle,
    languages=(Language.TRITON,),
)

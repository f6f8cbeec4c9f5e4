"""softmax over rows; the row's length may be part of the name or a variable axis."""

from __future__ import annotations

import numpy as np

from retuned.catalog import inputs
from retuned.catalog.entry import Array, Cost, Entry, Params, Space, build_solution, reference_text
from retuned.catalog.family import THREADS, VECTORS, Family, fixed, floats, variable
from retuned.catalog.references import softmax as reference
from retuned.contract import Definition

_PARAMS: dict[str, tuple[int | str, ...]] = {
    "UNROLL": (1, 2, 4, 8),
    "EXP": ("exp_nonpositive", "exp_table"),
    "VEC": VECTORS,
    "THREADS": THREADS,
}
_STARTS: tuple[Params, ...] = (
    {"UNROLL": 4, "EXP": "exp_table", "VEC": 64, "THREADS": 1},
    {"UNROLL": 4, "EXP": "exp_nonpositive", "VEC": 32, "THREADS": 1},
)
THREE_PASS = Space(
    name="three-pass",
    sources=("softmax_three_pass.cpp", "vec.h"),
    entry="softmax_three_pass",
    params=_PARAMS,
    starts=lambda _axes: _STARTS,
    rank=lambda _axes: 0,
)
ONLINE = Space(
    name="online",
    sources=("softmax_online.cpp", "vec.h"),
    entry="softmax_online",
    params=_PARAMS,
    starts=lambda _axes: _STARTS,
    rank=lambda _axes: 1,
)
INCUMBENT: Params = {"UNROLL": 2, "EXP": "exp_nonpositive", "VEC": 64, "THREADS": 1}


def _make(lengths: dict[str, int], rng: np.random.Generator, family: str) -> dict[str, Array]:
    return {"x": inputs.activations(rng, (lengths["M"], lengths["N"]), family)}


def _cost(lengths: dict[str, int]) -> Cost:
    elements = float(lengths["M"] * lengths["N"])
    return Cost(flops=5.0 * elements, read_bytes=4.0 * elements, write_bytes=4.0 * elements)


def _build(name: str, constants: dict[str, int]) -> Entry:
    width = fixed(constants["N"]) if "N" in constants else variable("numbers in a row")
    definition = Definition(
        name=name,
        op_type="softmax",
        description="y[M,N] = exp(x) / sum(exp(x)), over rows",
        axes={"M": variable("rows"), "N": width},
        inputs={"x": floats("M", "N")},
        outputs={"y": floats("M", "N")},
        reference=reference_text("softmax"),
    )
    return Entry(
        definition=definition,
        families=(*inputs.COMMON, "mean-1000", "logits-60"),
        spaces=(THREE_PASS, ONLINE),
        incumbent=build_solution(definition, THREE_PASS, INCUMBENT),
        make=_make,
        compute=reference.run,
        cost=_cost,
    )


FAMILY = Family(
    op_type="softmax",
    template="softmax_n{N}",
    description="softmax over rows of N",
    shapes=(("M", "N"),),
    dtypes=("float32",),
    build=_build,
)
ANY_LENGTH = Family(
    op_type="softmax",
    template="softmax",
    description="softmax over rows of any length",
    shapes=(("M", "N"),),
    dtypes=("float32",),
    build=_build,
)

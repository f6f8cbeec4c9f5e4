"""silu_mul: the gated activation of a feed-forward block."""

from __future__ import annotations

import numpy as np

from retuned.catalog import inputs
from retuned.catalog.entry import Array, Cost, Entry, Params, Space, build_solution, reference_text
from retuned.catalog.family import THREADS, VECTORS, Family, fixed, floats, variable
from retuned.catalog.references import silu_mul as reference
from retuned.contract import Definition

_PARAMS: dict[str, tuple[int | str, ...]] = {
    "UNROLL": (1, 2, 4),
    "VEC": VECTORS,
    "THREADS": THREADS,
}
_STARTS: tuple[Params, ...] = (
    {"UNROLL": 2, "VEC": 64, "THREADS": 1},
    {"UNROLL": 2, "VEC": 32, "THREADS": 1},
)
POLYNOMIAL = Space(
    name="polynomial",
    sources=("silu_mul_polynomial.cpp", "silu_loop.h", "vec.h"),
    entry="silu_mul_polynomial",
    params=_PARAMS,
    starts=lambda _axes: _STARTS,
    rank=lambda axes: 1 if axes["M"] >= 8 else 0,
)
TABLE = Space(
    name="table",
    sources=("silu_mul_table.cpp", "silu_loop.h", "vec.h"),
    entry="silu_mul_table",
    params=_PARAMS,
    starts=lambda _axes: _STARTS,
    rank=lambda axes: 0 if axes["M"] >= 8 else 1,
)


def _make(lengths: dict[str, int], rng: np.random.Generator, family: str) -> dict[str, Array]:
    return {"x": inputs.activations(rng, (lengths["M"], lengths["G"]), family)}


def _cost(lengths: dict[str, int]) -> Cost:
    elements = float(lengths["M"] * lengths["I"])
    return Cost(flops=8.0 * elements, read_bytes=8.0 * elements, write_bytes=4.0 * elements)


def _settle(lengths: dict[str, int]) -> dict[str, int] | None:
    half, odd = divmod(lengths["G"], 2)
    return None if odd else {**lengths, "I": half}


def _build(name: str, constants: dict[str, int]) -> Entry:
    definition = Definition(
        name=name,
        op_type="silu_mul",
        description="y[M,I] = silu(x[M,:I]) * x[M,I:]; G is 2 I",
        axes={
            "M": variable("tokens in the step"),
            "I": fixed(constants["I"]),
            "G": fixed(2 * constants["I"]),
        },
        inputs={"x": floats("M", "G")},
        outputs={"y": floats("M", "I")},
        reference=reference_text("silu_mul"),
    )
    return Entry(
        definition=definition,
        families=inputs.COMMON,
        spaces=(POLYNOMIAL, TABLE),
        incumbent=build_solution(definition, POLYNOMIAL, _STARTS[0]),
        make=_make,
        compute=reference.run,
        cost=_cost,
    )


FAMILY = Family(
    op_type="silu_mul",
    template="silu_mul_i{I}",
    description="silu of the first half of a row times the second half",
    shapes=(("M", "G"),),
    dtypes=("float32",),
    build=_build,
    settle=_settle,
)

"""rmsnorm: root mean square normalisation with a gain."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from retuned.catalog import inputs
from retuned.catalog.entry import Array, Cost, Entry, Params, Space, build_solution, reference_text
from retuned.catalog.family import THREADS, VECTORS, Family, fixed, floats, variable
from retuned.catalog.references import rmsnorm as reference
from retuned.contract import Definition


def _many(axes: Mapping[str, int]) -> bool:
    return axes["M"] >= 8


ROWS = Space(
    name="rows",
    sources=("rmsnorm_rows.cpp", "vec.h"),
    entry="rmsnorm_rows",
    params={"UNROLL": (1, 2, 4, 8), "VEC": VECTORS, "THREADS": THREADS},
    starts=lambda _axes: (
        {"UNROLL": 4, "VEC": 64, "THREADS": 1},
        {"UNROLL": 8, "VEC": 32, "THREADS": 1},
    ),
    rank=lambda axes: 1 if _many(axes) else 0,
)
ROW_GROUPS = Space(
    name="row-groups",
    sources=("rmsnorm_groups.cpp", "vec.h"),
    entry="rmsnorm_groups",
    params={"ROWS": (2, 4, 8), "VEC": VECTORS, "THREADS": THREADS},
    starts=lambda _axes: (
        {"ROWS": 4, "VEC": 64, "THREADS": 1},
        {"ROWS": 4, "VEC": 32, "THREADS": 1},
    ),
    rank=lambda axes: 0 if _many(axes) else 1,
)
INCUMBENT: Params = {"UNROLL": 4, "VEC": 64, "THREADS": 1}


def _make(lengths: dict[str, int], rng: np.random.Generator, family: str) -> dict[str, Array]:
    return {
        "x": inputs.activations(rng, (lengths["M"], lengths["H"]), family),
        "weight": (1.0 + 0.1 * rng.standard_normal(lengths["H"])).astype(np.float32),
    }


def _cost(lengths: dict[str, int]) -> Cost:
    elements = float(lengths["M"] * lengths["H"])
    return Cost(
        flops=4.0 * elements,
        read_bytes=4.0 * (elements + lengths["H"]),
        write_bytes=4.0 * elements,
    )


def _build(name: str, constants: dict[str, int]) -> Entry:
    definition = Definition(
        name=name,
        op_type="rmsnorm",
        description="y[M,H] = x / sqrt(mean(x^2) + 1e-6) * weight, over rows",
        axes={"M": variable("tokens in the step"), "H": fixed(constants["H"])},
        inputs={"x": floats("M", "H"), "weight": floats("H", weight=True)},
        outputs={"y": floats("M", "H")},
        reference=reference_text("rmsnorm"),
    )
    return Entry(
        definition=definition,
        families=(*inputs.COMMON, "mean-1000"),
        spaces=(ROWS, ROW_GROUPS),
        incumbent=build_solution(definition, ROWS, INCUMBENT),
        make=_make,
        compute=reference.run,
        cost=_cost,
    )


FAMILY = Family(
    op_type="rmsnorm",
    template="rmsnorm_h{H}",
    description="root mean square normalisation, epsilon 1e-6",
    shapes=(("M", "H"), ("H",)),
    dtypes=("float32", "float32"),
    build=_build,
)

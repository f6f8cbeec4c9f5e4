"""rmsnorm: root mean square normalisation with a gain."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np

from retuned.catalog import inputs
from retuned.catalog.entry import Array, Cost, KernelEntry, Params, Space, reference_text
from retuned.catalog.family import THREADS, VECTORS, Family, fixed, variable
from retuned.catalog.number_formats import FORMS, NumberFormat, costing, implemented, rounding
from retuned.catalog.references import rmsnorm as reference
from retuned.catalog.triton import rows as triton_rows
from retuned.contract import Definition, Language


def _many(axes: Mapping[str, int]) -> bool:
    return axes["M"] >= 8


def row_spaces(op_type: str) -> tuple[Space, Space]:
    rows = Space(
        name="rows",
        sources=(f"{op_type}_rows.cpp", "vec.h"),
        entry=f"{op_type}_rows",
        params={"UNROLL": (1, 2, 4, 8), "VEC": VECTORS, "THREADS": THREADS},
        starts=lambda _axes: (
            {"UNROLL": 4, "VEC": 64, "THREADS": 1},
            {"UNROLL": 8, "VEC": 32, "THREADS": 1},
        ),
        rank=lambda axes: 1 if _many(axes) else 0,
    )
    groups = Space(
        name="row-groups",
        sources=(f"{op_type}_groups.cpp", "vec.h"),
        entry=f"{op_type}_groups",
        params={"ROWS": (2, 4, 8), "VEC": VECTORS, "THREADS": THREADS},
        starts=lambda _axes: (
            {"ROWS": 4, "VEC": 64, "THREADS": 1},
            {"ROWS": 4, "VEC": 32, "THREADS": 1},
        ),
        rank=lambda axes: 0 if _many(axes) else 1,
    )
    return rows, groups


_SPACES = row_spaces("rmsnorm")
INCUMBENT: Params = {"UNROLL": 4, "VEC": 64, "THREADS": 1}


def gains(rng: np.random.Generator, width: int) -> inputs.Floats:
    return (1.0 + 0.1 * rng.standard_normal(width)).astype(np.float32)


def _make(lengths: dict[str, int], rng: np.random.Generator, family: str) -> dict[str, Array]:
    return {
        "x": inputs.activations(rng, (lengths["M"], lengths["H"]), family),
        "weight": gains(rng, lengths["H"]),
    }


def _cost(lengths: dict[str, int], size_bytes: float) -> Cost:
    elements = float(lengths["M"] * lengths["H"])
    return Cost(
        flops=4.0 * elements,
        read_bytes=size_bytes * (elements + lengths["H"]),
        write_bytes=size_bytes * elements,
    )


def _build(form: NumberFormat, name: str, constants: dict[str, int]) -> KernelEntry:
    definition = Definition(
        name=name,
        op_type="rmsnorm",
        description="y[M,H] = x / sqrt(mean(x^2) + 1e-6) * weight, over rows",
        axes={"M": variable("tokens in the step"), "H": fixed(constants["H"])},
        inputs={"x": form.tensor("M", "H"), "weight": form.tensor("H", weight=True)},
        outputs={"y": form.tensor("M", "H")},
        reference=reference_text("rmsnorm"),
    )
    spaces, incumbent = implemented(
        form, definition, cpp=_SPACES, incumbent=INCUMBENT, triton=triton_rows.normalised
    )
    return KernelEntry(
        definition=definition,
        families=(*inputs.COMMON, "mean-1000"),
        spaces=spaces,
        incumbent=incumbent,
        make=rounding(form, _make),
        compute=reference.run,
        cost=costing(form, _cost),
    )


def _family(form: NumberFormat) -> Family:
    return Family(
        op_type="rmsnorm",
        template=f"rmsnorm{form.mark}_h{{H}}",
        description=f"root mean square normalisation, epsilon 1e-6, {form.dtype}",
        shapes=(("M", "H"), ("H",)),
        dtypes=(form.dtype.value,) * 2,
        build=partial(_build, form),
        languages=(*form.languages, Language.GPU_CPP),
    )


FAMILIES = tuple(_family(form) for form in FORMS)

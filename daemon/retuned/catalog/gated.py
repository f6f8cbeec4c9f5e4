"""silu_mul and gelu_mul: gated activations of a feed-forward block.

One half of a row is the gate, the other is multiplied by it. The two operators differ only in the
function of the gate.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np

from retuned.catalog import inputs
from retuned.catalog.entry import (
    Array,
    Cost,
    KernelEntry,
    Params,
    Reference,
    Space,
    reference_text,
)
from retuned.catalog.family import THREADS, VECTORS, Family, fixed, variable
from retuned.catalog.number_formats import FORMS, NumberFormat, costing, implemented, rounding
from retuned.catalog.references import gelu_mul, silu_mul
from retuned.catalog.triton import rows
from retuned.contract import Definition

_STARTS: tuple[Params, ...] = (
    {"UNROLL": 2, "VEC": 64, "THREADS": 1},
    {"UNROLL": 2, "VEC": 32, "THREADS": 1},
)
_FORMULAS: Mapping[str, str] = {
    "silu_mul": "y[M,I] = silu(x[M,:I]) * x[M,I:]; G is 2 I",
    "gelu_mul": "y[M,I] = gelu(x[M,:I]) * x[M,I:], gelu in its tanh form; G is 2 I",
}
_REFERENCES: Mapping[str, Reference] = {"silu_mul": silu_mul.run, "gelu_mul": gelu_mul.run}


def _space(op_type: str, name: str, *, few: int, many: int) -> Space:
    return Space(
        name=name,
        sources=(
            f"{op_type}_{name}.cpp",
            f"{op_type.removesuffix('_mul')}_times.h",
            "gated_rows.h",
            "vec.h",
        ),
        entry=f"{op_type}_{name}",
        params={"UNROLL": (1, 2, 4), "VEC": VECTORS, "THREADS": THREADS},
        starts=lambda _axes: _STARTS,
        rank=lambda axes: many if axes["M"] >= 8 else few,
    )


_SPACES = {
    op_type: (
        _space(op_type, "polynomial", few=0, many=1),
        _space(op_type, "table", few=1, many=0),
    )
    for op_type in _FORMULAS
}


def _make(lengths: dict[str, int], rng: np.random.Generator, family: str) -> dict[str, Array]:
    return {"x": inputs.activations(rng, (lengths["M"], lengths["G"]), family)}


def _cost(lengths: dict[str, int], size_bytes: float) -> Cost:
    elements = float(lengths["M"] * lengths["I"])
    return Cost(
        flops=8.0 * elements,
        read_bytes=2.0 * size_bytes * elements,
        write_bytes=size_bytes * elements,
    )


def _settle(lengths: dict[str, int]) -> dict[str, int] | None:
    half, odd = divmod(lengths["G"], 2)
    return None if odd else {**lengths, "I": half}


def _build(op_type: str, form: NumberFormat, name: str, constants: dict[str, int]) -> KernelEntry:
    definition = Definition(
        name=name,
        op_type=op_type,
        description=_FORMULAS[op_type],
        axes={
            "M": variable("tokens in the step"),
            "I": fixed(constants["I"]),
            "G": fixed(2 * constants["I"]),
        },
        inputs={"x": form.tensor("M", "G")},
        outputs={"y": form.tensor("M", "I")},
        reference=reference_text(op_type),
    )
    spaces, incumbent = implemented(
        form,
        definition,
        cpp=_SPACES[op_type],
        incumbent=_STARTS[0],
        triton=rows.gated,
    )
    return KernelEntry(
        definition=definition,
        families=inputs.COMMON,
        spaces=spaces,
        incumbent=incumbent,
        make=rounding(form, _make),
        compute=_REFERENCES[op_type],
        cost=costing(form, _cost),
    )


def _family(op_type: str, form: NumberFormat) -> Family:
    activation = op_type.removesuffix("_mul")
    return Family(
        op_type=op_type,
        template=f"{op_type}{form.mark}_i{{I}}",
        description=f"{activation} of the first half of a row times the second half, {form.dtype}",
        shapes=(("M", "G"),),
        dtypes=(form.dtype.value,),
        build=partial(_build, op_type, form),
        languages=form.languages,
        settle=_settle,
    )


SILU_MUL = tuple(_family("silu_mul", form) for form in FORMS)
GELU_MUL = tuple(_family("gelu_mul", form) for form in FORMS)

"""add_rmsnorm: adds the residual, and normalises the sum by its root mean square.

Servers do this in place, over both operands. Here the sum is a separate output, so that a launch
can be repeated and compared.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from retuned.catalog import inputs
from retuned.catalog.entry import Array, Cost, KernelEntry, Params, reference_text
from retuned.catalog.family import Family, fixed, variable
from retuned.catalog.number_formats import FORMS, NumberFormat, costing, implemented, rounding
from retuned.catalog.references import add_rmsnorm as reference
from retuned.catalog.rmsnorm import gains, row_spaces
from retuned.catalog.triton import rows
from retuned.contract import Definition

_SPACES = row_spaces("add_rmsnorm")
INCUMBENT: Params = {"UNROLL": 4, "VEC": 64, "THREADS": 1}


def _make(lengths: dict[str, int], rng: np.random.Generator, family: str) -> dict[str, Array]:
    shape = (lengths["M"], lengths["H"])
    ordinary = "randn" if family in inputs.PLANTED else family
    x, residual = (inputs.activations(rng, shape, ordinary) for _ in range(2))
    if family in inputs.PLANTED:
        inputs.planted(rng, (x, residual)[int(rng.integers(2))], inputs.PLANTED[family])
    elif family == "zeros-rows":
        # Only where both are zero, epsilon alone decides.
        residual[~x.any(axis=1)] = 0.0
    return {"x": x, "residual": residual, "weight": gains(rng, lengths["H"])}


def _cost(lengths: dict[str, int], size_bytes: float) -> Cost:
    elements = float(lengths["M"] * lengths["H"])
    return Cost(
        flops=5.0 * elements,
        read_bytes=size_bytes * (2.0 * elements + lengths["H"]),
        write_bytes=size_bytes * 2.0 * elements,
    )


def _build(form: NumberFormat, name: str, constants: dict[str, int]) -> KernelEntry:
    definition = Definition(
        name=name,
        op_type="add_rmsnorm",
        description=(
            "summed[M,H] = x + residual; y[M,H] = s / sqrt(mean(s^2) + 1e-6) * weight over rows, "
            "where s is the sum before it is rounded"
        ),
        axes={"M": variable("tokens in the step"), "H": fixed(constants["H"])},
        inputs={
            "x": form.tensor("M", "H"),
            "residual": form.tensor("M", "H"),
            "weight": form.tensor("H", weight=True),
        },
        outputs={"y": form.tensor("M", "H"), "summed": form.tensor("M", "H")},
        reference=reference_text("add_rmsnorm"),
    )
    spaces, incumbent = implemented(
        form, definition, cpp=_SPACES, incumbent=INCUMBENT, triton=rows.normalised
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
        op_type="add_rmsnorm",
        template=f"add_rmsnorm{form.mark}_h{{H}}",
        description=f"residual added, then root mean square normalisation, {form.dtype}",
        shapes=(("M", "H"), ("M", "H"), ("H",)),
        dtypes=(form.dtype.value,) * 3,
        build=partial(_build, form),
        languages=form.languages,
    )


FAMILIES = tuple(_family(form) for form in FORMS)

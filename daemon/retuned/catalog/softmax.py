"""softmax over rows; the row's length may be part of the name or a variable axis."""

from __future__ import annotations

from functools import partial

import numpy as np

from retuned.catalog import inputs
from retuned.catalog.entry import Array, Cost, KernelEntry, Params, Space, reference_text
from retuned.catalog.family import THREADS, VECTORS, Family, fixed, variable
from retuned.catalog.number_formats import FORMS, NumberFormat, costing, implemented, rounding
from retuned.catalog.references import softmax as reference
from retuned.catalog.triton import rows
from retuned.contract import Definition, Language

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


def _cost(lengths: dict[str, int], size_bytes: float) -> Cost:
    elements = float(lengths["M"] * lengths["N"])
    return Cost(
        flops=5.0 * elements,
        read_bytes=size_bytes * elements,
        write_bytes=size_bytes * elements,
    )


def _build(form: NumberFormat, name: str, constants: dict[str, int]) -> KernelEntry:
    width = fixed(constants["N"]) if "N" in constants else variable("numbers in a row")
    definition = Definition(
        name=name,
        op_type="softmax",
        description="y[M,N] = exp(x) / sum(exp(x)), over rows",
        axes={"M": variable("rows"), "N": width},
        inputs={"x": form.tensor("M", "N")},
        outputs={"y": form.tensor("M", "N")},
        reference=reference_text("softmax"),
    )
    spaces, incumbent = implemented(
        form,
        definition,
        cpp=(THREE_PASS, ONLINE),
        incumbent=INCUMBENT,
        triton=rows.softmax,
    )
    return KernelEntry(
        definition=definition,
        families=(*inputs.COMMON, "mean-1000", "logits-60"),
        spaces=spaces,
        incumbent=incumbent,
        make=rounding(form, _make),
        compute=reference.run,
        cost=costing(form, _cost),
    )


def _family(form: NumberFormat, lengths: str, what: str) -> Family:
    return Family(
        op_type="softmax",
        template=f"softmax{form.mark}{lengths}",
        description=f"softmax over rows of {what}, {form.dtype}",
        shapes=(("M", "N"),),
        dtypes=(form.dtype.value,),
        build=partial(_build, form),
        languages=(*form.languages, Language.GPU_CPP),
    )


FAMILIES = tuple(
    _family(form, lengths, what)
    for form in FORMS
    for lengths, what in (("_n{N}", "N"), ("", "any length"))
)

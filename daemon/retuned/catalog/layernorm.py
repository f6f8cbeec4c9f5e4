"""layernorm: mean and variance normalisation with gain and bias."""

from __future__ import annotations

from functools import partial

import numpy as np

from retuned.catalog import inputs
from retuned.catalog.entry import Array, Cost, KernelEntry, Params, Space, reference_text
from retuned.catalog.family import THREADS, VECTORS, Family, fixed, variable
from retuned.catalog.number_formats import FORMS, NumberFormat, costing, implemented, rounding
from retuned.catalog.references import layernorm as reference
from retuned.catalog.rmsnorm import gains
from retuned.catalog.triton import rows as triton_rows
from retuned.contract import Definition

_FAR = 1000
_PARAMS: dict[str, tuple[int | str, ...]] = {
    "UNROLL": (1, 2, 4, 8),
    "VEC": VECTORS,
    "THREADS": THREADS,
}
_STARTS: tuple[Params, ...] = (
    {"UNROLL": 4, "VEC": 64, "THREADS": 1},
    {"UNROLL": 8, "VEC": 32, "THREADS": 1},
)
PASSES = Space(
    name="passes",
    sources=("layernorm_passes.cpp", "vec.h"),
    entry="layernorm_passes",
    params=_PARAMS,
    starts=lambda _axes: _STARTS,
    rank=lambda _axes: 1,
)
SHIFTED = Space(
    name="shifted",
    sources=("layernorm_shifted.cpp", "vec.h"),
    entry="layernorm_shifted",
    params=_PARAMS,
    starts=lambda _axes: _STARTS,
    rank=lambda _axes: 0,
)


def _make(lengths: dict[str, int], rng: np.random.Generator, family: str) -> dict[str, Array]:
    shape = (lengths["M"], lengths["H"])
    x = _far(rng, shape) if family == "mean-1000" else inputs.activations(rng, shape, family)
    return {
        "x": x,
        "weight": gains(rng, lengths["H"]),
        "bias": (0.1 * rng.standard_normal(lengths["H"])).astype(np.float32),
    }


def _far(rng: np.random.Generator, shape: tuple[int, int]) -> inputs.Floats:
    """Integers around 1000 with exactly that mean.

    The mean of other numbers is rounded by up to 3e-5, and so is every output, so this family would
    measure chance. Here every order of summation is exact. Only kernels that subtract the mean too
    late, from the squares, are wrong.
    """
    rows, width = shape
    half = rng.integers(1, 5, (rows, width // 2))
    middle = np.zeros((rows, width % 2), dtype=half.dtype)
    deviations = np.concatenate([half, -half, middle], axis=1)
    return (rng.permuted(deviations, axis=1) + _FAR).astype(np.float32)


def _cost(lengths: dict[str, int], size_bytes: float) -> Cost:
    elements = float(lengths["M"] * lengths["H"])
    return Cost(
        flops=7.0 * elements,
        read_bytes=size_bytes * (elements + 2 * lengths["H"]),
        write_bytes=size_bytes * elements,
    )


def _build(form: NumberFormat, name: str, constants: dict[str, int]) -> KernelEntry:
    definition = Definition(
        name=name,
        op_type="layernorm",
        description="y[M,H] = (x - mean(x)) / sqrt(var(x) + 1e-5) * weight + bias, over rows",
        axes={"M": variable("tokens in the step"), "H": fixed(constants["H"])},
        inputs={
            "x": form.tensor("M", "H"),
            "weight": form.tensor("H", weight=True),
            "bias": form.tensor("H", weight=True),
        },
        outputs={"y": form.tensor("M", "H")},
        reference=reference_text("layernorm"),
    )
    spaces, incumbent = implemented(
        form,
        definition,
        cpp=(PASSES, SHIFTED),
        incumbent=_STARTS[0],
        triton=triton_rows.normalised,
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
        op_type="layernorm",
        template=f"layernorm{form.mark}_h{{H}}",
        description=f"layer normalisation, epsilon 1e-5, {form.dtype}",
        shapes=(("M", "H"), ("H",), ("H",)),
        dtypes=(form.dtype.value,) * 3,
        build=partial(_build, form),
        languages=form.languages,
    )


FAMILIES = tuple(_family(form) for form in FORMS)

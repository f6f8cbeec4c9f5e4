"""quant_fp8, quant_fp8fnuz, quant_int8: per-token quantisation of activations; Triton only.

The two outputs are the small numbers and the scale that restores them. An int8 cannot represent
NaN, so its inputs are finite; the 8-bit floats represent NaN.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from retuned.catalog import inputs
from retuned.catalog.entry import Array, Cost, KernelEntry, build_solution, reference_text
from retuned.catalog.family import Family, fixed, floats, variable
from retuned.catalog.references import quant as reference
from retuned.catalog.triton.quant import quant
from retuned.catalog.triton.space import fitting
from retuned.contract import Definition, DType, Language, TensorSpec

FINITE = (
    "randn",
    "randn-small",
    "randn-large",
    "outlier",
    "zeros-rows",
    "denormals",
    "max-finite",
)


def _make(lengths: dict[str, int], rng: np.random.Generator, family: str) -> dict[str, Array]:
    x = inputs.activations(rng, (lengths["M"], lengths["H"]), family)
    return {"x": inputs.in_format(x, DType.BFLOAT16)}


def _cost(lengths: dict[str, int]) -> Cost:
    elements = float(lengths["M"] * lengths["H"])
    return Cost(
        flops=3.0 * elements, read_bytes=2.0 * elements, write_bytes=elements + 4.0 * lengths["M"]
    )


def _build(
    op_type: str, dtype: DType, largest: int, name: str, constants: dict[str, int]
) -> KernelEntry:
    text = reference_text("quant")
    definition = Definition(
        name=name,
        op_type=op_type,
        description=f"bfloat16 to {dtype} with a scale per row, the largest number {largest}",
        axes={"M": variable("tokens in the step"), "H": fixed(constants["H"])},
        inputs={"x": TensorSpec(shape=("M", "H"), dtype=DType.BFLOAT16)},
        outputs={"q": TensorSpec(shape=("M", "H"), dtype=dtype), "scale": floats("M")},
        reference=text.replace("LARGEST = 448.0", f"LARGEST = {largest:.1f}"),
    )
    spaces, point = quant(definition, largest)
    planted = () if dtype is DType.INT8 else tuple(inputs.PLANTED)
    return KernelEntry(
        definition=definition,
        families=(*FINITE, *planted),
        spaces=tuple(fitting(space, definition) for space in spaces),
        incumbent=build_solution(definition, spaces[0], point),
        make=_make,
        compute=partial(reference.run, largest=float(largest)),
        cost=_cost,
    )


def _family(op_type: str, dtype: DType, largest: int) -> Family:
    return Family(
        op_type=op_type,
        template=op_type + "_h{H}",
        description=f"per-token quantisation of bfloat16 to {dtype}",
        shapes=(("M", "H"),),
        dtypes=("bfloat16",),
        build=partial(_build, op_type, dtype, largest),
        languages=(Language.TRITON,),
    )


FP8 = _family("quant_fp8", DType.FLOAT8_E4M3FN, 448)
FNUZ = _family("quant_fp8fnuz", DType.FLOAT8_E4M3FNUZ, 224)
"""224 and not 240: servers leave space to the largest number of this format."""
INT8 = _family("quant_int8", DType.INT8, 127)

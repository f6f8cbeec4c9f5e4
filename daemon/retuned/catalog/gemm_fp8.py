"""gemm_fp8: linear layers in 8-bit floats with block scales, as in DeepSeek's models.

A weight has one scale per block of 128 x 128, an activation one per row and 128 numbers. There are
two formats: float8_e4m3fn (NVIDIA from Hopper on, AMD's gfx950), and float8_e4m3fnuz (gfx942),
which has half the range and no minus zero. They are two definitions, because the same bits mean
different numbers.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from retuned.catalog import inputs
from retuned.catalog.entry import Array, Cost, KernelEntry, build_solution, reference_text
from retuned.catalog.family import Family, fixed, floats, variable
from retuned.catalog.references import gemm_fp8 as reference
from retuned.catalog.triton.gemm import FP8, few_rows
from retuned.catalog.triton.space import fitting
from retuned.contract import Definition, DType, Language, TensorSpec
from retuned.lab.number_formats import NUMPY, limits_of

BLOCK = reference.BLOCK
FAMILIES = ("randn", "randn-small", "randn-large", "outlier", "zeros-rows", "planted-nan")
"""These formats have no infinities."""

Floats = inputs.Floats


def _make(
    dtype: DType, lengths: dict[str, int], rng: np.random.Generator, family: str
) -> dict[str, Array]:
    rows, columns, depth = lengths["M"], lengths["N"], lengths["K"]
    blocks = (lengths["NB"], lengths["KB"])
    if family == "exact-integer":
        x, w = inputs.exact_factors(rng, rows, columns, depth)
        x_scale, w_scale = (
            np.float32(2.0) ** rng.integers(-2, 1, shape).astype(np.float32)
            for shape in ((rows, lengths["KB"]), blocks)
        )
    else:
        x, x_scale = _quantised(inputs.activations(rng, (rows, depth), family), dtype, high=1)
        weights = inputs.activations(rng, (columns, depth), "randn") / np.float32(np.sqrt(depth))
        w, w_scale = _quantised(weights, dtype, high=BLOCK)
    return {
        "x": inputs.in_format(x, dtype),
        "w": inputs.in_format(w, dtype),
        "x_scale": x_scale,
        "w_scale": w_scale,
    }


def _quantised(values: Floats, dtype: DType, *, high: int) -> tuple[Floats, Floats]:
    """Scale every block of `high` x 128 to the format's range; NaN is ignored."""
    largest = np.float32(limits_of(NUMPY[dtype]).largest)
    rows, columns = (
        -(-size // step) for size, step in zip(values.shape, (high, BLOCK), strict=True)
    )
    padded = np.zeros((rows * high, columns * BLOCK), np.float32)
    padded[: values.shape[0], : values.shape[1]] = np.nan_to_num(np.abs(values), nan=0.0)
    peak = padded.reshape(rows, high, columns, BLOCK).max(axis=(1, 3))
    scale = np.maximum(peak / largest, np.float32(1e-10))
    whole = np.repeat(np.repeat(scale, high, axis=0), BLOCK, axis=1)
    return values / whole[: values.shape[0], : values.shape[1]], scale


def _cost(lengths: dict[str, int]) -> Cost:
    rows, columns, depth = lengths["M"], lengths["N"], lengths["K"]
    scales = (rows + lengths["NB"]) * lengths["KB"]
    return Cost(
        flops=2.0 * rows * columns * depth,
        read_bytes=1.0 * (rows + columns) * depth + 4.0 * scales,
        write_bytes=2.0 * rows * columns,
    )


def _settle(lengths: dict[str, int]) -> dict[str, int] | None:
    blocks = (-(-lengths["N"] // BLOCK), -(-lengths["K"] // BLOCK))
    return lengths if blocks == (lengths["NB"], lengths["KB"]) else None


def _build(op_type: str, dtype: DType, name: str, constants: dict[str, int]) -> KernelEntry:
    columns, depth = constants["N"], constants["K"]
    definition = Definition(
        name=name,
        op_type=op_type,
        description=f"linear layer in {dtype}, scales per 1 x 128 of x and 128 x 128 of w",
        axes={
            "M": variable("tokens in the step"),
            "N": fixed(columns),
            "K": fixed(depth),
            "NB": fixed(-(-columns // BLOCK)),
            "KB": fixed(-(-depth // BLOCK)),
        },
        inputs={
            "x": TensorSpec(shape=("M", "K"), dtype=dtype),
            "w": TensorSpec(shape=("N", "K"), dtype=dtype, constant=True),
            "x_scale": floats("M", "KB"),
            "w_scale": floats("NB", "KB", weight=True),
        },
        outputs={"y": TensorSpec(shape=("M", "N"), dtype=DType.BFLOAT16)},
        reference=reference_text("gemm_fp8"),
    )
    return KernelEntry(
        definition=definition,
        families=(*FAMILIES, "exact-integer"),
        spaces=tuple(fitting(space, definition) for space in FP8),
        incumbent=build_solution(definition, FP8[0], few_rows(FP8[0], definition)),
        make=partial(_make, dtype),
        compute=reference.run,
        cost=_cost,
    )


def _family(op_type: str, dtype: DType) -> Family:
    return Family(
        op_type=op_type,
        template=op_type + "_n{N}_k{K}",
        description=f"linear layer in {dtype} with scales a block",
        shapes=(("M", "K"), ("N", "K"), ("M", "KB"), ("NB", "KB")),
        dtypes=(str(dtype), str(dtype), "float32", "float32"),
        build=partial(_build, op_type, dtype),
        settle=_settle,
        languages=(Language.TRITON,),
    )


FAMILY = _family("gemm_fp8", DType.FLOAT8_E4M3FN)
FNUZ = _family("gemm_fp8fnuz", DType.FLOAT8_E4M3FNUZ)

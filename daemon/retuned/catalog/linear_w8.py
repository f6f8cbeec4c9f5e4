"""linear_w8: weight-only int8 linear layers."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from retuned.catalog import inputs
from retuned.catalog.entry import (
    Array,
    Cost,
    KernelEntry,
    Params,
    Space,
    build_solution,
    constant,
    reference_text,
)
from retuned.catalog.family import THREADS, VECTORS, Family, fixed, floats, variable
from retuned.catalog.references import linear_w8 as reference
from retuned.contract import Definition, DType, TensorSpec

FEW_ROWS = 4
"""Up to so many rows of x, weights are read at most once per row, and single dots are fast."""
MAX_ACCUMULATORS = 32
"""A register tile with more vectors than this spills on every machine."""


def _few(axes: Mapping[str, int]) -> bool:
    return axes["M"] <= FEW_ROWS


def _dots_starts(axes: Mapping[str, int]) -> tuple[Params, ...]:
    together = 1 if axes["M"] == 1 else 2 if axes["M"] < FEW_ROWS else 4
    return (
        {"ROWS": 4, "XROWS": together, "UNROLL": 2, "AHEAD": 2, "VEC": 64, "THREADS": 1},
        {"ROWS": 4, "XROWS": 2, "UNROLL": 4, "AHEAD": 2, "VEC": 32, "THREADS": 1},
    )


def _panel_starts(axes: Mapping[str, int]) -> tuple[Params, ...]:
    rows = 4 if _few(axes) else 8
    return (
        {"P": 16, "TILE": rows, "CHUNK": 64, "VEC": 64, "THREADS": 1},
        {"P": 64, "TILE": 4, "CHUNK": 64, "VEC": 64, "THREADS": 1},
        {"P": 16, "TILE": 4, "CHUNK": 64, "VEC": 32, "THREADS": 1},
    )


def _packed_starts(axes: Mapping[str, int]) -> tuple[Params, ...]:
    return tuple({**point, "STAGE": 0} for point in _panel_starts(axes))


def _tile_fits(params: Params, _definition: Definition) -> bool:
    lanes = int(params["VEC"]) // 4
    panel = int(params["P"])
    return panel % lanes == 0 and int(params["TILE"]) * (panel // lanes) <= MAX_ACCUMULATORS


def _whole_panels(params: Params, definition: Definition) -> bool:
    return _tile_fits(params, definition) and constant(definition, "N") % int(params["P"]) == 0


def _panel_scratch(params: Params, definition: Definition) -> int:
    return int(params["P"]) * constant(definition, "K") * 4


ROW_DOTS = Space(
    name="row-dots",
    sources=("linear_row_dots.cpp", "vec.h"),
    entry="linear_row_dots",
    params={
        "ROWS": (1, 2, 4, 8),
        "XROWS": (1, 2, 4),
        "UNROLL": (1, 2, 4),
        "AHEAD": (0, 2),
        "VEC": VECTORS,
        "THREADS": THREADS,
    },
    starts=_dots_starts,
    rank=lambda axes: 0 if _few(axes) else 2,
)
PANELS = Space(
    name="panels",
    sources=("linear_panels.cpp", "linear_tile.h", "vec.h"),
    entry="linear_panels",
    params={
        "P": (16, 32, 64),
        "TILE": (2, 4, 6, 8, 12),
        "CHUNK": (32, 64, 128),
        "VEC": VECTORS,
        "THREADS": THREADS,
    },
    starts=_panel_starts,
    rank=lambda axes: 2 if _few(axes) else 1,
    valid=_tile_fits,
    scratch_bytes=_panel_scratch,
)
PACKED_PANELS = Space(
    name="packed-panels",
    sources=("linear_packed_panels.cpp", "linear_tile.h", "vec.h"),
    entry="linear_packed_panels",
    params={
        "P": (16, 32, 64),
        "TILE": (2, 4, 6, 8, 12),
        "CHUNK": (32, 64, 128),
        "STAGE": (0, 1),
        "VEC": VECTORS,
        "THREADS": THREADS,
    },
    starts=_packed_starts,
    rank=lambda axes: 1 if _few(axes) else 0,
    valid=_whole_panels,
    layouts=lambda params: {"wq": f"panels-{params['P']}"},
    scratch_bytes=lambda params, definition: (
        _panel_scratch(params, definition) if params["STAGE"] else 0
    ),
)
INCUMBENT: Params = {"ROWS": 4, "XROWS": 1, "UNROLL": 2, "AHEAD": 2, "VEC": 64, "THREADS": 1}
"""Row-dots as tuned for one stream of chat, M = 1.

Blocking over rows of x (XROWS) has no effect there, and is missing at every other M.
"""


def _make(lengths: dict[str, int], rng: np.random.Generator, family: str) -> dict[str, Array]:
    rows, columns, depth = lengths["M"], lengths["N"], lengths["K"]
    if family == "exact-integer":
        # Products of small integers and powers of two: every float32 sum is exact, in any order.
        scale = np.float32(2.0) ** rng.integers(-3, 1, columns).astype(np.float32)
    else:
        spread = rng.uniform(0.5, 1.5, columns) / (74.0 * np.sqrt(depth))
        scale = spread.astype(np.float32)
    return {
        "x": inputs.activations(rng, (rows, depth), family),
        "wq": inputs.int8_weights(rng, (columns, depth)),
        "scale": scale,
    }


def _cost(lengths: dict[str, int]) -> Cost:
    rows, columns, depth = lengths["M"], lengths["N"], lengths["K"]
    return Cost(
        flops=2.0 * rows * columns * depth,
        read_bytes=4.0 * rows * depth + columns * depth + 4.0 * columns,
        write_bytes=4.0 * rows * columns,
    )


def _build(name: str, constants: dict[str, int]) -> KernelEntry:
    definition = Definition(
        name=name,
        op_type="linear_w8",
        description="y[M,N] = x[M,K] @ (wq[N,K] * scale[N])^T; int8 weights, a scale per output",
        axes={
            "M": variable("tokens in the step"),
            "N": fixed(constants["N"]),
            "K": fixed(constants["K"]),
        },
        inputs={
            "x": floats("M", "K"),
            "wq": TensorSpec(shape=("N", "K"), dtype=DType.INT8, constant=True),
            "scale": floats("N", weight=True),
        },
        outputs={"y": floats("M", "N")},
        reference=reference_text("linear_w8"),
    )
    return KernelEntry(
        definition=definition,
        families=(*inputs.COMMON, "exact-integer"),
        spaces=(ROW_DOTS, PANELS, PACKED_PANELS),
        incumbent=build_solution(definition, ROW_DOTS, INCUMBENT),
        make=_make,
        compute=reference.run,
        cost=_cost,
    )


FAMILY = Family(
    op_type="linear_w8",
    template="linear_w8_n{N}_k{K}",
    description="linear layer, int8 weights with a scale per output",
    shapes=(("M", "K"), ("N", "K"), ("N",)),
    dtypes=("float32", "int8", "float32"),
    build=_build,
)

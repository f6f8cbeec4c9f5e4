"""linear_w8 in Triton: dots for a row or two, tiles for many, matrix units for very many."""

from __future__ import annotations

from collections.abc import Mapping

from retuned.catalog.entry import Params, Space
from retuned.catalog.triton.space import fits, space, split_k_of, warps
from retuned.contract import Definition

FEW_ROWS = 4
"""Up to so many rows, reading the weights once per row costs less than half-empty tiles."""

_TILED = ("cdiv(M, BLOCK_M) * cdiv(N, BLOCK_N)",)


def _few(axes: Mapping[str, int]) -> bool:
    return axes["M"] <= FEW_ROWS


def _tile_starts(axes: Mapping[str, int]) -> tuple[Params, ...]:
    rows = 16 if axes["M"] <= 16 else 32 if axes["M"] <= 64 else 64
    return (
        {"BLOCK_M": rows, "BLOCK_N": 64, "BLOCK_K": 32, "num_warps": 4, "num_stages": 2},
        {"BLOCK_M": 16, "BLOCK_N": 64, "BLOCK_K": 64, "num_warps": 4, "num_stages": 2},
    )


def _split_starts(axes: Mapping[str, int]) -> tuple[Params, ...]:
    rows = 16 if axes["M"] <= 16 else 64 if axes["M"] <= 64 else 128
    return (
        {"BLOCK_M": rows, "BLOCK_N": 64, "BLOCK_K": 64, "num_warps": 4, "num_stages": 3},
        {"BLOCK_M": 16, "BLOCK_N": 32, "BLOCK_K": 128, "num_warps": 2, "num_stages": 3},
    )


def _tile_fits(params: Params, definition: Definition) -> bool:
    rows, columns, depth = (int(params[name]) for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K"))
    staged = 4 * rows * depth + columns * depth
    return (
        warps(params, rows * columns, least=8, most=64)
        and 4 * (rows + columns) * depth <= 96 << 10
        and staged * int(params["num_stages"]) <= 160 << 10
        and fits(definition, "N", columns)
        and fits(definition, "K", depth, least=32)
    )


def _dots_fit(params: Params, definition: Definition) -> bool:
    columns, depth = int(params["BLOCK_N"]), int(params["BLOCK_K"])
    return (
        warps(params, columns * depth, least=4, most=64)
        and fits(definition, "N", columns)
        and fits(definition, "K", depth, least=64)
    )


ROW_DOTS = space(
    "row-dots",
    "triton_linear_row_dots.py",
    grid=("M * cdiv(N, BLOCK_N)",),
    params={
        "BLOCK_N": (1, 2, 4, 8, 16, 32, 64),
        "BLOCK_K": (64, 128, 256, 512, 1024),
        "num_warps": (1, 2, 4, 8),
        "num_stages": (1, 2, 3, 4),
    },
    starts=lambda _axes: (
        {"BLOCK_N": 8, "BLOCK_K": 256, "num_warps": 4, "num_stages": 3},
        {"BLOCK_N": 4, "BLOCK_K": 512, "num_warps": 4, "num_stages": 2},
        {"BLOCK_N": 16, "BLOCK_K": 64, "num_warps": 4, "num_stages": 2},
    ),
    rank=lambda axes: 0 if _few(axes) else 2,
    valid=_dots_fit,
)
TILES = space(
    "tiles",
    "triton_linear_tiles.py",
    grid=_TILED,
    params={
        "BLOCK_M": (16, 32, 64, 128),
        "BLOCK_N": (16, 32, 64, 128),
        "BLOCK_K": (16, 32, 64),
        "num_warps": (2, 4, 8),
        "num_stages": (1, 2, 3, 4),
    },
    starts=_tile_starts,
    rank=lambda axes: 2 if _few(axes) else 1,
    valid=_tile_fits,
)
SPLIT = space(
    "split",
    "triton_linear_split.py",
    grid=_TILED,
    params={
        "BLOCK_M": (16, 32, 64, 128),
        "BLOCK_N": (16, 32, 64, 128),
        "BLOCK_K": (32, 64, 128),
        "num_warps": (2, 4, 8),
        "num_stages": (1, 2, 3, 4),
    },
    starts=_split_starts,
    rank=lambda axes: 1 if _few(axes) else 0,
    valid=_tile_fits,
)


SPLIT_K = space(
    "split-k",
    "triton_linear_split_k.py",
    **split_k_of("linear_split_k", first=("M * cdiv(N, BLOCK_N)",)),
    params={
        "BLOCK_N": (4, 8, 16, 32),
        "BLOCK_K": (64, 128, 256, 512),
        "SPLITS": (2, 4, 8, 16),
        "num_warps": (1, 2, 4, 8),
        "num_stages": (2, 3),
    },
    starts=lambda _axes: (
        {"BLOCK_N": 16, "BLOCK_K": 256, "SPLITS": 4, "num_warps": 4, "num_stages": 3},
        {"BLOCK_N": 8, "BLOCK_K": 256, "SPLITS": 2, "num_warps": 4, "num_stages": 2},
        {"BLOCK_N": 16, "BLOCK_K": 64, "SPLITS": 2, "num_warps": 4, "num_stages": 2},
    ),
    rank=lambda axes: 1 if _few(axes) else 3,
    valid=lambda params, definition: (
        _dots_fit(params, definition)
        and fits(definition, "K", int(params["BLOCK_K"]) * int(params["SPLITS"]), least=128)
    ),
)


def linear_w8(definition: Definition) -> tuple[tuple[Space, ...], Params]:
    """Return the spaces, and the first's point that is tuned for one stream of chat, M = 1."""
    small = {"BLOCK_N": 16, "BLOCK_K": 64, "num_warps": 4, "num_stages": 1}
    for depth in (256, 128):
        point = {"BLOCK_N": 8, "BLOCK_K": depth, "num_warps": 4, "num_stages": 3}
        if ROW_DOTS.constraints(point, definition):
            return (ROW_DOTS, TILES, SPLIT, SPLIT_K), point
    return (ROW_DOTS, TILES, SPLIT, SPLIT_K), small

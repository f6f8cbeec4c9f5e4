"""Matrix products in Triton: tiles, tiles by persistent programs, and slices for few rows.

The three structures are the same for bfloat16, for 8-bit floats with block scales, and for int8
weights; each of them has a source for every structure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from retuned.catalog.entry import Params, Space
from retuned.catalog.triton.space import fits, fitting, space, split_k_of, warps
from retuned.contract import Definition

FEW_ROWS = 32
"""Up to so many rows, weights dominate memory traffic, and tiles are few and deep."""
_TILED = "cdiv(M, BLOCK_M) * cdiv(N, BLOCK_N)"
_SHARED_MAX_BYTES = 224 << 10
"""Staging limit of a program on the largest current devices; smaller ones refuse more."""


def _few(axes: Mapping[str, int]) -> bool:
    return axes["M"] <= FEW_ROWS


def _tile_fits(params: Params, definition: Definition, *, x_bytes: int, w_bytes: int) -> bool:
    rows, columns, depth = (int(params[name]) for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K"))
    slices = int(params.get("SLICES", 1))
    staged = (x_bytes * rows + w_bytes * columns) * depth * slices
    return (
        warps(params, rows * columns * slices, least=8, most=128)
        and staged * int(params["num_stages"]) <= _SHARED_MAX_BYTES
        and fits(definition, "N", columns, least=32)
        and fits(definition, "K", depth * slices, least=64 if slices == 1 else 256)
    )


def _tile_starts(axes: Mapping[str, int], depths: tuple[int, ...]) -> tuple[Params, ...]:
    rows = 16 if axes["M"] <= 16 else 32 if axes["M"] <= 64 else 64 if axes["M"] <= 256 else 128
    shapes = [(rows, 128 if rows == 128 else 64), (16 if rows == 16 else 32, 32)]
    return tuple(
        {
            "BLOCK_M": high,
            "BLOCK_N": wide,
            "BLOCK_K": depth,
            "GROUP_M": 1 if high == 16 else 8,
            "num_warps": 8 if high * wide >= 128 * 128 else 4 if high * wide > 512 else 2,
            "num_stages": 2 if high == 128 else 3,
        }
        for high, wide in shapes
        for depth in depths
    )


def _slice_starts(axes: Mapping[str, int], depths: tuple[int, ...]) -> tuple[Params, ...]:
    rows = 16 if axes["M"] <= 16 else 32
    return tuple(
        {
            "BLOCK_M": rows,
            "BLOCK_N": 32,
            "BLOCK_K": depth,
            "SLICES": slices,
            "num_warps": 4,
            "num_stages": 2,
        }
        for slices in (4, 2)
        for depth in depths
    )


def products(
    source: str, *, depths: tuple[int, ...], x_bytes: int, w_bytes: int
) -> tuple[Space, Space, Space]:
    """Return the three spaces of one kind of product.

    `source` is the middle of the sources' names: ``triton_{source}_tiles.py`` and so on. `depths`
    are choices of BLOCK_K, the best guess first. `x_bytes` and `w_bytes` are per element.
    """

    def valid(params: Params, definition: Definition) -> bool:
        return _tile_fits(params, definition, x_bytes=x_bytes, w_bytes=w_bytes)

    tile: dict[str, tuple[int | str, ...]] = {
        "BLOCK_M": (16, 32, 64, 128, 256),
        "BLOCK_N": (32, 64, 128, 256),
        "BLOCK_K": tuple(sorted(depths)),
        "GROUP_M": (1, 8),
        "num_warps": (2, 4, 8),
        "num_stages": (2, 3, 4),
    }
    tiles = space(
        "tiles",
        f"triton_{source}_tiles.py",
        grid=(_TILED,),
        params=tile,
        starts=lambda axes: _tile_starts(axes, depths),
        rank=lambda axes: 1 if _few(axes) else 0,
        valid=valid,
    )
    persistent = space(
        "persistent",
        f"triton_{source}_persistent.py",
        grid=(f"min(PROGRAMS, {_TILED})",),
        params={
            **tile,
            "PROGRAMS": (132, 264, 304, 608),
            "BLOCK_M": (64, 128, 256),
            "BLOCK_N": (32, 64, 128, 256),
            "GROUP_M": (8,),
            "num_warps": (4, 8),
        },
        starts=lambda axes: tuple(
            {**point, "PROGRAMS": programs}
            for programs in (132, 304)
            for point in _tile_starts({"M": max(axes["M"], 2 * FEW_ROWS + 1)}, depths)
        ),
        rank=lambda axes: 2 if _few(axes) else 1,
        valid=valid,
    )
    slices = space(
        "slices",
        f"triton_{source}_slices.py",
        grid=(_TILED,),
        params={
            "BLOCK_M": (16, 32),
            "BLOCK_N": (16, 32, 64),
            "BLOCK_K": tuple(sorted(depths)),
            "SLICES": (2, 4, 8),
            "num_warps": (2, 4, 8),
            "num_stages": (1, 2, 3),
        },
        starts=lambda axes: _slice_starts(axes, depths),
        rank=lambda axes: 0 if _few(axes) else 2,
        valid=valid,
    )
    return tiles, persistent, slices


def _split_fits(params: Params, definition: Definition) -> bool:
    depth = int(params["BLOCK_K"]) * int(params["SPLITS"])
    return _tile_fits(params, definition, x_bytes=2, w_bytes=2) and fits(
        definition, "K", depth, least=256
    )


def _split_starts(axes: Mapping[str, int]) -> tuple[Params, ...]:
    rows = 16 if axes["M"] <= 16 else 32
    return tuple(
        {
            "BLOCK_M": rows,
            "BLOCK_N": columns,
            "BLOCK_K": depth,
            "SPLITS": splits,
            "num_warps": 4 if rows * columns > 512 else 2,
            "num_stages": 3,
        }
        for splits, columns, depth in ((4, 64, 64), (8, 64, 64), (2, 32, 128), (2, 32, 64))
    )


SPLIT_K = space(
    "split-k",
    "triton_gemm_split_k.py",
    **split_k_of("gemm_split_k", first=(_TILED,)),
    params={
        "BLOCK_M": (16, 32),
        "BLOCK_N": (32, 64, 128),
        "BLOCK_K": (32, 64, 128),
        "SPLITS": (2, 4, 8, 16),
        "num_warps": (2, 4, 8),
        "num_stages": (2, 3, 4),
    },
    starts=_split_starts,
    rank=lambda axes: 1 if _few(axes) else 3,
    valid=_split_fits,
)
"""Depth split among programs, in two launches: for few rows of a deep product."""
BF16 = (*products("gemm", depths=(64, 32, 128), x_bytes=2, w_bytes=2), SPLIT_K)
W8 = products("gemm_w8", depths=(64, 32, 128), x_bytes=2, w_bytes=1)
FP8 = products("gemm_fp8", depths=(128, 64), x_bytes=1, w_bytes=1)


def few_rows(tiles: Space, definition: Definition) -> Params:
    points: Iterator[Params] = (
        {
            "BLOCK_M": 16,
            "BLOCK_N": columns,
            "BLOCK_K": depth,
            "GROUP_M": 1,
            "num_warps": 4 if columns == 64 else 2,
            "num_stages": 3,
        }
        for depth in (128, 64)
        for columns in (64, 32)
    )
    for point in points:
        if tiles.constraints(point, definition):
            return point
    return fitting(tiles, definition).starts({"M": 1})[0]

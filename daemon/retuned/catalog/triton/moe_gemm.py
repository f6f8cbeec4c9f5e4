"""Grouped product of a mixture of experts in Triton: tiles, or a route per program."""

from __future__ import annotations

from collections.abc import Mapping

from retuned.catalog.entry import Params, Space, constant
from retuned.catalog.triton.space import fits, fitting, next_pow2, space, warps
from retuned.contract import Definition

FEW_TOKENS = 8
"""Up to so many tokens, experts mostly get one route each."""


def _few(axes: Mapping[str, int]) -> bool:
    return axes["M"] <= FEW_TOKENS


def _tile_fits(params: Params, definition: Definition) -> bool:
    rows, columns, depth = (int(params[name]) for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K"))
    return (
        warps(params, rows * columns, least=4, most=128)
        and 2 * (rows + columns) * depth * int(params["num_stages"]) <= 224 << 10
        and fits(definition, "N", columns, least=32)
        and fits(definition, "K", depth, least=64)
    )


def _tiles(experts: int) -> Space:
    def starts(axes: Mapping[str, int]) -> tuple[Params, ...]:
        rows = 16 if axes["M"] <= 64 else 64
        return tuple(
            {
                "BLOCK_E": experts,
                "BLOCK_M": rows,
                "BLOCK_N": columns,
                "BLOCK_K": depth,
                "num_warps": 4,
                "num_stages": 3 if rows == 16 else 2,
            }
            for columns, depth in ((64, 64), (128, 64), (32, 32))
        )

    return space(
        "tiles",
        "triton_moe_gemm_tiles.py",
        # Never more tiles than routes, nor more than full ones and one remainder per expert.
        grid=("min(M * T, cdiv(M * T, BLOCK_M) + E) * cdiv(N, BLOCK_N)",),
        params={
            "BLOCK_E": (experts,),
            "BLOCK_M": (16, 32, 64, 128),
            "BLOCK_N": (32, 64, 128, 256),
            "BLOCK_K": (32, 64, 128),
            "num_warps": (4, 8),
            "num_stages": (2, 3, 4),
        },
        starts=starts,
        rank=lambda axes: 1 if _few(axes) else 0,
        valid=_tile_fits,
    )


def _routes(experts: int) -> Space:
    return space(
        "routes",
        "triton_moe_gemm_routes.py",
        grid=("M * T * cdiv(N, BLOCK_N)",),
        params={
            "BLOCK_E": (experts,),
            "BLOCK_N": (8, 16, 32, 64),
            "BLOCK_K": (64, 128, 256, 512),
            "num_warps": (2, 4, 8),
            "num_stages": (1, 2, 3),
        },
        starts=lambda _axes: (
            {"BLOCK_E": experts, "BLOCK_N": 16, "BLOCK_K": 256, "num_warps": 4, "num_stages": 2},
            {"BLOCK_E": experts, "BLOCK_N": 16, "BLOCK_K": 64, "num_warps": 4, "num_stages": 2},
        ),
        rank=lambda axes: 0 if _few(axes) else 1,
        valid=lambda params, definition: (
            warps(params, int(params["BLOCK_N"]) * int(params["BLOCK_K"]), least=4, most=128)
            and fits(definition, "N", int(params["BLOCK_N"]))
            and fits(definition, "K", int(params["BLOCK_K"]), least=64)
        ),
    )


def moe_gemm(definition: Definition) -> tuple[tuple[Space, ...], Params]:
    """Return the spaces, and the first's point that servers use for few tokens."""
    experts = next_pow2(constant(definition, "E"))
    tiles = _tiles(experts)
    usual: Params = {
        "BLOCK_E": experts,
        "BLOCK_M": 16,
        "BLOCK_N": 32,
        "BLOCK_K": 64,
        "num_warps": 4,
        "num_stages": 3,
    }
    if not tiles.constraints(usual, definition):
        usual = fitting(tiles, definition).starts({"M": 1})[0]
    return (tiles, _routes(experts)), usual

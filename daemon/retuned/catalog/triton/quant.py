"""Per-token quantisation in Triton, bound by memory bandwidth."""

from __future__ import annotations

from collections.abc import Mapping

from retuned.catalog.entry import Params, Space, constant
from retuned.catalog.triton.space import WHOLE_ROW, next_pow2, space, warps, warps_for
from retuned.contract import Definition

_WARPS = (1, 2, 4, 8, 16)
_BLOCKS = (256, 512, 1024, 2048, 4096, 8192)


def _many(axes: Mapping[str, int]) -> bool:
    return axes["M"] >= 8


def quant(definition: Definition, largest: int) -> tuple[tuple[Space, ...], Params]:
    """Return the spaces and the incumbent's point; the largest of a row becomes `largest`."""
    width = next_pow2(constant(definition, "H"))
    blocks = _blocks(width, largest)
    if width > WHOLE_ROW:
        return (blocks,), blocks.starts({"M": 1})[0]
    rows = space(
        "rows",
        "triton_quant_rows.py",
        grid=("cdiv(M, ROWS)",),
        params={
            "ROWS": (1, 2, 4, 8),
            "BLOCK": (width,),
            "LARGEST": (largest,),
            "num_warps": _WARPS,
        },
        starts=lambda axes: tuple(
            {
                "ROWS": 1,
                "BLOCK": width,
                "LARGEST": largest,
                "num_warps": warps_for(width, each=each, most=16),
            }
            for each in ((8, 16) if _many(axes) else (4, 8))
        ),
        rank=lambda _axes: 0,
        valid=lambda params, _definition: warps(
            params, int(params["ROWS"]) * int(params["BLOCK"]), least=0.5, most=128
        ),
    )
    incumbent: Params = {
        "ROWS": 1,
        "BLOCK": width,
        "LARGEST": largest,
        "num_warps": warps_for(width, each=8, most=8),
    }
    return (rows, blocks), incumbent


def _blocks(width: int, largest: int) -> Space:
    least = min(1024, max(256, width))
    return space(
        "blocks",
        "triton_quant_blocks.py",
        grid=("M",),
        params={
            "BLOCK": tuple(block for block in _BLOCKS if block <= max(256, width)),
            "LARGEST": (largest,),
            "num_warps": _WARPS,
        },
        starts=lambda _axes: tuple(
            {"BLOCK": least, "LARGEST": largest, "num_warps": warps_for(least, each=each)}
            for each in (4, 8)
        ),
        rank=lambda _axes: 1,
        valid=lambda params, _definition: warps(params, int(params["BLOCK"]), least=0.5, most=64),
    )

"""attention in Triton: one query per program for decoding, blocks of queries for prompts."""

from __future__ import annotations

from collections.abc import Mapping

from retuned.catalog.entry import Params, Space, constant
from retuned.catalog.triton.space import next_pow2, space, warps
from retuned.contract import Definition


def _many(axes: Mapping[str, int]) -> bool:
    return axes["T"] >= 8


def attention(definition: Definition) -> tuple[tuple[Space, ...], Params]:
    head = next_pow2(constant(definition, "D"))
    query = space(
        "query",
        "triton_attention_query.py",
        grid=("T * H",),
        params={
            "BLOCK_D": (head,),
            "BLOCK_S": (16, 32, 64, 128),
            "num_warps": (1, 2, 4, 8),
            "num_stages": (1, 2, 3),
        },
        starts=lambda _axes: (
            {"BLOCK_D": head, "BLOCK_S": 32, "num_warps": 4, "num_stages": 2},
            {"BLOCK_D": head, "BLOCK_S": 64, "num_warps": 4, "num_stages": 1},
        ),
        rank=lambda axes: 1 if _many(axes) else 0,
        valid=lambda params, _definition: warps(
            params, head * int(params["BLOCK_S"]), least=1, most=128
        ),
    )
    tiles = space(
        "tiles",
        "triton_attention_tiles.py",
        grid=("H * cdiv(T, BLOCK_T)",),
        params={
            "BLOCK_D": (head,),
            "BLOCK_T": (16, 32, 64, 128),
            "BLOCK_S": (16, 32, 64, 128),
            "num_warps": (2, 4, 8),
            "num_stages": (1, 2, 3),
        },
        starts=lambda axes: (
            {
                "BLOCK_D": head,
                "BLOCK_T": 16 if axes["T"] <= 32 else 32,
                "BLOCK_S": 32,
                "num_warps": 4,
                "num_stages": 1,
            },
            {"BLOCK_D": head, "BLOCK_T": 16, "BLOCK_S": 16, "num_warps": 4, "num_stages": 1},
        ),
        rank=lambda axes: 0 if _many(axes) else 1,
        valid=_tile_fits,
    )
    incumbent: Params = {"BLOCK_D": head, "BLOCK_S": 32, "num_warps": 4, "num_stages": 2}
    return (query, tiles), incumbent


def _tile_fits(params: Params, _definition: Definition) -> bool:
    head, queries, keys = (int(params[name]) for name in ("BLOCK_D", "BLOCK_T", "BLOCK_S"))
    shared = 4 * (queries * head + 2 * keys * head * int(params["num_stages"]) + queries * keys)
    return shared <= 200 << 10 and warps(params, queries * max(head, keys), least=1, most=128)

"""rope in Triton."""

from __future__ import annotations

from collections.abc import Mapping

from retuned.catalog.entry import Params, Space, constant
from retuned.catalog.triton_space import next_pow2, space, warps, warps_for
from retuned.contract import Definition

_WARPS = (1, 2, 4, 8, 16)
_HEADS = (1, 2, 4, 8, 16, 32)


def _many(axes: Mapping[str, int]) -> bool:
    return axes["M"] >= 64


def rope(definition: Definition) -> tuple[tuple[Space, ...], Params]:
    """Return the spaces and the incumbent's point in the first: one program a token.

    Few tokens leave most of a device idle with one program each, many keep it busy.
    """
    queries, keys = (next_pow2(constant(definition, axis)) for axis in ("Q", "K"))
    block = next_pow2(constant(definition, "D") // 2)
    larger = max(queries, keys) * block
    token = space(
        "token",
        "triton_rope_token.py",
        grid=("M",),
        params={"QUERIES": (queries,), "KEYS": (keys,), "BLOCK": (block,), "num_warps": _WARPS},
        starts=lambda _axes: tuple(
            _token(queries, keys, block, warps_for(larger, each=each, most=16)) for each in (8, 16)
        ),
        rank=lambda axes: 0 if _many(axes) else 1,
    )
    most = next_pow2(constant(definition, "Q") + constant(definition, "K"))
    few = min(4, most)
    heads = space(
        "heads",
        "triton_rope_heads.py",
        grid=("M * cdiv(Q + K, HEADS)",),
        params={
            "HEADS": tuple(count for count in _HEADS if count <= most),
            "BLOCK": (block,),
            "num_warps": _WARPS,
        },
        starts=lambda _axes: (
            {"HEADS": few, "BLOCK": block, "num_warps": 1},
            {
                "HEADS": min(8, most),
                "BLOCK": block,
                "num_warps": warps_for(min(8, most) * block, each=4, most=8),
            },
        ),
        rank=lambda axes: 1 if _many(axes) else 0,
        valid=_held,
    )
    return (token, heads), _token(queries, keys, block, warps_for(larger, each=4, most=16))


def _token(queries: int, keys: int, block: int, count: int) -> Params:
    return {"QUERIES": queries, "KEYS": keys, "BLOCK": block, "num_warps": count}


def _held(params: Params, _definition: Definition) -> bool:
    elements = int(params["HEADS"]) * int(params["BLOCK"])
    small = elements < 16 and int(params["num_warps"]) == 1
    return small or warps(params, elements, least=0.5, most=64)

"""rope in Triton."""

from __future__ import annotations

from collections.abc import Mapping

from retuned.catalog.entry import Params, Space, constant
from retuned.catalog.triton.space import next_pow2, space, warps, warps_for
from retuned.contract import Definition

_WARPS = (1, 2, 4, 8, 16)
_HEADS = (1, 2, 4, 8, 16, 32)
_TOKEN = 1 << 15
"""Maximum of half elements of a token's heads that one program holds in registers."""


def _many(axes: Mapping[str, int]) -> bool:
    return axes["M"] >= 64


def rope(definition: Definition) -> tuple[tuple[Space, ...], Params]:
    """Return the spaces and the incumbent's point in the first: one program per token.

    With one program each, few tokens leave most of a device idle, and many keep it busy.
    """
    heads = _heads(definition)
    queries, keys = (next_pow2(constant(definition, axis)) for axis in ("Q", "K"))
    block = next_pow2(constant(definition, "D") // 2)
    larger = max(queries, keys) * block
    if larger > _TOKEN:
        return (heads,), heads.starts({})[0]
    fixed = {"QUERIES": queries, "KEYS": keys, "BLOCK": block}
    token = space(
        "token",
        "triton_rope_token.py",
        grid=("M",),
        params={**{name: (value,) for name, value in fixed.items()}, "num_warps": _WARPS},
        starts=lambda _axes: tuple(
            {**fixed, "num_warps": warps_for(larger, each=each, most=16)} for each in (8, 16)
        ),
        rank=lambda axes: 0 if _many(axes) else 1,
    )
    return (token, heads), {**fixed, "num_warps": warps_for(larger, each=4, most=16)}


def _heads(definition: Definition) -> Space:
    most = next_pow2(constant(definition, "Q") + constant(definition, "K"))
    block = next_pow2(constant(definition, "D") // 2)
    few, more = min(4, most), min(8, most)
    return space(
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
            {"HEADS": more, "BLOCK": block, "num_warps": warps_for(more * block, each=4)},
        ),
        rank=lambda axes: 1 if _many(axes) else 0,
        valid=_held,
    )


def _held(params: Params, _definition: Definition) -> bool:
    elements = int(params["HEADS"]) * int(params["BLOCK"])
    small = elements < 16 and int(params["num_warps"]) == 1
    return small or warps(params, elements, least=0.5, most=64)

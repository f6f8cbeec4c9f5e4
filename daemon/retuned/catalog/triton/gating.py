"""topk_gating in Triton: some rows of logits per program, the chosen found one after another."""

from __future__ import annotations

from collections.abc import Mapping

from retuned.catalog.entry import Params, Space, constant
from retuned.catalog.triton.space import next_pow2, space, warps, warps_for
from retuned.contract import Definition

_ROWS = (1, 2, 4, 8, 16)
_WARPS = (1, 2, 4, 8)
_LEAST_BLOCK = 16


def _many(axes: Mapping[str, int]) -> bool:
    return axes["M"] >= 64


def topk_gating(definition: Definition) -> tuple[tuple[Space, ...], Params]:
    """Return the spaces and the incumbent's point in the first: a row per program."""
    block = max(_LEAST_BLOCK, next_pow2(constant(definition, "E")))
    slots = next_pow2(constant(definition, "K"))
    single = _point(1, block, slots, warps_for(block, each=16))
    several = _point(4, block, slots, warps_for(4 * block, each=16))
    rounds, packed = (
        space(
            name,
            f"triton_topk_gating_{name}.py",
            grid=("cdiv(M, ROWS)",),
            params={"ROWS": _ROWS, "BLOCK": (block,), "SLOTS": (slots,), "num_warps": _WARPS},
            starts=lambda axes: (several, single) if _many(axes) else (single, several),
            rank=lambda _axes, place=place: place,  # type: ignore[misc]
            valid=_held,
        )
        for place, name in ((1, "rounds"), (0, "packed"))
    )
    return (rounds, packed), single


def _point(rows: int, block: int, slots: int, count: int) -> Params:
    return {"ROWS": rows, "BLOCK": block, "SLOTS": slots, "num_warps": count}


def _held(params: Params, _definition: Definition) -> bool:
    return warps(params, int(params["ROWS"]) * int(params["BLOCK"]), least=0.5, most=64)

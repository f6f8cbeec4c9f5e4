"""Normalisations, gated activations and softmax in Triton, bound by memory bandwidth."""

from __future__ import annotations

from collections.abc import Mapping

from retuned.catalog.entry import Params, Space, constant
from retuned.catalog.triton.space import WHOLE_ROW, next_pow2, space, warps, warps_for
from retuned.contract import AxisConst, Definition

_WARPS = (1, 2, 4, 8, 16)
_BLOCKS = (256, 512, 1024, 2048, 4096)
_LEAST = 16
"""Shortest row of a program: half an element for each thread of a warp."""


def _many(axes: Mapping[str, int]) -> bool:
    return axes["M"] >= 8


def _held(params: Params, _definition: Definition) -> bool:
    rows = int(params.get("ROWS", 1))
    return warps(params, rows * int(params["BLOCK"]), least=1, most=64)


def normalised(definition: Definition) -> tuple[tuple[Space, ...], Params]:
    op_type, width = definition.op_type, max(_LEAST, next_pow2(constant(definition, "H")))
    least = min(256, width)
    blocks = space(
        "blocks",
        f"triton_{op_type}_blocks.py",
        grid=("M",),
        params={"BLOCK": tuple(b for b in _BLOCKS if b <= width) or (width,), "num_warps": _WARPS},
        starts=lambda _axes: (
            {"BLOCK": least, "num_warps": warps_for(least, each=4)},
            {"BLOCK": least, "num_warps": warps_for(least, each=8)},
        ),
        rank=lambda _axes: 1,
        valid=lambda params, _definition: warps(params, int(params["BLOCK"]), least=0.5, most=64),
    )
    if width > WHOLE_ROW:
        return (blocks,), {"BLOCK": least, "num_warps": warps_for(least, each=4)}
    rows = space(
        "rows",
        f"triton_{op_type}_rows.py",
        grid=("cdiv(M, ROWS)",),
        params={"ROWS": (1, 2, 4, 8), "BLOCK": (width,), "num_warps": _WARPS},
        starts=lambda axes: (
            {
                "ROWS": 1,
                "BLOCK": width,
                "num_warps": warps_for(width, each=8 if _many(axes) else 4, most=16),
            },
            {"ROWS": 1, "BLOCK": width, "num_warps": warps_for(width, each=16, most=16)},
        ),
        rank=lambda _axes: 0,
        valid=_rows_held,
    )
    return (rows, blocks), {
        "ROWS": 1,
        "BLOCK": width,
        "num_warps": warps_for(width, each=4, most=16),
    }


def _rows_held(params: Params, _definition: Definition) -> bool:
    elements = int(params["ROWS"]) * int(params["BLOCK"])
    return warps(params, elements, least=0.5, most=128)


def gated(definition: Definition) -> tuple[tuple[Space, ...], Params]:
    width = next_pow2(constant(definition, "I"))
    flat = space(
        "flat",
        f"triton_{definition.op_type}_flat.py",
        grid=("cdiv(M * I, BLOCK)",),
        params={"BLOCK": (128, *_BLOCKS), "num_warps": _WARPS},
        starts=lambda _axes: (
            {"BLOCK": 512, "num_warps": 4},
            {"BLOCK": 1024, "num_warps": 4},
        ),
        rank=lambda axes: 1 if _many(axes) else 0,
        valid=_held,
    )
    rows = space(
        "rows",
        f"triton_{definition.op_type}_rows.py",
        grid=("cdiv(M, ROWS) * cdiv(I, BLOCK)",),
        params={
            "ROWS": (1, 2, 4, 8),
            "BLOCK": tuple(b for b in (128, *_BLOCKS) if b <= max(128, width)),
            "num_warps": _WARPS,
        },
        starts=lambda _axes: (
            {"ROWS": 1, "BLOCK": min(512, max(128, width)), "num_warps": 4},
            {"ROWS": 4, "BLOCK": min(256, max(128, width)), "num_warps": 4},
        ),
        rank=lambda axes: 0 if _many(axes) else 1,
        valid=_held,
    )
    return (flat, rows), {"BLOCK": 128, "num_warps": 4}


def softmax(definition: Definition) -> tuple[tuple[Space, ...], Params]:
    """Return the spaces and the incumbent's point in the first.

    The incumbent reads its row in blocks. For one row of a vocabulary this hardly matters; for many
    rows, holding the row in registers avoids a second read.
    """
    params = {"BLOCK": _BLOCKS, "num_warps": _WARPS}
    starts: tuple[Params, ...] = (
        {"BLOCK": 1024, "num_warps": 4},
        {"BLOCK": 4096, "num_warps": 8},
    )
    passes, online = (
        space(
            name,
            f"triton_softmax_{name}.py",
            grid=("M",),
            params=params,
            starts=lambda _axes: starts,
            rank=lambda _axes, place=place: place,  # type: ignore[misc]
            valid=_held,
        )
        for place, name in ((2, "passes"), (1, "online"))
    )
    incumbent: Params = {"BLOCK": 1024, "num_warps": 4}
    length = definition.axes["N"]
    if not isinstance(length, AxisConst) or next_pow2(length.value) > WHOLE_ROW:
        return (passes, online), incumbent
    width = next_pow2(length.value)
    whole = space(
        "whole",
        "triton_softmax_whole.py",
        grid=("M",),
        params={"BLOCK": (width,), "num_warps": _WARPS},
        starts=lambda _axes: (
            {"BLOCK": width, "num_warps": warps_for(width, each=16, most=16)},
            {"BLOCK": width, "num_warps": warps_for(width, each=32, most=16)},
        ),
        rank=lambda _axes: 0,
        valid=lambda params, _definition: warps(params, int(params["BLOCK"]), least=0.01, most=128),
    )
    return (passes, online, whole), incumbent

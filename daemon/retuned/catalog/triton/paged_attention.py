"""Paged decoding in Triton: by query head, by group of heads, or by parts of keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from retuned.catalog.entry import Params, Space, constant
from retuned.catalog.triton.space import fitting, next_pow2, space, warps
from retuned.contract import Definition, DType, Scratch, Step

FEW_SEQUENCES = 16
"""Up to so many, groups of heads alone do not keep a device busy."""
LEAST_GROUP = 16
"""Rows of the smallest matrix of matrix units."""


def paged_attention(definition: Definition) -> tuple[tuple[Space, ...], Params]:
    head = next_pow2(constant(definition, "D"))
    shared = constant(definition, "H") // constant(definition, "G")
    rows = max(LEAST_GROUP, next_pow2(shared))

    def fits(params: Params, _definition: Definition) -> bool:
        keys, stages = int(params["BLOCK_S"]), int(params["num_stages"])
        staged = 2 * (2 * keys * head * stages + rows * (head + keys))
        return staged <= 200 << 10 and warps(params, keys * head, least=4, most=128)

    sizes: dict[str, tuple[int | str, ...]] = {
        "BLOCK_D": (head,),
        "BLOCK_S": (16, 32, 64, 128, 256),
        "num_warps": (1, 2, 4, 8),
        "num_stages": (1, 2, 3),
    }

    def points(axes: Mapping[str, int], **more: int) -> tuple[Params, ...]:
        keys = 64 if axes["W"] > 1 else 32
        return tuple(
            {**more, "BLOCK_D": head, "BLOCK_S": block, "num_warps": 4, "num_stages": stages}
            for block, stages in ((keys, 2), (32, 2), (16, 1))
        )

    query = space(
        "query",
        "triton_paged_attention_query.py",
        grid=("B * H",),
        params=sizes,
        starts=points,
        rank=lambda _axes: 0 if shared == 1 else 1,
        valid=fits,
    )
    groups = space(
        "groups",
        "triton_paged_attention_groups.py",
        grid=("B * G",),
        params={"BLOCK_G": (rows,), **sizes},
        starts=lambda axes: points(axes, BLOCK_G=rows),
        rank=lambda _axes: 1 if shared == 1 else 0,
        valid=fits,
    )
    splits = _splits(rows, head, fits=fits)
    for block in (32, 16):
        point: Params = {"BLOCK_D": head, "BLOCK_S": block, "num_warps": 4, "num_stages": 2}
        if shared == 1 and query.constraints(point, definition):
            return (query, groups, splits), point
        wide: Params = {"BLOCK_G": rows, **point}
        if shared > 1 and groups.constraints(wide, definition):
            return (groups, query, splits), wide
    first, other = (query, groups) if shared == 1 else (groups, query)
    return (first, other, splits), fitting(first, definition).starts({"W": 1})[0]


def _splits(rows: int, head: int, *, fits: Callable[[Params, Definition], bool]) -> Space:
    """Return the space of two launches, for fewer groups than a device has units."""
    shape = ("B", "H", "SPLITS")

    def points(axes: Mapping[str, int]) -> tuple[Params, ...]:
        few = axes.get("B", 1) <= FEW_SEQUENCES
        sizes = {"BLOCK_G": rows, "BLOCK_D": head, "num_warps": 4, "num_stages": 2}
        return tuple(
            {**sizes, "SPLITS": parts, "BLOCK_S": keys}
            for parts, keys in (((8, 32), (16, 32), (4, 16)) if few else ((2, 32), (2, 16)))
        )

    light: dict[str, int | str] = {"num_warps": 4, "num_stages": 1}
    return space(
        "splits",
        "triton_paged_attention_splits.py",
        steps=(
            Step(entry="paged_attention_splits", grid=("B * G", "SPLITS")),
            Step(entry="paged_attention_splits_join", grid=("B * H",), params=light),
        ),
        scratch=(
            Scratch(name="mixture", dtype=DType.FLOAT32, shape=(*shape, "D")),
            Scratch(name="peaks", dtype=DType.FLOAT32, shape=shape),
            Scratch(name="totals", dtype=DType.FLOAT32, shape=shape),
        ),
        params={
            "BLOCK_G": (rows,),
            "BLOCK_D": (head,),
            "BLOCK_S": (16, 32, 64, 128),
            "SPLITS": (2, 4, 8, 16, 32),
            "num_warps": (1, 2, 4, 8),
            "num_stages": (1, 2, 3),
        },
        starts=points,
        rank=lambda axes: 0 if axes.get("B", 1) <= FEW_SEQUENCES else 2,
        valid=fits,
    )

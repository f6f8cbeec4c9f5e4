"""Triton space helpers that all families share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import islice, product
from typing import Any

from retuned.catalog.entry import Params, Space, constant
from retuned.contract import Definition, DType, Language, Scratch, Step

PREFIX = "triton_"
WHOLE_ROW = 1 << 16
"""Longest row that one program holds in registers."""


def space(
    name: str,
    source: str,
    *,
    grid: tuple[str, ...] = (),
    steps: tuple[Step, ...] = (),
    scratch: tuple[Scratch, ...] = (),
    params: Mapping[str, tuple[int | str, ...]],
    starts: Callable[[Mapping[str, int]], tuple[Params, ...]],
    rank: Callable[[Mapping[str, int]], int],
    valid: Callable[[Params, Definition], bool] = lambda _params, _definition: True,
) -> Space:
    """Return the space of one Triton source; its entry is the file's, or its first step's.

    It has either a grid or steps.
    """
    return Space(
        name=name,
        sources=(source,),
        entry=steps[0].entry if steps else source.removeprefix(PREFIX).removesuffix(".py"),
        params=params,
        starts=starts,
        rank=rank,
        valid=valid,
        language=Language.TRITON,
        grid=grid,
        steps=steps,
        scratch=scratch,
    )


def split_k_of(entry: str, *, first: tuple[str, ...]) -> dict[str, Any]:
    """Return steps and scratch of a product whose depth is split among programs.

    `entry` writes partial sums; ``{entry}_sum`` adds them up. `first` is the one-dimensional grid
    of one part's tiles; the second dimension is the part.
    """
    total = Step(
        entry=f"{entry}_sum",
        grid=("cdiv(M * N, BLOCK_SUM)",),
        params={"BLOCK_SUM": 512, "num_warps": 4, "num_stages": 2},
    )
    partial = Scratch(name="partial", dtype=DType.FLOAT32, shape=("SPLITS", "M", "N"))
    return {
        "steps": (Step(entry=entry, grid=(*first, "SPLITS")), total),
        "scratch": (partial,),
    }


def fitting(space: Space, definition: Definition) -> Space:
    """Return the space with only those starts that the definition's constant axes allow.

    If none is left, any point of the space becomes one: small definitions have small tiles.
    """

    def starts(axes: Mapping[str, int]) -> tuple[Params, ...]:
        found = tuple(p for p in space.starts(axes) if space.constraints(p, definition))
        return found or tuple(islice(_points(space, definition), 1))

    return replace(space, starts=starts)


def _points(space: Space, definition: Definition) -> Iterator[Params]:
    for values in product(*space.params.values()):
        point = dict(zip(space.params, values, strict=True))
        if space.constraints(point, definition):
            yield point


def next_pow2(length: int) -> int:
    """Return the least power of two that is not below `length`.

    Examples
    --------
    >>> [next_pow2(n) for n in (1, 5, 8)]
    [1, 8, 8]
    """
    return 1 << max(0, length - 1).bit_length()


def fits(definition: Definition, axis: str, block: int, *, least: int = 16) -> bool:
    """Whether a block is not mostly past the end of a constant axis; `least` always fits."""
    return block <= max(least, next_pow2(constant(definition, axis)))


def warps(params: Params, elements: int, *, least: float, most: float) -> bool:
    """Whether each of the threads of a block holds a sensible number of elements.

    A warp is counted as 32 threads; AMD's 64 halve the numbers.
    """
    threads = 32 * int(params["num_warps"])
    return least <= elements / threads <= most


def warps_for(elements: int, *, each: int, most: int = 8) -> int:
    return max(1, min(most, next_pow2(elements // (32 * each) or 1)))

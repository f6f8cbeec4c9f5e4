"""GPU C++ normalisation and softmax: a block per row, read again or held in registers."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from retuned.catalog.entry import Params, Space, constant
from retuned.contract import AxisConst, Definition, DType, Language

PREFIX = "gpu_"
_BLOCKS = (32, 64, 128, 256, 512, 1024)
_EACH = (1, 2, 4, 8, 16)
_TYPES: Mapping[DType, tuple[str, int]] = {
    DType.FLOAT32: ("float", 4),
    DType.BFLOAT16: ("bf16", 2),
    DType.FLOAT16: ("fp16", 2),
}
_WIDEST = 16
_LOOSEST = 4
"""Largest ratio of a block's capacity to the row that it holds."""


def normalised(definition: Definition) -> tuple[tuple[Space, ...], Params]:
    width = constant(definition, "H")
    block, incumbent = _looping(definition, f"{definition.op_type}_block", "H")
    kind, size = _element(definition)
    vectors = [v for v in (1, 2, 4, 8) if v * size <= _WIDEST and width % v == 0]
    widest = vectors[-1]
    shapes = [
        {"BLOCK_X": threads, "VEC": widest, "EACH": each, "TYPE": kind}
        for each in (2, 4, 1, 8, 16)
        for threads in _BLOCKS
    ]
    starts = tuple(point for point in shapes if _covers(point, width))[:2]
    held = _space(
        "held",
        f"{definition.op_type}_held",
        params={"BLOCK_X": _BLOCKS, "VEC": tuple(vectors), "EACH": _EACH, "TYPE": (kind,)},
        starts=starts,
        rank=0,
        valid=lambda params, _definition: _covers(params, width),
    )
    if not starts:
        return (block,), incumbent  # rows longer than any block holds
    return (block, held), incumbent


def softmax(definition: Definition) -> tuple[tuple[Space, ...], Params]:
    passes, incumbent = _looping(definition, "softmax_passes", "N")
    online, _ = _looping(definition, "softmax_online", "N", rank=0)
    return (passes, online), incumbent


def _looping(
    definition: Definition, entry: str, axis: str, *, rank: int = 1
) -> tuple[Space, Params]:
    kind, size = _element(definition)
    length = definition.axes[axis]
    width = length.value if isinstance(length, AxisConst) else 4096
    vectors = tuple(v for v in (1, 2, 4, 8) if v * size <= _WIDEST)
    threads = next((b for b in _BLOCKS[2:] if b * vectors[-1] >= width), _BLOCKS[-1])
    space = _space(
        entry.partition("_")[2],
        entry,
        params={"BLOCK_X": _BLOCKS, "VEC": vectors, "TYPE": (kind,)},
        starts=(
            {"BLOCK_X": threads, "VEC": vectors[-1], "TYPE": kind},
            {"BLOCK_X": 256, "VEC": vectors[-1], "TYPE": kind},
        ),
        rank=rank,
    )
    return space, {"BLOCK_X": 128, "VEC": 1, "TYPE": kind}


def _space(
    name: str,
    entry: str,
    *,
    params: Mapping[str, tuple[int | str, ...]],
    starts: tuple[Params, ...],
    rank: int,
    valid: Callable[[Params, Definition], bool] = lambda _params, _definition: True,
) -> Space:
    return Space(
        name=name,
        sources=(f"{PREFIX}{entry}.cu",),
        entry=entry,
        params=params,
        starts=lambda _axes: starts,
        rank=lambda _axes: rank,
        valid=valid,
        language=Language.GPU_CPP,
        grid=("M",),
    )


def _element(definition: Definition) -> tuple[str, int]:
    (spec,) = definition.outputs.values()
    return _TYPES[spec.dtype]


def _covers(params: Params, width: int) -> bool:
    """Whether the threads of a block hold a row without being mostly idle."""
    threads, each, vector = (int(params[name]) for name in ("BLOCK_X", "EACH", "VEC"))
    room = threads * each * vector
    return width <= room <= max(_LOOSEST * width, _BLOCKS[0] * vector) and width % vector == 0

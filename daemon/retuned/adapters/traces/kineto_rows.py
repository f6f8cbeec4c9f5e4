"""Rows of a Kineto trace that matter, and what their JSON arguments mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from retuned.adapters.traces.events import json_value
from retuned.stages.trace import (
    blocks_from_work_items,
    geometry,
    is_contiguous,
    normalise_kernel_name,
)

Id = int | str | None
"""Correlation or External id; older exports write texts."""
Thread = tuple[Id, Id]
"""Process and thread."""
_Axes = tuple[int, int, int]
_NO_TENSOR = frozenset({"", "Scalar", "ScalarList", "Device", "None"})
_SHAPES_MAX = 64
_RANK_MAX = 16
_CACHED_BYTES = 8192
_CACHE_MAX = 65_536
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class Shape(NamedTuple):
    """Tensor inputs of an operator."""

    dims: tuple[tuple[int, ...], ...] = ()
    dtypes: tuple[str, ...] = ()
    layout: str = ""

    @property
    def known(self) -> bool:
        """Whether any tensor has an axis."""
        return any(self.dims)


class Geometry(NamedTuple):
    """Grid and block as written; the unit of the grid depends on who launched."""

    grid: _Axes = (0, 0, 0)
    threads: _Axes = (0, 0, 0)
    lds_bytes: int = 0

    def blocks(self, launched_by: str) -> _Axes:
        """Grid in blocks: ``hipExt*`` launches count work-items."""
        if not any(self.grid):
            return (0, 0, 0)
        if launched_by.startswith("hipExt"):
            return blocks_from_work_items(self.grid, self.threads)
        return self.grid


class Place(NamedTuple):
    """Where a kernel ran."""

    device: str = ""
    stream: str = ""
    vgprs: int = 0


class Op(NamedTuple):
    """An operator on the host."""

    name: str
    thread: Thread
    start_ns: int
    end_ns: int
    external: Id
    shape: Shape


class Host(NamedTuple):
    """A call of the runtime on the host."""

    name: str
    thread: Thread
    start_ns: int
    correlation: Id
    external: Id
    kernel: str
    geometry: Geometry


class Kernel(NamedTuple):
    """A kernel on the device."""

    name: str
    start_ns: int
    end_ns: int
    correlation: Id
    external: Id
    place: Place
    geometry: Geometry


NO_SHAPE = Shape()
NO_GEOMETRY = Geometry()


class Meanings:
    """Turns JSON arguments into values; the same text is read once, within bounds."""

    def __init__(self) -> None:
        self._shapes: dict[tuple[bytes, bytes, bytes], Shape] = {}
        self._geometries: dict[tuple[bytes, bytes, bytes], Geometry] = {}
        self._places: dict[tuple[bytes, bytes, bytes], Place] = {}
        self._names: dict[str, str] = {"": ""}

    def shape(self, dims: bytes, types: bytes, strides: bytes) -> Shape:
        """Return the tensor inputs of an operator."""
        if not dims:
            return NO_SHAPE
        key = (dims, types, strides)
        found = self._shapes.get(key)
        if found is None:
            found = _shape(json_value(dims), json_value(types), json_value(strides))
            if len(dims) + len(types) + len(strides) <= _CACHED_BYTES:
                _keep(self._shapes, key, found)
        return found

    def geometry(self, grid: bytes, block: bytes, shared: bytes) -> Geometry:
        """Return the grid of a launch."""
        if not 0 < len(grid) + len(block) + len(shared) <= _CACHED_BYTES:
            return NO_GEOMETRY
        key = (grid, block, shared)
        found = self._geometries.get(key)
        if found is None:
            found = Geometry(
                _axes(json_value(grid)), _axes(json_value(block)), _count(json_value(shared))
            )
            _keep(self._geometries, key, found)
        return found

    def place(self, device: bytes, stream: bytes, registers: bytes) -> Place:
        """Return where a kernel ran."""
        if len(device) + len(stream) + len(registers) > _CACHED_BYTES:
            return Place()
        key = (device, stream, registers)
        found = self._places.get(key)
        if found is None:
            found = Place(
                text(json_value(device)), text(json_value(stream)), _count(json_value(registers))
            )
            _keep(self._places, key, found)
        return found

    def name(self, raw: str) -> str:
        """Return the normalised name."""
        found = self._names.get(raw)
        if found is None:
            found = normalise_kernel_name(raw)
            if len(raw) <= _CACHED_BYTES:
                _keep(self._names, raw, found)
        return found


def _keep(cache: dict[_Key, _Value], key: _Key, value: _Value) -> None:
    if len(cache) >= _CACHE_MAX:  # a stranger's file may never repeat itself
        cache.clear()
    cache[key] = value


def _shape(dims: object, types: object, strides: object) -> Shape:
    """Tensor inputs; lists of tensors are flattened, numbers left out."""
    if not isinstance(dims, list):
        return NO_SHAPE
    kinds = types if isinstance(types, list) and len(types) == len(dims) else [None] * len(dims)
    steps = strides if isinstance(strides, list) and len(strides) == len(dims) else []
    shapes: list[tuple[int, ...]] = []
    dtypes: list[str] = []
    packed = bool(steps)
    for index, value in enumerate(dims[:_SHAPES_MAX]):
        kind = str(kinds[index] or "")
        tensors = _tensors(value)
        if tensors is None or (kind in _NO_TENSOR and not any(tensors)):
            continue
        shapes.extend(tensors)
        dtypes.extend([normalise_kernel_name(kind)[:64]] * len(tensors))
        packed = packed and _packed(tensors, _tensors(steps[index]) if steps else None)
    layout = ("contiguous" if packed else "strided") if steps else ""
    return Shape(tuple(shapes[:_SHAPES_MAX]), tuple(dtypes[:_SHAPES_MAX]), layout)


def _tensors(value: object) -> list[tuple[int, ...]] | None:
    """One shape, or those of a list of tensors; None for anything else."""
    if not isinstance(value, list) or len(value) > _SHAPES_MAX:
        return None
    if value and all(isinstance(part, list) for part in value):
        shapes = [_lengths(part) for part in value]
        return None if None in shapes else [shape for shape in shapes if shape is not None]
    shape = _lengths(value)
    return None if shape is None else [shape]


def _lengths(value: Sequence[object]) -> tuple[int, ...] | None:
    lengths = tuple(part for part in value if isinstance(part, int) and 0 <= part < 2**48)
    return lengths if len(lengths) == len(value) <= _RANK_MAX else None


def _packed(shapes: Sequence[tuple[int, ...]], strides: list[tuple[int, ...]] | None) -> bool:
    if strides is None or len(strides) != len(shapes):
        return False
    pairs = zip(shapes, strides, strict=True)
    return all(len(a) == len(b) and is_contiguous(a, b) for a, b in pairs)


def _axes(value: object) -> _Axes:
    if not isinstance(value, list) or not all(isinstance(axis, int) for axis in value):
        return (0, 0, 0)
    return geometry(value) or (0, 0, 0)


def _count(value: object) -> int:
    return value if isinstance(value, int) and 0 <= value < 2**40 else 0


def text(value: object) -> str:
    """Return a label such as a stream number, safe to print."""
    return normalise_kernel_name(str(value))[:64] if isinstance(value, int | str) else ""

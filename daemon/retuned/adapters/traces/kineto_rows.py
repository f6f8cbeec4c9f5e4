"""Rows of a Kineto trace that matter, and what their JSON arguments mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

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
Texts = tuple[bytes, bytes, bytes]
"""Three arguments, as JSON text; empty where absent."""
_Axes = tuple[int, int, int]
_NO_TENSOR = frozenset({"", "Scalar", "ScalarList", "Device", "None"})
_SHAPES_MAX = 64
_RANK_MAX = 16
_TEXT_BYTES = 65_536
_OVERHEAD = 150


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


class DeviceStream(NamedTuple):
    """Where a kernel ran."""

    device: str = ""
    stream: str = ""
    vgprs: int = 0


class Op(msgspec.Struct, frozen=True, gc=False):
    """An operator on the host."""

    name: str
    thread: Thread
    start_us: float
    end_us: float
    external: Id
    shape: Texts | None


class Host(msgspec.Struct, frozen=True, gc=False):
    """A call of the runtime on the host."""

    name: str
    thread: Thread
    start_us: float
    correlation: Id
    external: Id
    kernel: bytes
    geometry: Texts


class Kernel(msgspec.Struct, frozen=True, gc=False):
    """A kernel on the device."""

    name: str
    start_ns: int
    end_ns: int
    correlation: Id
    external: Id
    place: Texts
    geometry: Texts


NO_SHAPE = Shape()
NO_GEOMETRY = Geometry()


class TextStore:
    """Keeps one copy of each text of a trace, and counts what they take."""

    def __init__(self) -> None:
        self.held_bytes = 0
        """Bytes of distinct texts."""
        self._raw: dict[bytes, bytes] = {b"": b""}
        self._names: dict[str | None, str] = {None: ""}
        self._shapes: dict[Texts, Texts] = {}
        self._threes: dict[Texts, Texts] = {}

    def keep(self, raw: bytes) -> bytes:
        """Return the kept copy; nothing for a text that no honest trace holds."""
        found = self._raw.get(raw)
        if found is None:
            if len(raw) > _TEXT_BYTES:
                return b""
            self.held_bytes += len(raw) + _OVERHEAD
            found = self._raw[raw] = raw
        return found

    def three(self, texts: Texts) -> Texts:
        """Return the kept copy of three texts; each is nothing where no honest trace holds it."""
        found = self._threes.get(texts)
        if found is None:
            kept = self.keep(texts[0]), self.keep(texts[1]), self.keep(texts[2])
            found = self._threes.setdefault(kept, kept)
            self.held_bytes += _OVERHEAD
        return found

    def shape(self, texts: Texts) -> Texts | None:
        """Return the kept copy of the arguments that make a shape."""
        found = self._shapes.get(texts)
        if found is None:
            size = len(texts[0]) + len(texts[1]) + len(texts[2])
            if size > _TEXT_BYTES:
                return None
            self.held_bytes += size + 3 * _OVERHEAD
            found = self._shapes[texts] = texts
        return found

    def name(self, raw: str | None) -> str:
        """Return the kept, normalised name."""
        found = self._names.get(raw)
        if found is None:
            found = normalise_kernel_name(raw or "")
            if len(raw or "") <= _TEXT_BYTES:
                self.held_bytes += 2 * len(found) + _OVERHEAD
                self._names[raw] = found
        return found


class Meanings:
    """Turns JSON arguments into values; the same text is read once."""

    def __init__(self) -> None:
        self._shapes: dict[Texts, Shape] = {}
        self._geometries: dict[Texts, Geometry] = {}
        self._places: dict[Texts, DeviceStream] = {}

    def shape(self, texts: Texts | None) -> Shape:
        """Return the tensor inputs of an operator: dims, types, strides."""
        if texts is None:
            return NO_SHAPE
        found = self._shapes.get(texts)
        if found is None:
            dims, types, strides = map(json_value, texts)
            found = self._shapes[texts] = _shape(dims, types, strides)
        return found

    def geometry(self, texts: Texts) -> Geometry:
        """Return grid, block and shared memory of a launch."""
        found = self._geometries.get(texts)
        if found is None:
            grid, block, shared = map(json_value, texts)
            found = Geometry(_axes(grid), _axes(block), _count(shared))
            self._geometries[texts] = found
        return found

    def place(self, texts: Texts) -> DeviceStream:
        """Return device, stream and registers of a kernel."""
        found = self._places.get(texts)
        if found is None:
            device, stream, registers = map(json_value, texts)
            found = DeviceStream(text(device), text(stream), _count(registers))
            self._places[texts] = found
        return found


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

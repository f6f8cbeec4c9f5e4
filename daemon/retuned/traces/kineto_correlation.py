"""Rows of a Kineto trace, the meaning of their JSON arguments, and their joins.

A kernel belongs to a host launch, the launch to an operator, and the operator has the shapes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from retuned.stages.trace import (
    CapturedLaunch,
    LaunchRecord,
    ShapeSource,
    Skip,
    blocks_from_work_items,
    disbelief,
    geometry,
    is_contiguous,
    normalise_kernel_name,
    us_to_ns,
)
from retuned.traces.events import json_value

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
        """Return the kept copy; nothing for a text that is too long."""
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


DIRECT = 0.95
"""Confidence in the dims of the very operator that launched the kernel."""
ENCLOSING = 0.6
"""Confidence in the dims of an operator around it: often another kernel's too."""
NESTED = 0.5
"""Confidence where ids fit nothing and the launch only lies within the operator's time."""
OWN = "retuned::"
"""Operators of our own slots: each is one launch, whatever it calls."""


class Links:
    """Joins the kernels, host launches and operators of one trace."""

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self.hosts: list[Host] = []
        self.kernels: list[Kernel] = []
        self.device_seen = False
        """Whether the host called a device's runtime at all."""
        self.texts = TextStore()
        self._meanings = Meanings()

    @property
    def rows(self) -> int:
        """Rows held in memory."""
        return len(self.ops) + len(self.hosts) + len(self.kernels)

    def launches(self, skipped: Counter[str]) -> Iterator[LaunchRecord]:
        """Yield what was launched: kernels, or operators where the trace knows no device."""
        if not self.kernels and not self.device_seen:
            yield from self._op_launches(skipped)
            return
        hosts: dict[Id, Host] = {host.correlation: host for host in self.hosts}
        finder = _Finder(self.ops, self._meanings)
        finder.choose((kernel.external, hosts.get(kernel.correlation)) for kernel in self.kernels)
        for kernel in self.kernels:
            reason = disbelief(kernel.start_ns, kernel.end_ns) if kernel.name else Skip.NO_NAME
            if reason is not None:
                skipped[reason] += 1
                continue
            yield self._launch(kernel, hosts.get(kernel.correlation), finder)

    def _launch(self, kernel: Kernel, host: Host | None, finder: _Finder) -> LaunchRecord:
        op, shape, confidence = finder.of(kernel.external, host)
        geometry = self._meanings.geometry(kernel.geometry)
        place = self._meanings.place(kernel.place)
        return LaunchRecord(
            # a slot's launch keeps its name whatever variant runs: a swap is not drift
            kernel=op if op.startswith(OWN) else kernel.name,
            start_ns=kernel.start_ns,
            duration_ns=kernel.end_ns - kernel.start_ns,
            blocks=geometry.blocks(host.name if host else ""),
            threads=geometry.threads,
            dims=shape.dims,
            dtypes=shape.dtypes,
            layout=shape.layout,
            shape_source=ShapeSource.OP if shape.dims else ShapeSource.NONE,
            shape_confidence=confidence,
            op=op,
            device=place.device,
            stream=place.stream,
            lds_bytes=geometry.lds_bytes,
            vgprs=place.vgprs,
        )

    def captured(self) -> tuple[CapturedLaunch, ...]:
        """Return the launches that the host recorded, in order of time."""
        finder = _Finder(self.ops, self._meanings)
        finder.choose((host.external, host) for host in self.hosts if host.kernel)
        rows = []
        for host in sorted(self.hosts, key=lambda row: row.start_us):
            name = json_value(host.kernel)
            kernel = self.texts.name(name) if isinstance(name, str) else ""
            if not kernel:
                continue
            op, shape, confidence = finder.of(host.external, host)
            geometry = self._meanings.geometry(host.geometry)
            rows.append(
                CapturedLaunch(
                    kernel=kernel,
                    blocks=geometry.blocks(host.name),
                    threads=geometry.threads,
                    dims=shape.dims,
                    dtypes=shape.dtypes,
                    layout=shape.layout,
                    op=op,
                    shape_confidence=confidence,
                    lds_bytes=geometry.lds_bytes,
                )
            )
        return tuple(rows)

    def _op_launches(self, skipped: Counter[str]) -> Iterator[LaunchRecord]:
        for op in _leaves(self.ops):
            start_ns, end_ns = us_to_ns(op.start_us), us_to_ns(op.end_us)
            reason = disbelief(start_ns, end_ns) if op.name else Skip.NO_NAME
            if reason is not None:
                skipped[reason] += 1
                continue
            shape = self._meanings.shape(op.shape)
            shape = shape if shape.known else NO_SHAPE
            yield LaunchRecord(
                kernel=op.name,
                start_ns=start_ns,
                duration_ns=end_ns - start_ns,
                dims=shape.dims,
                dtypes=shape.dtypes,
                layout=shape.layout,
                shape_source=ShapeSource.OP if shape.dims else ShapeSource.NONE,
                shape_confidence=1.0 if shape.dims else 0.0,
                op=op.name,
                device="cpu",
                stream=text(op.thread[1]),
            )


class _Finder:
    """Operator of a launch, and the operator whose shapes are used."""

    def __init__(self, ops: Sequence[Op], meanings: Meanings) -> None:
        self._ops = ops
        self._meanings = meanings
        self._by_id: dict[Id, int] = {
            op.external: index for index, op in enumerate(ops) if op.external is not None
        }
        self._parents: list[int] | None = None
        self._starts: dict[Thread, tuple[list[float], list[int]]] | None = None

    def choose(self, launches: Iterator[tuple[Id, Host | None]]) -> None:
        """Decide whether ids or only times can link these launches."""
        if self._ops and not any(self._by_ids(*launch) is not None for launch in launches):
            self._starts = _starts(self._ops)

    def of(self, external: Id, host: Host | None) -> tuple[str, Shape, float]:
        """Return the operator's name, the shapes, and how sure they are this kernel's."""
        index, confidence = self._by_ids(external, host), DIRECT
        if index is None and self._starts is not None and host is not None:
            index, confidence = self._by_time(host, self._starts), NESTED
        if index is None:
            return "", NO_SHAPE, 0.0
        name = self._ops[index].name
        while index >= 0:
            shape = self._meanings.shape(self._ops[index].shape)
            if shape.known:
                return name, shape, confidence
            index, confidence = self._around()[index], min(confidence, ENCLOSING)
        return name, NO_SHAPE, 0.0

    def _by_ids(self, external: Id, host: Host | None) -> int | None:
        index = self._by_id.get(external)
        return index if index is not None or host is None else self._by_id.get(host.external)

    def _by_time(
        self, host: Host, starts: dict[Thread, tuple[list[float], list[int]]]
    ) -> int | None:
        """Innermost operator of the thread that was running when the host launched."""
        times, order = starts.get(host.thread, ([], []))
        at = bisect_right(times, host.start_us) - 1
        index = order[at] if at >= 0 else -1
        while index >= 0 and self._ops[index].end_us < host.start_us:
            index = self._around()[index]
        return index if index >= 0 else None

    def _around(self) -> list[int]:
        if self._parents is None:
            self._parents = _parents(self._ops)
        return self._parents


def _in_order(ops: Sequence[Op]) -> Iterator[list[int]]:
    """Yield the operators of each thread, outer before inner."""
    threads: dict[Thread, list[int]] = {}
    for index, op in enumerate(ops):
        threads.setdefault(op.thread, []).append(index)
    starts, ends = [op.start_us for op in ops], [op.end_us for op in ops]
    for order in threads.values():
        # by start, and of those that start together the longest first: two stable sorts, which
        # are nearly free on files that are in order already
        order.sort(key=ends.__getitem__, reverse=True)
        order.sort(key=starts.__getitem__)
        yield order


def _starts(ops: Sequence[Op]) -> dict[Thread, tuple[list[float], list[int]]]:
    """Start times and indices of each thread's operators, rising."""
    return {
        ops[order[0]].thread: ([ops[index].start_us for index in order], order)
        for order in _in_order(ops)
    }


def _parents(ops: Sequence[Op]) -> list[int]:
    """Index of the nearest operator around each, on its thread; -1 for none."""
    parents = [-1] * len(ops)
    starts, ends = [op.start_us for op in ops], [op.end_us for op in ops]
    for order in _in_order(ops):
        stack: list[int] = []
        for index in order:
            start_us = starts[index]
            while stack and ends[stack[-1]] <= start_us:
                stack.pop()
            if stack:
                parents[index] = stack[-1]
            stack.append(index)
    return parents


def _leaves(ops: Sequence[Op]) -> Iterator[Op]:
    """Operators that call no other, in file order; an own operator counts itself instead."""
    parents = _parents(ops)
    inside = [False] * len(ops)
    calls = [False] * len(ops)
    for index in (index for order in _in_order(ops) for index in order):
        parent = parents[index]
        if parent >= 0:
            calls[parent] = True
            inside[index] = inside[parent] or ops[parent].name.startswith(OWN)
    for index, op in enumerate(ops):
        if not inside[index] and (op.name.startswith(OWN) or not calls[index]):
            yield op

"""From kernel to launch to operator to shapes.

A kernel names its launch by correlation, the launch its operator by External id (sometimes the
kernel does itself). An operator without tensor shapes borrows those of the nearest operator around
it on the same thread. Traces whose ids fit no operator at all are linked by time instead.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence

from retuned.adapters.traces.events import json_value
from retuned.adapters.traces.kineto_rows import (
    NO_SHAPE,
    Host,
    Id,
    Kernel,
    Meanings,
    Op,
    Shape,
    TextStore,
    Thread,
    text,
)
from retuned.stages.trace import (
    CapturedLaunch,
    LaunchRecord,
    ShapeSource,
    Skip,
    disbelief,
    us_to_ns,
)

DIRECT = 0.95
"""Confidence in the dims of the very operator that launched the kernel."""
ENCLOSING = 0.6
"""Confidence in the dims of an operator around it: often another kernel's too."""
NESTED = 0.5
"""Confidence where ids fit nothing and the launch only lies within the operator's time."""
OWN = "retuned::"
"""Operators of our own slots: each is one launch, whatever it calls."""


class Links:
    """What of a trace matters, and how it hangs together."""

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
            # a slot's launch keeps its name whatever variant runs: a swap is no drift
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
    """Operator of a launch, and whose shapes to believe."""

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

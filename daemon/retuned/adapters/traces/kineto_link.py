"""From kernel to launch to operator to shapes.

A kernel names its launch by correlation, the launch its operator by External id (sometimes the
kernel does itself). An operator without tensor shapes borrows those of the nearest operator around
it on the same thread. Facts and counts behind the rules: the reference on trace sources, 2.2.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from retuned.adapters.traces.kineto_rows import (
    NO_SHAPE,
    Host,
    Id,
    Kernel,
    Op,
    Shape,
    Thread,
    text,
)
from retuned.stages.trace import CapturedLaunch, LaunchRecord, ShapeSource, Skip, disbelief

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

    @property
    def rows(self) -> int:
        """Rows held in memory."""
        return len(self.ops) + len(self.hosts) + len(self.kernels)

    def launches(self, skipped: Counter[str]) -> Iterator[LaunchRecord]:
        """Yield what was launched: kernels, or operators where the trace knows no device."""
        if not self.kernels and not self.hosts:
            yield from self._op_launches(skipped)
            return
        hosts: dict[Id, Host] = {
            host.correlation: host for host in self.hosts if host.correlation is not None
        }
        finder = _Finder(self.ops)
        for kernel in self.kernels:
            name = kernel.name
            reason = disbelief(kernel.start_ns, kernel.end_ns) if name else Skip.NO_NAME
            if reason is not None:
                skipped[reason] += 1
                continue
            host = hosts.get(kernel.correlation)
            op, shape, confidence = finder.of(kernel.external, host)
            yield LaunchRecord(
                kernel=name,
                start_ns=kernel.start_ns,
                duration_ns=kernel.end_ns - kernel.start_ns,
                blocks=kernel.geometry.blocks(host.name if host else ""),
                threads=kernel.geometry.threads,
                dims=shape.dims,
                dtypes=shape.dtypes,
                layout=shape.layout,
                shape_source=ShapeSource.OP if shape.dims else ShapeSource.NONE,
                shape_confidence=confidence,
                op=op,
                device=kernel.place.device,
                stream=kernel.place.stream,
                lds_bytes=kernel.geometry.lds_bytes,
                vgprs=kernel.place.vgprs,
            )

    def captured(self) -> tuple[CapturedLaunch, ...]:
        """Return the launches that the host recorded, in order of time."""
        finder = _Finder(self.ops)
        rows = []
        for host in sorted(self.hosts, key=lambda row: row.start_ns):
            name = host.kernel
            if not name:
                continue
            op, shape, confidence = finder.of(host.external, host)
            rows.append(
                CapturedLaunch(
                    kernel=name,
                    blocks=host.geometry.blocks(host.name),
                    threads=host.geometry.threads,
                    dims=shape.dims,
                    dtypes=shape.dtypes,
                    layout=shape.layout,
                    op=op,
                    shape_confidence=confidence,
                    lds_bytes=host.geometry.lds_bytes,
                )
            )
        return tuple(rows)

    def _op_launches(self, skipped: Counter[str]) -> Iterator[LaunchRecord]:
        for op in _leaves(self.ops):
            name = op.name
            reason = disbelief(op.start_ns, op.end_ns) if name else Skip.NO_NAME
            if reason is not None:
                skipped[reason] += 1
                continue
            known = op.shape.known
            yield LaunchRecord(
                kernel=name,
                start_ns=op.start_ns,
                duration_ns=op.end_ns - op.start_ns,
                dims=op.shape.dims if known else (),
                dtypes=op.shape.dtypes if known else (),
                layout=op.shape.layout if known else "",
                shape_source=ShapeSource.OP if known else ShapeSource.NONE,
                shape_confidence=1.0 if known else 0.0,
                op=name,
                device="cpu",
                stream=text(op.thread[1]),
            )


class _Finder:
    """Operator of a launch, and whose shapes to believe."""

    def __init__(self, ops: Sequence[Op]) -> None:
        self._ops = ops
        self._by_id = {
            op.external: index for index, op in enumerate(ops) if op.external is not None
        }
        self._parents: list[int] | None = None

    def of(self, external: Id, host: Host | None) -> tuple[str, Shape, float]:
        """Return the operator's name, the shapes, and how sure they are this kernel's."""
        index = self._by_id.get(external) if external is not None else None
        if index is None and host is not None and host.external is not None:
            index = self._by_id.get(host.external)
        if index is None:
            return "", NO_SHAPE, 0.0
        name = self._ops[index].name
        confidence = DIRECT
        while index >= 0:
            if self._ops[index].shape.known:
                return name, self._ops[index].shape, confidence
            if self._parents is None:
                self._parents = _parents(self._ops)
            index, confidence = self._parents[index], ENCLOSING
        return name, NO_SHAPE, 0.0


def _in_order(ops: Sequence[Op]) -> list[int]:
    """Order of operators: by thread, then outer before inner."""
    threads: dict[Thread, int] = {}
    for op in ops:
        threads.setdefault(op.thread, len(threads))
    return sorted(
        range(len(ops)),
        key=lambda n: (threads[ops[n].thread], ops[n].start_ns, -ops[n].end_ns, n),
    )


def _parents(ops: Sequence[Op]) -> list[int]:
    """Index of the nearest operator around each, on its thread; -1 for none."""
    parents = [-1] * len(ops)
    stack: list[int] = []
    for index in _in_order(ops):
        op = ops[index]
        while stack and (
            ops[stack[-1]].thread != op.thread or ops[stack[-1]].end_ns <= op.start_ns
        ):
            stack.pop()
        parents[index] = stack[-1] if stack else -1
        stack.append(index)
    return parents


def _leaves(ops: Sequence[Op]) -> Iterator[Op]:
    """Operators that call no other, in file order; an own operator counts itself instead."""
    parents = _parents(ops)
    inside = [False] * len(ops)
    calls = [False] * len(ops)
    for index in _in_order(ops):
        parent = parents[index]
        if parent >= 0:
            calls[parent] = True
            inside[index] = inside[parent] or ops[parent].name.startswith(OWN)
    for index, op in enumerate(ops):
        if not inside[index] and (op.name.startswith(OWN) or not calls[index]):
            yield op

"""PyTorch profiler (Kineto) traces: NVIDIA, ROCm and CPU only.

Events are decoded chunk by chunk and only kernels, launches and operators are kept; most of a file
is Python frames. The link from kernel to operator to shapes is in ``kineto_link``.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

import msgspec

from retuned.adapters.traces.blocks import LaunchBlock, blocks_of
from retuned.adapters.traces.events import EventStream, json_value
from retuned.adapters.traces.kineto_link import Links
from retuned.adapters.traces.kineto_rows import Host, Id, Kernel, Meanings, Op
from retuned.adapters.traces.limits import ReadLimits
from retuned.adapters.traces.source import ByteSource
from retuned.stages.trace import CapturedLaunch, Skip, us_to_ns

_HOST = frozenset({"cuda_runtime", "cuda_driver"})
_COPIES = frozenset({"gpu_memcpy", "gpu_memset"})


class _Args(msgspec.Struct, gc=False):
    external_id: Id = msgspec.field(default=None, name="External id")
    external_id_old: Id = msgspec.field(default=None, name="external id")
    correlation: Id = None
    dims: msgspec.Raw = msgspec.field(default=msgspec.Raw(), name="Input Dims")
    types: msgspec.Raw = msgspec.field(default=msgspec.Raw(), name="Input type")
    strides: msgspec.Raw = msgspec.field(default=msgspec.Raw(), name="Input Strides")
    kernel: msgspec.Raw = msgspec.Raw()
    grid: msgspec.Raw = msgspec.Raw()
    block: msgspec.Raw = msgspec.Raw()
    device: msgspec.Raw = msgspec.Raw()
    stream: msgspec.Raw = msgspec.Raw()
    shared: msgspec.Raw = msgspec.field(default=msgspec.Raw(), name="shared memory")
    registers: msgspec.Raw = msgspec.field(default=msgspec.Raw(), name="registers per thread")


class _Event(msgspec.Struct, gc=False):
    cat: str | None = None
    ph: str | None = None
    name: str | None = None
    pid: Id = None
    tid: Id = None
    ts: float | str | None = None
    dur: float | str | None = None
    args: _Args | None = None


def read(
    source: ByteSource, head: bytes, *, limits: ReadLimits, skipped: Counter[str]
) -> Iterator[LaunchBlock]:
    """Yield the launches of a trace, each with the shapes of its operator.

    Without any kernel or launch in the trace (CPU only) the operators themselves are the launches.

    Raises
    ------
    UnreadableInput
        What the event stream and the source say; ``too-large`` for too many rows to link.
    """
    links = _collect(source, head, limits=limits, skipped=skipped)
    yield from blocks_of(links.launches(skipped), rows=limits.block_rows)


def read_capture(
    source: ByteSource, head: bytes, *, limits: ReadLimits
) -> tuple[CapturedLaunch, ...]:
    """Return the launches that a graph capture recorded on the host, in order.

    Raises
    ------
    UnreadableInput
        ``no-launch-rows`` if the trace names no kernels on the host (CUDA's does not), and what
        `read` raises.
    """
    links = _collect(source, head, limits=limits, skipped=Counter())
    rows = links.captured()
    if not rows:
        raise source.refuse(
            "no-launch-rows",
            "no launch on the host names its kernel; give a ROCm trace of the graph's capture "
            "with record_shapes on",
        )
    return rows


def _collect(
    source: ByteSource, head: bytes, *, limits: ReadLimits, skipped: Counter[str]
) -> Links:
    links, meanings = Links(), Meanings()
    for events in EventStream(source, head, event=_Event, limits=limits):
        for event in events:
            cat = event.cat
            if cat is None or event.ph != "X":
                continue
            if cat == "cpu_op":
                _add_op(links, meanings, event, skipped)
            elif cat == "kernel":
                _add_kernel(links, meanings, event, skipped)
            elif cat in _HOST:
                _add_host(links, meanings, event)
            elif cat in _COPIES:
                skipped[Skip.NOT_A_KERNEL] += 1
        if links.rows > limits.rows:
            raise source.refuse(
                "too-large",
                f"more than {limits.rows} operators and kernels to link in the memory of this "
                "machine; record fewer steps",
            )
    return links


def _times(event: _Event) -> tuple[int, int] | None:
    """Start and end, ns; None where a number is missing or absurd."""
    ts, dur = event.ts, event.dur
    if not isinstance(ts, float) or not isinstance(dur, float):
        return None
    if not (math.isfinite(ts) and math.isfinite(dur)) or abs(ts) > 2**62 or abs(dur) > 2**62:
        return None
    start_ns = us_to_ns(ts)
    return start_ns, start_ns + us_to_ns(dur)


def _external(args: _Args) -> Id:
    return args.external_id if args.external_id is not None else args.external_id_old


def _add_op(links: Links, meanings: Meanings, event: _Event, skipped: Counter[str]) -> None:
    args, times = event.args or _Args(), _times(event)
    if times is None:
        skipped[Skip.BAD_TIMESTAMP] += 1
        return
    shape = meanings.shape(bytes(args.dims), bytes(args.types), bytes(args.strides))
    links.ops.append(
        Op(
            meanings.name(event.name or ""),
            (event.pid, event.tid),
            times[0],
            times[1],
            _external(args),
            shape,
        )
    )


def _add_kernel(links: Links, meanings: Meanings, event: _Event, skipped: Counter[str]) -> None:
    args, times = event.args or _Args(), _times(event)
    if times is None:
        skipped[Skip.BAD_TIMESTAMP] += 1
        return
    links.kernels.append(
        Kernel(
            meanings.name(event.name or ""),
            times[0],
            times[1],
            args.correlation,
            _external(args),
            meanings.place(bytes(args.device), bytes(args.stream), bytes(args.registers)),
            meanings.geometry(bytes(args.grid), bytes(args.block), bytes(args.shared)),
        )
    )


def _add_host(links: Links, meanings: Meanings, event: _Event) -> None:
    args, times = event.args, _times(event)
    if args is None or times is None:
        return
    kernel = json_value(bytes(args.kernel))
    links.hosts.append(
        Host(
            event.name or "",
            (event.pid, event.tid),
            times[0],
            args.correlation,
            _external(args),
            meanings.name(kernel) if isinstance(kernel, str) else "",
            meanings.geometry(bytes(args.grid), bytes(args.block), bytes(args.shared)),
        )
    )

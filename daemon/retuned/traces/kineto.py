"""PyTorch profiler (Kineto) traces: NVIDIA, ROCm and CPU only.

Events are decoded chunk by chunk and only kernels, launches and operators are kept; most of a file
is Python frames. The link from kernel to operator to shapes is in ``kineto_link``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import msgspec

from retuned.stages.trace import CapturedLaunch, Skip, us_to_ns
from retuned.traces.blocks import LaunchBlock, blocks_of
from retuned.traces.events import EventStream
from retuned.traces.kineto_correlation import Host, Id, Kernel, Links, Op
from retuned.traces.source import ByteSource, ReadLimits

_HOST = frozenset({"cuda_runtime", "cuda_driver"})
_COPIES = frozenset({"gpu_memcpy", "gpu_memset"})
_WANTED = frozenset({"cpu_op", "kernel", *_HOST, *_COPIES})


# Fields in the order in which Kineto writes them: the decoder looks for the next one first.
class _Args(msgspec.Struct, gc=False):
    external_id: Id = msgspec.field(default=None, name="External id")
    types: msgspec.Raw = msgspec.field(default=msgspec.Raw(), name="Input type")
    strides: msgspec.Raw = msgspec.field(default=msgspec.Raw(), name="Input Strides")
    dims: msgspec.Raw = msgspec.field(default=msgspec.Raw(), name="Input Dims")
    device: msgspec.Raw = msgspec.Raw()
    stream: msgspec.Raw = msgspec.Raw()
    kernel: msgspec.Raw = msgspec.Raw()
    correlation: Id = None
    registers: msgspec.Raw = msgspec.field(default=msgspec.Raw(), name="registers per thread")
    shared: msgspec.Raw = msgspec.field(default=msgspec.Raw(), name="shared memory")
    grid: msgspec.Raw = msgspec.Raw()
    block: msgspec.Raw = msgspec.Raw()
    external_id_old: Id = msgspec.field(default=None, name="external id")


class _Event(msgspec.Struct, gc=False):
    ph: str | None = None
    cat: str | None = None
    name: str | None = None
    pid: Id = None
    tid: Id = None
    ts: float | str | None = None
    dur: float | str | None = None
    args: _Args | None = None


_NO_ARGS = _Args()


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
    links = Links()
    for events in EventStream(source, head, event=_Event, limits=limits):
        wanted = [event for event in events if event.cat in _WANTED and event.ph == "X"]
        for event in wanted:
            cat = event.cat
            if cat == "cpu_op":
                _add_op(links, event, skipped)
            elif cat == "kernel":
                _add_kernel(links, event, skipped)
            elif cat in _HOST:
                _add_host(links, event)
            else:
                skipped[Skip.NOT_A_KERNEL] += 1
        if links.rows > limits.rows or links.texts.held_bytes > limits.document_bytes:
            raise source.refuse(
                "too-large",
                f"more operators and kernels to link ({links.rows}) than the memory of this "
                "machine allows; record fewer steps",
            )
    return links


def _add_op(links: Links, event: _Event, skipped: Counter[str]) -> None:
    ts, dur, args = event.ts, event.dur, event.args or _NO_ARGS
    if ts.__class__ is not float or dur.__class__ is not float:
        skipped[Skip.BAD_TIMESTAMP] += 1
        return
    texts = links.texts
    shape = None
    if args.dims:
        shape = texts.shape((bytes(args.dims), bytes(args.types), bytes(args.strides)))
    external = args.external_id if args.external_id is not None else args.external_id_old
    links.ops.append(
        Op(texts.name(event.name), (event.pid, event.tid), ts, ts + dur, external, shape)
    )


def _add_kernel(links: Links, event: _Event, skipped: Counter[str]) -> None:
    ts, dur, args = event.ts, event.dur, event.args or _NO_ARGS
    if not isinstance(ts, float) or not isinstance(dur, float):
        skipped[Skip.BAD_TIMESTAMP] += 1
        return
    texts, start_ns = links.texts, us_to_ns(ts)
    links.kernels.append(
        Kernel(
            texts.name(event.name),
            start_ns,
            start_ns + us_to_ns(dur),
            args.correlation,
            args.external_id if args.external_id is not None else args.external_id_old,
            texts.three((bytes(args.device), bytes(args.stream), bytes(args.registers))),
            texts.three((bytes(args.grid), bytes(args.block), bytes(args.shared))),
        )
    )


def _add_host(links: Links, event: _Event) -> None:
    ts, args = event.ts, event.args
    links.device_seen = True
    if args is None or not isinstance(ts, float) or args.correlation is None:
        return
    external = args.external_id if args.external_id is not None else args.external_id_old
    if external is None and not args.grid:  # no launch: most of the calls
        return
    texts = links.texts
    links.hosts.append(
        Host(
            texts.name(event.name),
            (event.pid, event.tid),
            ts,
            args.correlation,
            external,
            texts.keep(bytes(args.kernel)),
            texts.three((bytes(args.grid), bytes(args.block), bytes(args.shared))),
        )
    )

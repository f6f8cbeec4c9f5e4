"""Chrome traces of rocprof v1 (``results.json``) and of rpd's converter."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

import msgspec

from retuned.stages.trace import (
    LaunchRecord,
    Skip,
    disbelief,
    normalise_kernel_name,
    parse_ns,
    us_to_ns,
)
from retuned.traces.blocks import LaunchBlock, blocks_of, timed
from retuned.traces.events import EventStream
from retuned.traces.rocprof_columns import kind_of
from retuned.traces.source import ByteSource, ReadLimits


class _Args(msgspec.Struct, gc=False):
    name: str = msgspec.field(default="", name="KernelName")
    device: str | int = msgspec.field(default="", name="gpu-id")
    queue: str | int = msgspec.field(default="", name="queue-id")
    grid: str | int = msgspec.field(default="", name="grd")
    group: str | int = msgspec.field(default="", name="wgr")
    lds: str | int = ""
    scratch: str | int = msgspec.field(default="", name="scr")
    vgprs: str | int = msgspec.field(default="", name="arch_vgpr")
    vgprs_old: str | int = msgspec.field(default="", name="vgpr")
    begin: str | int | None = msgspec.field(default=None, name="BeginNs")
    end: str | int | None = msgspec.field(default=None, name="EndNs")
    desc: str | None = None


class _Event(msgspec.Struct, gc=False):
    ph: str | None = None
    name: str | None = None
    pid: str | int | None = None
    tid: str | int | None = None
    ts: str | float | None = None
    dur: str | float | None = None
    args: _Args | None = None


def read(
    source: ByteSource, head: bytes, *, limits: ReadLimits, skipped: Counter[str]
) -> Iterator[LaunchBlock]:
    """Yield the launches of a trace.

    Raises
    ------
    UnreadableInput
        What the event stream and the source say.
    """
    yield from blocks_of(_launches(source, head, limits, skipped), rows=limits.block_rows)


def _launches(
    source: ByteSource, head: bytes, limits: ReadLimits, skipped: Counter[str]
) -> Iterator[LaunchRecord]:
    for events in EventStream(source, head, event=_Event, limits=limits):
        for event in events:
            if event.ph != "X" or event.args is None:
                continue
            launch = (
                _with_ns(event.args)
                if event.args.begin is not None
                else _with_us(event, event.args)
            )
            if isinstance(launch, Skip):
                skipped[launch] += 1
            elif launch is not None:
                yield launch


def _with_ns(args: _Args) -> LaunchRecord | Skip:
    """Return the launch that rocprof v1 wrote, with its own ns beside the coarse ts and dur."""
    start_ns, end_ns = parse_ns(str(args.begin)), parse_ns(str(args.end))
    if start_ns is None or end_ns is None:
        return Skip.BAD_TIMESTAMP
    reason = disbelief(start_ns, end_ns)
    if reason is not None:
        return reason
    row = (args.name, args.device, args.queue, "", args.grid, "", "", args.group, "", "")
    sizes = (args.lds, args.scratch, args.vgprs or args.vgprs_old)
    kind = kind_of(tuple(str(cell) for cell in row + sizes))
    return kind if isinstance(kind, Skip) else timed(kind, start_ns, end_ns - start_ns)


def _with_us(event: _Event, args: _Args) -> LaunchRecord | Skip | None:
    """Return the launch that rpd's converter wrote, in whole µs; None for host calls."""
    if args.desc is None or args.desc.startswith("Copy") or args.desc == "FillBuffer":
        return None if args.desc is None else Skip.NOT_A_KERNEL
    if args.desc != "KernelExecution":
        return None
    ts, dur = _microseconds(event.ts), _microseconds(event.dur)
    if ts is None or dur is None:
        return Skip.BAD_TIMESTAMP
    start_ns = us_to_ns(ts)
    end_ns = start_ns + us_to_ns(dur)
    kernel = normalise_kernel_name(event.name or "")
    reason = disbelief(start_ns, end_ns) if kernel else Skip.NO_NAME
    if reason is not None:
        return reason
    return LaunchRecord(
        kernel=kernel,
        start_ns=start_ns,
        duration_ns=end_ns - start_ns,
        device=normalise_kernel_name(str(event.pid))[:64],
        stream=normalise_kernel_name(str(event.tid))[:64],
    )


def _microseconds(value: str | float | None) -> float | None:
    try:
        number = float(value) if value is not None else math.nan
    except ValueError:
        return None
    return number if 0 <= number < 2**53 else None

"""rocprofv3's JSON: one entry per process, dispatches beside the symbols they name by id."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import msgspec
import numpy as np

from retuned.stages.trace import (
    LaunchRecord,
    Skip,
    blocks_from_work_items,
    geometry,
    normalise_kernel_name,
)
from retuned.traces.blocks import BlockMaker, LaunchBlock
from retuned.traces.events import decode_document
from retuned.traces.source import ByteSource, ReadLimits


class _Handle(msgspec.Struct, frozen=True, gc=False):
    handle: int = 0


class _Axes(msgspec.Struct, frozen=True, gc=False):
    x: int = 0
    y: int = 1
    z: int = 1


class _Info(msgspec.Struct, frozen=True, gc=False):
    agent_id: _Handle = _Handle()
    queue_id: _Handle = _Handle()
    kernel_id: int = -1
    private_segment_size: int = 0
    group_segment_size: int = 0
    workgroup_size: _Axes = _Axes()
    grid_size: _Axes = _Axes()


class _Dispatch(msgspec.Struct, gc=False):
    start_timestamp: msgspec.Raw = msgspec.Raw()
    end_timestamp: msgspec.Raw = msgspec.Raw()
    dispatch_info: _Info = _Info()
    stream_id: _Handle = _Handle()


class _Symbol(msgspec.Struct, gc=False):
    kernel_id: int = -1
    kernel_name: str = ""
    formatted_kernel_name: str = ""
    arch_vgpr_count: int = 0


class _Agent(msgspec.Struct, gc=False):
    id: _Handle = _Handle()
    node_id: int = -1


class _Records(msgspec.Struct, gc=False):
    kernel_dispatch: list[_Dispatch] = []


class _Process(msgspec.Struct, gc=False):
    agents: list[_Agent] = []
    kernel_symbols: list[_Symbol] = []
    buffer_records: _Records = msgspec.field(default_factory=_Records)


class _Document(msgspec.Struct, gc=False):
    processes: list[_Process] = msgspec.field(name="rocprofiler-sdk-tool")


_Key = tuple[_Info, int]


def read(
    source: ByteSource, head: bytes, *, limits: ReadLimits, skipped: Counter[str]
) -> Iterator[LaunchBlock]:
    """Yield the launches of each process. The document is held whole, since symbols may come last.

    Raises
    ------
    UnreadableInput
        ``too-large``, ``truncated-json``, ``damaged-json``, or what the source says.
    """
    parts, size, step = [], 0, head
    while step:
        parts.append(step)
        size += len(step)
        if size > limits.document_bytes:
            raise source.refuse(
                "too-large",
                f"more than {limits.document_bytes} bytes of JSON, which must be held whole; "
                "record with -f csv or rocpd, which are read piece by piece",
            )
        step = source.read(limits.chunk_bytes)
    document = decode_document(
        b"".join(parts).removeprefix(b"\xef\xbb\xbf"), _Document, source=source
    )
    del parts
    for process in document.processes:
        yield from _launches(process, limits, skipped)


def _launches(
    process: _Process, limits: ReadLimits, skipped: Counter[str]
) -> Iterator[LaunchBlock]:
    symbols = {symbol.kernel_id: symbol for symbol in process.kernel_symbols}
    agents = {agent.id.handle: agent.node_id for agent in process.agents}

    def kind_of(key: _Key) -> LaunchRecord | Skip:
        info, stream = key
        return _kind(info, stream, symbols.get(info.kernel_id), agents)

    maker = BlockMaker(kind_of, skipped=skipped)
    dispatches = process.buffer_records.kernel_dispatch
    for first in range(0, len(dispatches), limits.block_rows):
        rows = dispatches[first : first + limits.block_rows]
        yield maker.block(
            [(row.dispatch_info, row.stream_id.handle) for row in rows],
            np.array([_ns(row.start_timestamp) for row in rows], dtype=np.int64),
            np.array([_ns(row.end_timestamp) for row in rows], dtype=np.int64),
        )


def _kind(
    info: _Info, stream: int, symbol: _Symbol | None, agents: dict[int, int]
) -> LaunchRecord | Skip:
    if symbol is None:
        return Skip.NO_NAME
    kernel = normalise_kernel_name(symbol.formatted_kernel_name or symbol.kernel_name)
    if not kernel:
        return Skip.NO_NAME
    items = geometry((info.grid_size.x, info.grid_size.y, info.grid_size.z))
    group = info.workgroup_size
    threads = geometry((group.x, group.y, group.z))
    if items is None or threads is None:
        return Skip.BAD_GEOMETRY
    node = agents.get(info.agent_id.handle, -1)
    return LaunchRecord(
        kernel=kernel,
        start_ns=0,
        duration_ns=1,
        blocks=blocks_from_work_items(items, threads),
        threads=threads,
        device=f"Agent {node}" if node >= 0 else str(info.agent_id.handle),
        stream=str(stream or info.queue_id.handle),
        lds_bytes=max(0, info.group_segment_size),
        scratch_bytes=max(0, info.private_segment_size),
        vgprs=max(0, symbol.arch_vgpr_count),
    )


def _ns(raw: msgspec.Raw) -> int:
    text = bytes(raw)
    return int(text) if text.isdigit() and len(text) < 19 else -1

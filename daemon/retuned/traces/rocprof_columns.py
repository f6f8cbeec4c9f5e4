"""What the columns of rocprof's tables mean, whichever generation wrote them."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass

from retuned.stages.trace import (
    LaunchRecord,
    Skip,
    blocks_from_work_items,
    geometry,
    normalise_kernel_name,
)

ALIASES: dict[str, tuple[str, ...]] = {
    "name": ("kernel_name", "kernelname"),
    "start": ("start_timestamp", "beginns", "start"),
    "end": ("end_timestamp", "endns", "end"),
    "device": ("agent_id", "gpu-id", "gpu_id"),
    "queue": ("queue_id", "queue-id"),
    "stream": ("stream_id",),
    "grid_x": ("grid_size_x", "grid_size", "grd"),
    "grid_y": ("grid_size_y",),
    "grid_z": ("grid_size_z",),
    "group_x": ("workgroup_size_x", "workgroup_size", "wgr"),
    "group_y": ("workgroup_size_y",),
    "group_z": ("workgroup_size_z",),
    "lds": ("lds_block_size", "group_segment_size", "lds_per_workgroup", "lds"),
    "scratch": ("scratch_size", "private_segment_size", "scratch_per_workitem", "scr"),
    "vgprs": ("vgpr_count", "arch_vgpr", "vgpr"),
}
"""Meaning of a column to its names in lower case: rocprofv3 6.2 to 7.x, rocprofv2, rocprof v1."""
KIND_FIELDS = tuple(field for field in ALIASES if field not in ("start", "end"))
"""What a kind of launch is made of, in the order of `Row`."""


@dataclass(frozen=True, slots=True)
class Columns:
    """Where a header puts each field."""

    width: int
    """Cells of a row."""
    at: dict[str, int]
    """Field to cell."""


def columns_of(header: Sequence[str]) -> Columns:
    """Find each field in a header."""
    cells = {name.strip().lower(): index for index, name in reversed(list(enumerate(header)))}
    at = {}
    for field, names in ALIASES.items():
        found = next((cells[name] for name in names if name in cells), None)
        if found is not None:
            at[field] = found
    return Columns(len(header), at)


def has_dispatches(columns: Set[str]) -> bool:
    """Whether these lower-case column names can be a list of dispatches with times."""
    return all(
        any(name in columns for name in ALIASES[field])
        for field in ("name", "start", "end", "grid_x", "group_x")
    )


Row = tuple[str, ...]
"""One cell per `KIND_FIELDS`; empty where the table lacks the column."""


def kind_of(row: Row) -> LaunchRecord | Skip:
    """Return what a row's cells say was launched; grids are in work-items in every generation."""
    name, device, queue, stream = row[:4]
    kernel = normalise_kernel_name(name)
    if not kernel:
        return Skip.NO_NAME
    numbers = [_number(cell) for cell in row[4:]]
    if None in numbers:
        return Skip.MALFORMED_ROW
    gx, gy, gz, wx, wy, wz, lds, scratch, vgprs = (number or 0 for number in numbers)
    threads = geometry((wx, wy or 1, wz or 1))
    items = geometry((gx, gy or 1, gz or 1))
    if threads is None or items is None:
        return Skip.BAD_GEOMETRY
    known = wx > 0 and gx > 0
    return LaunchRecord(
        kernel=kernel,
        start_ns=0,
        duration_ns=1,
        blocks=blocks_from_work_items(items, threads) if known else (0, 0, 0),
        threads=threads if known else (0, 0, 0),
        device=_label(device),
        stream=_label(stream or queue),
        lds_bytes=lds,
        scratch_bytes=scratch,
        vgprs=vgprs,
    )


def _number(cell: str) -> int | None:
    if not cell:
        return 0
    return int(cell) if len(cell) < 20 and cell.isascii() and cell.isdigit() else None


def _label(cell: str) -> str:
    return normalise_kernel_name(cell)[:64]

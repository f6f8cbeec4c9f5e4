"""Which format a file has, by its content; its name is never asked."""

from __future__ import annotations

import csv
from enum import StrEnum

from retuned.adapters.traces.rocprof_columns import has_dispatches
from retuned.adapters.traces.source import ByteSource

SNIFF_BYTES = 2**18
"""How much of a file is looked at."""


class Format(StrEnum):
    """What a reader can read."""

    ROCPROFV3_CSV = "rocprofv3-csv"
    ROCPROFV2_CSV = "rocprofv2-csv"
    ROCPROF_V1_CSV = "rocprof-v1-csv"
    ROCPROFV3_JSON = "rocprofv3-json"
    KINETO_JSON = "kineto-json"
    ROCPROF_V1_JSON = "rocprof-v1-json"
    RPD_JSON = "rpd-json"
    SQLITE = "sqlite"
    """A database; its tables say which: ``rocpd``, ``rpd`` or ``rocprof-v1-db``."""


_OTHER_TABLES: tuple[tuple[frozenset[str], str, str], ...] = (
    (
        frozenset({"counter_name", "counter_value"}),
        "counter-collection",
        "this is a counter collection, which runs kernels one by one and so has no honest times; "
        "give the *_kernel_trace.csv of an ordinary run",
    ),
    (
        frozenset({"calls", "totaldurationns"}),
        "summary-not-trace",
        "this is a summary per kernel or call, without single launches; "
        "give the *_kernel_trace.csv or results.csv of the same run",
    ),
    (
        frozenset({"function", "domain"}),
        "not-a-kernel-trace",
        "this lists host calls or markers, not kernels; give the *_kernel_trace.csv beside it",
    ),
    (
        frozenset({"direction", "correlation_id"}),
        "not-a-kernel-trace",
        "this lists memory copies, not kernels; give the *_kernel_trace.csv beside it",
    ),
    (
        frozenset({"kind", "operation"}),
        "not-a-kernel-trace",
        "this lists memory operations, not kernels; give the *_kernel_trace.csv beside it",
    ),
    (
        frozenset({"sample_timestamp"}),
        "not-a-kernel-trace",
        "this lists program-counter samples, not launches; run the profiler with --kernel-trace",
    ),
    (
        frozenset({"agent_type", "node_id"}),
        "not-a-kernel-trace",
        "this lists the machine's agents; give the *_kernel_trace.csv beside it",
    ),
    (
        frozenset({"dispatch_id", "kernel_name", "gpu_id"}),
        "no-timestamps",
        "this lists dispatches without times; give the timestamps.csv beside it",
    ),
)


def sniff(source: ByteSource, head: bytes) -> Format:
    """Name the format of a file that starts with `head`.

    Raises
    ------
    UnreadableInput
        ``compressed-database``, ``wrong-encoding``, ``binary``, ``not-a-trace``,
        ``unknown-format``, or why a table of a profiler is not a kernel trace.
    """
    if head.startswith(b"SQLite format 3\0"):
        if source.compressed:
            raise source.refuse(
                "compressed-database", "a database cannot be read compressed; gunzip it first"
            )
        return Format.SQLITE
    _check_text(source, head)
    start = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if not start:
        raise source.refuse("empty-file", "nothing but white space; was the profiler killed?")
    return _sniff_json(source, start) if start[:1] in b"[{" else _sniff_table(source, start)


def header_fields(line: bytes) -> list[str]:
    """Return the cells of a CSV header; empty where it is none."""
    try:
        return next(csv.reader([line.decode("utf-8", "replace").strip()]), [])
    except csv.Error:
        return []


def _check_text(source: ByteSource, head: bytes) -> None:
    if head[:2] in (b"\xff\xfe", b"\xfe\xff") or head[:4:2] == b"\0\0" or head[1:4:2] == b"\0\0":
        raise source.refuse("wrong-encoding", "the text is UTF-16 or UTF-32; save it as UTF-8")
    if b"\0" in head[:4096]:
        raise source.refuse(
            "unknown-format",
            "binary data of no known kind; export pftrace, nsys or otf2 files as CSV, JSON or "
            "SQLite first",
        )


def _sniff_json(source: ByteSource, start: bytes) -> Format:
    if b'"rocprofiler-sdk-tool"' in start:
        return Format.ROCPROFV3_JSON
    listed = start[:1] == b"["
    if listed and b'"KernelExecution"' in start:
        return Format.RPD_JSON
    if b'"BeginNs"' in start:
        return Format.ROCPROF_V1_JSON
    if b'"traceEvents"' in start or (listed and b'"ph"' in start):
        return (
            Format.RPD_JSON
            if b'"desc"' in start and b'"cat"' not in start
            else (Format.KINETO_JSON)
        )
    if any(key in start for key in (b'"schemaVersion"', b'"deviceProperties"')):
        return Format.KINETO_JSON
    raise source.refuse(
        "not-a-trace",
        "JSON, but neither a PyTorch profiler trace nor rocprofv3's; it has no traceEvents",
    )


def _sniff_table(source: ByteSource, start: bytes) -> Format:
    fields = header_fields(start.split(b"\n", 1)[0])
    columns = {field.strip().lower() for field in fields}
    for known, code, message in _OTHER_TABLES[:1]:
        if known <= columns:
            raise source.refuse(code, message)
    if has_dispatches(columns):
        return _table_format(columns)
    for known, code, message in _OTHER_TABLES[1:]:
        if known <= columns:
            raise source.refuse(code, message)
    if len(fields) > 1:
        shown = ", ".join(repr(field[:40]) for field in fields[:6])
        raise source.refuse(
            "unknown-table",
            f"a CSV of another tool (columns {shown}); expected kernel names with start and end",
        )
    raise source.refuse(
        "unknown-format",
        f"neither CSV, JSON nor SQLite of a profiler; known are {', '.join(Format)}",
    )


def _table_format(columns: set[str]) -> Format:
    if "grid_size_x" in columns:
        return Format.ROCPROFV3_CSV
    return Format.ROCPROF_V1_CSV if "kernelname" in columns else Format.ROCPROFV2_CSV

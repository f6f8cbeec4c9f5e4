"""Bytes of a file in order, decompressed, with bounds and the place where it broke.

Which format a file has, by its content; its name is never asked.

How much a reader may take, so that no file can take the machine.
"""

from __future__ import annotations

import csv
import hashlib
import os
import resource
import zlib
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import BinaryIO

from retuned.errors import UnreadableInput
from retuned.files import NotPlain, open_plain
from retuned.traces.rocprof_columns import has_dispatches

_MIB = 2**20
_CGROUP = Path("/sys/fs/cgroup")


def available_bytes() -> int:
    """Return what this process may still take: of the machine, its control group, its limits."""
    return max(0, min(_machine_bytes(), _address_space_bytes()))


def _address_space_bytes() -> int:
    """Return the rest below ``ulimit -v``; without a limit, more than any machine has."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return 2**62
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return limit // 2
    return limit - pages * os.sysconf("SC_PAGE_SIZE")


def _machine_bytes() -> int:
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                free = int(line.split()[1]) * 1024
        limit = (_CGROUP / "memory.max").read_text().strip()
        used = int((_CGROUP / "memory.current").read_text())
    except (OSError, ValueError, IndexError):
        return free
    return free if limit == "max" else max(0, min(free, int(limit) - used))


def _document_bytes() -> int:
    return max(8 * _MIB, min(2**30, available_bytes() // 8))


def _rows() -> int:
    return max(50_000, min(20_000_000, available_bytes() // 2_000))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadLimits:
    """Bounds of one read. A file beyond one is refused, and the message names the bound."""

    input_bytes: int = 64 * 2**30
    """Most bytes after decompression."""
    document_bytes: int = field(default_factory=_document_bytes)
    """Most bytes of a JSON document held whole (rocprofv3 JSON; it takes three times its size)."""
    element_bytes: int = 16 * _MIB
    """Longest single row or event."""
    gzip_ratio: int = 400
    """Most bytes out per byte in; real traces stay below 40."""
    gzip_free_bytes: int = 64 * _MIB
    """Output below which the ratio is not asked."""
    rows: int = field(default_factory=_rows)
    """Most operators and kernels of a Kineto trace, which must be linked in memory (2 kB each)."""
    chunk_bytes: int = 2**18
    """Step in which text is read and decoded; small ones fit the cache and are twice as fast."""
    block_rows: int = 131_072
    """Most launches handed on at once."""


_GZIP = b"\x1f\x8b"
_STEP = 2**18


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading.

    Raises
    ------
    UnreadableInput
        ``not-found``, ``not-a-file`` (folder, pipe, device), ``not-readable`` or ``empty-file``.
    """
    where = str(path)
    try:
        file = open_plain(path)
        if os.fstat(file.fileno()).st_size == 0:
            file.close()
            raise UnreadableInput(
                "empty-file", where=where, message="the file is empty; was the profiler killed?"
            )
        return file
    except NotPlain as error:
        what = f"the traces in it, such as {path}/*.json.gz" if path.is_dir() else "a trace file"
        raise UnreadableInput(
            "not-a-file", where=where, message=f"{error.strerror}; name {what}"
        ) from None
    except FileNotFoundError:
        raise UnreadableInput(
            "not-found", where=where, message="no such file; check the path"
        ) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UnreadableInput(
            "not-readable", where=where, message=f"cannot be opened: {reason}"
        ) from None


def content_digest(path: Path) -> str:
    """Return the digest of a file's content, compressed or not as it lies there."""
    digest = hashlib.sha256()
    with open_regular(path) as file:
        while step := file.read(_STEP):
            digest.update(step)
    return "sha256:" + digest.hexdigest()


def check_size(path: Path, *, limits: ReadLimits) -> None:
    """Refuse what is too large before a byte of it is read; what expands is watched as it does.

    Raises
    ------
    UnreadableInput
        ``too-large``, or as `open_regular`.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
    if size > limits.input_bytes:
        raise UnreadableInput(
            "too-large",
            where=str(path),
            message=f"{size} bytes, more than {limits.input_bytes}; record a shorter window",
        )


class ByteSource:
    """Sequential reader of a plain or gzip file.

    Parameters
    ----------
    path
        The file.
    limits
        Bounds on what comes out.
    """

    def __init__(self, path: Path, *, limits: ReadLimits) -> None:
        self.where = str(path)
        self.read_bytes = 0
        """Decompressed bytes handed out so far."""
        self._limits = limits
        self._file = open_regular(path)
        head = self._file.peek(2)[:2] if hasattr(self._file, "peek") else b""
        self.compressed = head == _GZIP
        self._inflate = zlib.decompressobj(wbits=31) if self.compressed else None
        self._raw_bytes = 0
        self._pending = b""

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def read(self, count: int) -> bytes:
        """Return up to `count` bytes; empty only at the end.

        Raises
        ------
        UnreadableInput
            ``truncated-gzip``, ``damaged-gzip``, ``gzip-bomb``, ``too-large`` or ``not-readable``.
        """
        data = self._expand(count) if self._inflate else self._load(count)
        self.read_bytes += len(data)
        if self.read_bytes > self._limits.input_bytes:
            raise self.refuse(
                "too-large",
                f"more than {self._limits.input_bytes} bytes; record a shorter window",
            )
        return data

    def refuse(self, code: str, message: str, *, at: int | None = None) -> UnreadableInput:
        """Return an error that names the file and the byte."""
        where = self.where if at is None else f"{self.where}: byte {at}"
        return UnreadableInput(code, where=where, message=message)

    def _load(self, count: int) -> bytes:
        try:
            data = self._file.read(count)
        except OSError as error:
            raise self.refuse("not-readable", f"read failed: {error.strerror}") from None
        self._raw_bytes += len(data)
        return data

    def _expand(self, count: int) -> bytes:
        parts: list[bytes] = []
        wanted = count
        while wanted > 0:
            part = self._member(min(wanted, _STEP))
            if part is None:
                break
            parts.append(part)
            wanted -= len(part)
            self._check_ratio(self.read_bytes + count - wanted)
        return b"".join(parts)

    def _member(self, count: int) -> bytes | None:
        """Up to `count` bytes, maybe none yet; None at the end of the last member."""
        assert self._inflate is not None
        if self._inflate.eof:
            rest = self._inflate.unused_data or self._load(_STEP)
            if not rest.strip(b"\0"):  # padding after the last member is allowed
                return None
            self._inflate = zlib.decompressobj(wbits=31)
            self._pending = rest
        data = self._pending or self._load(_STEP)
        if not data:
            raise self.refuse(
                "truncated-gzip",
                "the compressed data stops early; copy the file again or wait until it is written",
                at=self._raw_bytes,
            )
        try:
            out = self._inflate.decompress(data, count)
        except zlib.error as error:
            raise self.refuse(
                "damaged-gzip", f"cannot be decompressed ({error})", at=self._raw_bytes
            ) from None
        self._pending = self._inflate.unconsumed_tail
        return out

    def _check_ratio(self, out_bytes: int) -> None:
        bound = max(self._limits.gzip_free_bytes, self._limits.gzip_ratio * self._raw_bytes)
        if out_bytes > bound:
            raise self.refuse(
                "gzip-bomb",
                f"{self._raw_bytes} bytes expand to more than {bound}; no trace compresses so well",
            )


def printable(name: str) -> str:
    r"""Return a file's name as text that can be stored: bytes that are not UTF-8 become escapes.

    Examples
    --------
    >>> printable("bad\udcff.json")
    'bad\\udcff.json'
    """
    return name.encode("utf-8", "backslashreplace").decode("utf-8")


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
    """A database; its tables show the format: ``rocpd``, ``rpd`` or ``rocprof-v1-db``."""


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
    """Return the cells of a CSV header; empty if the line is not one."""
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

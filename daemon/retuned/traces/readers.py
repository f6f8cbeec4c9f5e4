"""The registry: a path becomes a stream of launches or a batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import TracebackType

from retuned.contract import Digest
from retuned.errors import UnreadableInput
from retuned.ports import TraceBatch
from retuned.stages.trace import CapturedLaunch, LaunchRecord, Skip
from retuned.traces import chrome, kineto, rocprof_csv, rocprof_json
from retuned.traces.blocks import LaunchBlock, gather
from retuned.traces.rocpd import Database
from retuned.traces.source import (
    SNIFF_BYTES,
    ByteSource,
    Format,
    ReadLimits,
    check_size,
    content_digest,
    printable,
    sniff,
)

_READERS: dict[Format, Callable[..., Iterator[LaunchBlock]]] = {
    Format.ROCPROFV3_CSV: rocprof_csv.read,
    Format.ROCPROFV2_CSV: rocprof_csv.read,
    Format.ROCPROF_V1_CSV: rocprof_csv.read,
    Format.ROCPROFV3_JSON: rocprof_json.read,
    Format.KINETO_JSON: kineto.read,
    Format.ROCPROF_V1_JSON: chrome.read,
    Format.RPD_JSON: chrome.read,
}
_HARMLESS = frozenset({Skip.NOT_A_KERNEL, Skip.OVER_LIMIT, Skip.ZERO_DURATION})


class TraceStream:
    """One open trace. Iterate once; memory is bounded by a block, not by the file.

    Kineto and rocprofv3 JSON must hold what they link; beyond `ReadLimits` they are refused.
    """

    def __init__(
        self,
        origin: str,
        format: str,
        *,
        blocks: Iterator[LaunchBlock],
        skipped: Counter[str],
        close: Callable[[], None],
    ) -> None:
        self.origin = origin
        """Path, for messages."""
        self.format = format
        """Format found, such as ``rocpd``."""
        self.skipped = skipped
        """Rows left out, by reason; complete when the stream is exhausted."""
        self.launches = 0
        """Launches handed out so far."""
        self.first_ns = 0
        """Earliest start so far, on the trace's clock."""
        self.last_ns = 0
        """Latest end so far."""
        self._blocks = blocks
        self._close = close

    def __enter__(self) -> TraceStream:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close()

    @property
    def span_ns(self) -> int:
        """Latest end minus earliest start so far."""
        return self.last_ns - self.first_ns

    def blocks(self) -> Iterator[LaunchBlock]:
        """Yield launches as columns, in file order (which is not order of time).

        Raises
        ------
        UnreadableInput
            As soon as the file turns out to be damaged; ``nothing-believable`` at the end if rows
            were there and every one had to be left out.
        """
        for block in self._in_memory():
            if len(block):
                first = int(block.start_ns.min())
                last = int((block.start_ns + block.duration_ns).max())
                self.first_ns = min(self.first_ns, first) if self.launches else first
                self.last_ns = max(self.last_ns, last)
                self.launches += len(block)
                yield block
        if not self.launches and self.skipped.keys() - _HARMLESS:
            counts = ", ".join(f"{n} x {reason}" for reason, n in sorted(self.skipped.items()))
            raise UnreadableInput(
                "nothing-believable",
                where=self.origin,
                message=f"no launch is plausible ({counts}); record the trace again",
            )

    def _in_memory(self) -> Iterator[LaunchBlock]:
        try:
            yield from self._blocks
        except MemoryError:  # limits are guesses; the machine has the last word
            raise UnreadableInput(
                "out-of-memory",
                where=self.origin,
                message="this machine's memory does not hold what must be linked in this file; "
                "record fewer steps, or as CSV or rocpd, which are read piece by piece",
            ) from None

    def records(self) -> Iterator[LaunchRecord]:
        """Yield launches one by one, in file order."""
        for block in self.blocks():
            yield from block.records()


def open_trace(path: Path, *, limits: ReadLimits | None = None) -> TraceStream:
    """Open a trace of any known format.

    Raises
    ------
    UnreadableInput
        With a stable code, the place and what to do.
    """
    limits = limits or ReadLimits()
    check_size(path, limits=limits)
    skipped: Counter[str] = Counter()
    source = ByteSource(path, limits=limits)
    try:
        head = source.read(SNIFF_BYTES)
        format_ = sniff(source, head)
    except UnreadableInput:
        source.close()
        raise
    if format_ is Format.SQLITE:
        source.close()
        database = Database(path, limits=limits)
        return TraceStream(
            str(path),
            database.format,
            blocks=database.read(skipped),
            skipped=skipped,
            close=database.close,
        )
    blocks = _READERS[format_](source, head, limits=limits, skipped=skipped)
    return TraceStream(str(path), str(format_), blocks=blocks, skipped=skipped, close=source.close)


def read_trace(
    path: Path,
    *,
    max_launches: int | None = None,
    limits: ReadLimits | None = None,
    digest: Digest | None = None,
) -> TraceBatch:
    """Read a whole trace, launches in order of start.

    Parameters
    ----------
    path
        The file.
    max_launches
        Keep this many; the rest is read (the file must be whole) and counted as ``over-limit``.
    limits
        Bounds; by default what this machine's memory allows.
    digest
        The file's digest, where the caller has it: a large file takes seconds to read.

    Raises
    ------
    UnreadableInput
        With a stable code, the place and what to do.
    """
    with open_trace(path, limits=limits) as stream:
        digest = digest or content_digest(path)
        launches = gather(stream.blocks(), most=max_launches)
        dropped = stream.launches - len(launches)
    if dropped:
        stream.skipped[Skip.OVER_LIMIT] += dropped
    return TraceBatch(
        origin=printable(str(path)),
        digest=digest,
        format=stream.format,
        launches=launches,
        span_ns=launches.span_ns,  # of those kept: rates divide by it
        skipped={str(reason): count for reason, count in stream.skipped.items()},
        completed_at_ns=path.stat().st_mtime_ns,
    )


def read_capture(path: Path, *, limits: ReadLimits | None = None) -> tuple[CapturedLaunch, ...]:
    """Read what a graph's capture recorded on the host, for `align_capture`.

    Raises
    ------
    UnreadableInput
        ``not-a-capture`` for another format than Kineto; ``no-launch-rows``; or as `open_trace`.
    """
    limits = limits or ReadLimits()
    with closing(ByteSource(path, limits=limits)) as source:
        head = source.read(SNIFF_BYTES)
        if sniff(source, head) is not Format.KINETO_JSON:
            raise source.refuse("not-a-capture", "a capture must be a PyTorch profiler trace")
        return kineto.read_capture(source, head, limits=limits)

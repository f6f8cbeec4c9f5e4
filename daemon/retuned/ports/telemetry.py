"""What is seen and shown: traces, devices, metrics and spans."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

from retuned.contract import Digest
from retuned.stages.trace import LaunchRecord
from retuned.telemetry import Row
from retuned.telemetry.spans import NOTHING, Value


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceBatch:
    """One complete trace file, read."""

    origin: str
    """Path of the file, for messages."""
    digest: Digest
    """Content digest; the same file is never counted twice."""
    format: str
    """Format found by content, such as ``rocprofv3-csv`` or ``kineto-json``."""
    launches: Sequence[LaunchRecord]
    """Every launch that could be believed, in order of start."""
    span_ns: int
    """Last end minus first start."""
    skipped: Mapping[str, int] = field(default_factory=dict)
    """Rows that were left out, by stable reason."""
    size_bytes: int = 0
    """Size of the file as it lies on disk; 0 where it never lay there."""
    completed_at_ns: int = 0
    """Wall time of the file's last change, ns since the epoch: places the batch in a window."""


class TraceSource(Protocol):
    """Where launches come from: watched folders, a profiler in the server, a replay."""

    def poll(self) -> Sequence[TraceBatch]:
        """Return batches completed since the last call, oldest first.

        A file that cannot be read becomes a `failures` entry, never an exception.
        """
        ...

    def give_back(self, batches: Sequence[TraceBatch]) -> None:
        """Take batches back that could not be kept; the next `poll` returns them again."""
        ...

    def failures(self) -> Sequence[tuple[str, str]]:
        """Return (path, message) of files refused since the last call."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceState:
    """One accelerator at one moment; None is what nobody says."""

    gpu: str
    """Vendor and number, such as ``nvidia-0``."""
    core_hz: float | None = None
    """Clock of what computes."""
    core_max_hz: float | None = None
    """The highest that it can have."""
    memory_hz: float | None = None
    """Clock of the memory."""
    power_w: float | None = None
    """Draw, watts."""
    power_limit_w: float | None = None
    """Most that it may draw, watts."""
    temperature_c: float | None = None
    """Degrees Celsius."""
    throttled: frozenset[str] | None = None
    """Why it is slower than it could be: ``power``, ``thermal``, ``hardware``, ``software``."""
    busy_ratio: float | None = None
    """Share of time in which it did something."""
    memory_used_bytes: int | None = None
    """Memory in use."""
    processes: tuple[int, ...] | None = None
    """Processes that compute on it, as this process numbers them."""


class Devices(Protocol):
    """The accelerators of this machine, as their driver shows them. Context, never a decision."""

    def read(self) -> Sequence[DeviceState]:
        """Return how each stands now; nothing where the driver does not answer. Never raises."""
        ...

    def close(self) -> None:
        """Let the driver's library go."""
        ...


class Telemetry(Protocol):
    """Metrics and traces out; `retuned.telemetry` says which there are."""

    def count(self, name: str, amount: float = 1.0, **labels: str) -> None:
        """Add to a counter."""
        ...

    def gauge(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge."""
        ...

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Add to a histogram."""
        ...

    def table(self, name: str, rows: Iterable[Row]) -> None:
        """Replace all series of a metric: what is not among the rows is no more."""
        ...


class Spans(Protocol):
    """What is being done now, for traces and logs. Nothing here raises or waits."""

    def span(
        self,
        stage: str,
        *,
        after: str = "",
        links: Sequence[str] = (),
        since_s: float = 0.0,
        about: Mapping[str, Value] = NOTHING,
    ) -> AbstractContextManager[None]:
        """Do something as one span; where nothing is written down in it, it was nothing.

        Parameters
        ----------
        stage
            What is done, a word such as ``gate``.
        after
            ``Stored.traceparent`` of what is worked on: the span goes on from there. Empty, or what
            is no traceparent, goes on from the span around this one.
        links
            The same of whatever else led here.
        since_s
            How long ago the work began, seconds.
        about
            What it is about; ``proposal``, ``experiment``, ``kernel`` are repeated in logs.
        """
        ...

    def carried(self) -> str:
        """Return the traceparent of the span that is open; what is written down carries it."""
        ...

    def say(self, **about: Value) -> None:
        """Add to what the open span is about."""
        ...

    def close(self) -> None:
        """Send what waits, as far as that takes a few seconds."""
        ...

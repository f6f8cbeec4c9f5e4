"""Observation and export: traces, devices, metrics and spans."""

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
    """Every valid launch, ordered by start."""
    span_ns: int
    """Last end minus first start."""
    skipped: Mapping[str, int] = field(default_factory=dict)
    """Number of skipped rows by reason code."""
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
    """One accelerator at one moment; None if the driver does not report a value."""

    gpu: str
    """Vendor and number, such as ``nvidia-0``."""
    uuid: str = ""
    """Name that a process can be given it by; empty if the driver does not report one."""
    model: str = ""
    core_hz: float | None = None
    """Clock of the compute units."""
    core_max_hz: float | None = None
    """Highest clock of the compute units."""
    memory_hz: float | None = None
    """Clock of the memory."""
    power_w: float | None = None
    """Power draw, watts."""
    power_limit_w: float | None = None
    """Power limit, watts."""
    temperature_c: float | None = None
    throttled: frozenset[str] | None = None
    """Causes of a reduced clock: ``power``, ``thermal``, ``hardware``, ``software``."""
    busy_ratio: float | None = None
    """Share of time in which it was busy."""
    memory_used_bytes: int | None = None
    processes: tuple[int, ...] | None = None
    """Processes that compute on it, as this process numbers them."""


class Devices(Protocol):
    """The accelerators of this machine, as their driver shows them. Context, never a decision."""

    def read(self) -> Sequence[DeviceState]:
        """Return the state of each; empty if the driver does not answer. Never raises."""
        ...

    def close(self) -> None:
        """Release the driver's library."""
        ...


class Telemetry(Protocol):
    """Exports metrics; `retuned.telemetry` lists them."""

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
        """Replace all series of a metric; series without a row end."""
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
            ``Stored.traceparent`` of what is worked on: the span goes on from there. If empty or
            invalid, it goes on from the span around this one.
        links
            The same of whatever else led here.
        since_s
            How long ago the work began, seconds.
        about
            What it is about; ``proposal``, ``experiment``, ``kernel`` are repeated in logs.
        """
        ...

    def carried(self) -> str:
        """Return the traceparent of the open span, to be stored with records."""
        ...

    def say(self, **about: Value) -> None:
        """Add attributes to the open span."""
        ...

    def close(self) -> None:
        """Send pending spans, for at most a few seconds."""
        ...

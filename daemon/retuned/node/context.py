"""What the steps of observing need, and the kinds of records that they keep."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Protocol

from retuned.ports import Clock, Spans, Store, Swapper, Telemetry, TraceSource
from retuned.stages.drift import DriftSettings
from retuned.stages.profile import ProfileSettings

BATCH = "batch"
"""One trace file, folded: new -> folded."""
WINDOW = "window"
"""One window of the workload: new -> baseline | judged | skipped."""
DETECTOR = "detector"
"""State of the drift detector: current."""
DRIFT = "drift"
"""One drift report: new where it asks for a retune, held -> noted where an alarm waits for its
cause, else noted."""


class Recogniser(Protocol):
    """Knows kernels by what was launched."""

    def recognise(
        self, kernel: str, dims: tuple[tuple[int, ...], ...], dtypes: tuple[str, ...]
    ) -> tuple[str, Mapping[str, int]] | None:
        """Return definition and variable axes of a launch; None for an unknown kernel."""
        ...


class ObservingSettings(Protocol):
    """How windows are made and judged."""

    @property
    def window(self) -> timedelta:
        """Length of a window."""
        ...

    @property
    def settle(self) -> timedelta:
        """How long after a window's end its files may still land."""
        ...

    @property
    def baseline_windows(self) -> int:
        """Windows that make the baseline."""
        ...

    @property
    def profile(self) -> ProfileSettings:
        """How launches are folded."""
        ...

    @property
    def drift(self) -> DriftSettings:
        """The detector."""
        ...


class ServerPorts(Protocol):
    """Ports that every step beside a server needs."""

    @property
    def store(self) -> Store:
        """Where windows and reports are kept."""
        ...

    @property
    def clock(self) -> Clock:
        """Time."""
        ...

    @property
    def telemetry(self) -> Telemetry:
        """Metrics."""
        ...

    @property
    def spans(self) -> Spans:
        """What is being done."""
        ...

    @property
    def swapper(self) -> Swapper:
        """The server, whose slots count launches."""
        ...


class Observing(ServerPorts, Protocol):
    """Ports and settings of the steps."""

    @property
    def traces(self) -> TraceSource:
        """Where launches come from."""
        ...

    @property
    def settings(self) -> ObservingSettings:
        """Numbers."""
        ...

    @property
    def environment(self) -> str:
        """Digest of what the server runs on; empty where that is not known."""
        ...

    @property
    def catalog(self) -> Recogniser:
        """What is known of kernels."""
        ...

"""Time of single launches on the device, by events that are read later.

A launch is put between two events of its stream, and no code waits for them. An event on an idle
stream completes immediately, and the interval then includes host time: such a launch is only
counted. While any thread captures a graph, no event is queried, since that would end the capture.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from dataclasses import dataclass
from typing import Any, Protocol

from retuned.runtime.schema import Refused
from retuned.runtime.shadow.device import quiet
from retuned.runtime.shadow.pending_checks import Quiet

MOST_PENDING = 256
"""Timed launches whose end is not known yet."""


class Device(Protocol):
    """Marks moments on the current stream."""

    def mark(self) -> Any | None:  # noqa: ANN401 - the device's own
        """Mark this moment; None if that is not possible, as while a graph is captured."""
        ...

    def idle_at(self, mark: Any) -> bool:  # noqa: ANN401 - the device's own
        """Whether the device waited for work at a mark, asked when the launch has returned."""
        ...

    def passed(self, mark: Any) -> bool:  # noqa: ANN401 - the device's own
        """Whether the device has reached a mark."""
        ...

    def between_ns(self, first: Any, second: Any) -> int:  # noqa: ANN401 - the device's own
        """Return the time between two marks that have been passed, ns."""
        ...


class Cell(Protocol):
    """Takes the times of launches of one kind."""

    idle: int
    """Launches on an idle stream: counted, not timed."""

    def time(self, took_ns: int) -> None:
        """Take one time."""
        ...


@dataclass(slots=True)
class _Sample:
    cell: Cell
    begun: Any
    ended: Any


class LaunchTimer:
    """Times launches between `begin` and `end`; never raises into the server.

    Parameters
    ----------
    device
        Marks moments; PyTorch's events by default.
    quiet
        Context in which no graph is captured; raises `Refused` if one is.
    """

    def __init__(self, device: Device | None = None, *, quiet: Quiet = quiet) -> None:
        self.dropped = 0
        """Samples lost: too many were pending, a graph was captured, or the device raised."""
        self._device: Device = device or TorchEvents()
        self._quiet = quiet
        self._pending: deque[_Sample] = deque()

    def begin(self) -> Any | None:  # noqa: ANN401 - the device's own
        """Mark the start of a launch; None if it cannot be timed."""
        if len(self._pending) >= MOST_PENDING:
            self.dropped += 1
            return None
        try:
            return self._device.mark()
        except Exception:  # the server's device: its launch must continue
            self.dropped += 1
            return None

    def end(self, begun: Any, cell: Cell) -> None:  # noqa: ANN401 - the device's own
        """Mark the end of a launch, unless the stream was idle at its start."""
        try:
            with self._quiet():
                idle = self._device.idle_at(begun)
            if idle:
                cell.idle += 1
                return
            ended = self._device.mark()
        except Exception:  # as above
            self.dropped += 1
            return
        if ended is not None:
            self._pending.append(_Sample(cell, begun, ended))

    def gather(self) -> None:
        """Take the times of launches that have ended; while a graph is captured they wait."""
        try:
            with self._quiet():
                self._gather()
        except Refused:
            pass

    def _gather(self) -> None:
        for _ in range(len(self._pending)):
            sample = self._pending.popleft()
            try:
                if not self._device.passed(sample.ended):
                    self._pending.append(sample)
                    continue
                took_ns = self._device.between_ns(sample.begun, sample.ended)
            except Exception:  # as above
                self.dropped += 1
                continue
            sample.cell.time(took_ns)


class TorchEvents:
    """Events of the PyTorch that the server has loaded; CUDA and ROCm have the same interface."""

    def mark(self) -> Any | None:  # noqa: ANN401 - torch.cuda.Event
        """Record an event on the current stream; None without a device or under capture."""
        torch = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_initialized():
            return None
        if torch.cuda.is_current_stream_capturing():
            return None
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def idle_at(self, mark: Any) -> bool:  # noqa: ANN401 - torch.cuda.Event
        return bool(mark.query())

    def passed(self, mark: Any) -> bool:  # noqa: ANN401 - torch.cuda.Event
        return bool(mark.query())

    def between_ns(self, first: Any, second: Any) -> int:  # noqa: ANN401 - torch.cuda.Event
        """Return the time between two events, ns; the resolution is half a microsecond."""
        return int(first.elapsed_time(second) * 1e6)


class HostMoments:
    """The host's clock, for servers without a GPU: a launch ends when it returns."""

    def mark(self) -> int:
        return time.perf_counter_ns()

    def idle_at(self, mark: int) -> bool:
        return False

    def passed(self, mark: int) -> bool:
        return True

    def between_ns(self, first: int, second: int) -> int:
        return second - first


def moments() -> Device:
    """Return what marks moments in this process: its GPU's events, if PyTorch uses one."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return TorchEvents() if cuda is not None and cuda.is_initialized() else HostMoments()

"""Timing of the server's own launches on the device: a few of them, by events.

From time to time a kernel is armed: one of its next launches, at a random position, is put between
two events of its stream. Maintenance reads the events later; no code waits for them. The clock
bounds how many launches are timed: one of each kernel per round, whatever the load. Other launches
pay nothing for it, because an armed kernel takes the path of kernels with a slot. Launches that are
captured into a graph are not timed. While any thread captures a graph, no event is queried, since
that would end the capture.

An event on an idle stream completes immediately, and the interval then includes host time. Such a
sample is only counted. A server that keeps its device busy gives valid samples.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from retuned.runtime.intercept.registry import Cell, Kernel
from retuned.runtime.schema import Refused
from retuned.runtime.shadow.device import quiet
from retuned.runtime.shadow.pending_checks import Quiet

MOST_PENDING = 256
"""Timed launches whose end is not known yet."""
MOST_SKIPPED = 64
"""Launches of an armed kernel that may pass before the timed one."""
ROUND_S = 1.0
"""Seconds between two rounds, each of which arms every kernel once."""


def timing_is_asked() -> bool:
    """Whether ``RETUNED_TRITON_TIMING=on`` is set."""
    return os.environ.get("RETUNED_TRITON_TIMING", "").strip().lower() in ("on", "1", "true")


class Device(Protocol):
    """Marks moments on the current stream."""

    def mark(self) -> Any | None:  # noqa: ANN401 - the device's own
        """Mark this moment; None if that is not possible, as while a graph is captured."""
        ...

    def passed(self, mark: Any) -> bool:  # noqa: ANN401 - the device's own
        """Whether the device has reached a mark."""
        ...

    def between_ns(self, first: Any, second: Any) -> int:  # noqa: ANN401 - the device's own
        """Return the time between two marks that have been passed, ns."""
        ...


class Probe:
    """Times one launch of an armed kernel."""

    __slots__ = ("_skip", "_watch")

    def __init__(self, watch: Stopwatch, skip: int) -> None:
        self._watch = watch
        self._skip = skip

    def begin(self, kernel: Kernel) -> Any | None:  # noqa: ANN401 - the device's own
        """Mark the start of a launch if it is the one to be timed; never raises."""
        if self._skip > 0:
            self._skip -= 1
            return None
        kernel.disarm()
        return self._watch.begin()

    def end(self, begun: Any, cell: Cell) -> None:  # noqa: ANN401 - the device's own
        """Mark its end; never raises."""
        self._watch.end(begun, cell)


@dataclass(slots=True)
class _Sample:
    cell: Cell
    begun: Any
    ended: Any


class Stopwatch:
    """Arms kernels and collects the time of their launches.

    Parameters
    ----------
    device
        Marks moments; PyTorch's events by default.
    random_source
        Chooses the launch; a seeded one in tests.
    quiet
        Context in which no graph is captured; raises `Refused` if one is.
    """

    def __init__(
        self,
        device: Device | None = None,
        *,
        random_source: random.Random | None = None,
        clock: Callable[[], float] = time.monotonic,
        quiet: Quiet = quiet,
    ) -> None:
        self.dropped = 0
        """Samples lost: too many were pending, a graph was captured, or the device raised."""
        self._device: Device = device or TorchEvents()
        self._random = random_source or random.SystemRandom()
        self._clock = clock
        self._quiet = quiet
        self._next_s = 0.0
        self._pending: deque[_Sample] = deque()

    def round(self, kernels: Iterable[Kernel]) -> None:
        """Collect completed samples, and arm every kernel if it is time; called by maintenance."""
        try:
            with self._quiet():
                self._gather()
        except Refused:
            pass  # a graph is being captured: the samples wait
        if self._clock() < self._next_s:
            return
        self._next_s = self._clock() + ROUND_S
        for kernel in kernels:
            if not kernel.interpreted:
                kernel.arm(Probe(self, self._random.randrange(MOST_SKIPPED)))

    def begin(self) -> Any | None:  # noqa: ANN401 - the device's own
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
                idle = self._device.passed(begun)
            if idle:
                cell.idle += 1
                return
            ended = self._device.mark()
        except Exception:  # as above
            self.dropped += 1
            return
        if ended is not None:
            self._pending.append(_Sample(cell, begun, ended))

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

    def passed(self, mark: Any) -> bool:  # noqa: ANN401 - torch.cuda.Event
        return bool(mark.query())

    def between_ns(self, first: Any, second: Any) -> int:  # noqa: ANN401 - torch.cuda.Event
        """Return the time between two events, ns; the resolution is half a microsecond."""
        return int(first.elapsed_time(second) * 1e6)

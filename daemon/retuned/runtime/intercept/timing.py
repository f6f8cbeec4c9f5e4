"""How long the server's own launches take on the device: a few of them, by events.

Now and then a kernel is armed: one of its next launches, at a random place, is put between two
events of the stream that it is launched on. The events are looked at later, by housekeeping;
nothing is waited for. How many launches are timed is bounded by the clock, one of a kernel in each
round, whatever the load; a launch that is not timed pays nothing for it, because an armed kernel
takes the way that kernels with a slot take. Launches that are recorded into a graph are not timed,
and while one is captured, by whichever thread, no event is asked after: that would end the capture.

An event on a stream that has nothing left to do is passed at once, and what follows is then the
host's time as well as the device's. Such a sample is only counted; a server that keeps its device
busy gives real ones.
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
"""Launches of an armed kernel that may pass before the one that is timed."""
ROUND_S = 1.0
"""Between two rounds, each of which arms every kernel once."""


def timing_is_asked() -> bool:
    """Whether ``RETUNED_TRITON_TIMING=on`` is set."""
    return os.environ.get("RETUNED_TRITON_TIMING", "").strip().lower() in ("on", "1", "true")


class Device(Protocol):
    """Marks moments on the stream that is current."""

    def mark(self) -> Any | None:  # noqa: ANN401 - the device's own
        """Mark this moment; None where it cannot be, as while a graph is captured."""
        ...

    def passed(self, mark: Any) -> bool:  # noqa: ANN401 - the device's own
        """Whether the device has come to a mark."""
        ...

    def between_ns(self, first: Any, second: Any) -> int:  # noqa: ANN401 - the device's own
        """Time between two marks that have been passed, ns."""
        ...


class Probe:
    """What an armed kernel is led through, once.

    Parameters
    ----------
    watch
        Takes the sample.
    skip
        Launches to let pass first.
    """

    __slots__ = ("_skip", "_watch")

    def __init__(self, watch: Stopwatch, skip: int) -> None:
        self._watch = watch
        self._skip = skip

    def begin(self, kernel: Kernel) -> Any | None:  # noqa: ANN401 - the device's own
        """Mark the begin of a launch if it is the one to be timed; never raises."""
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
    """Arms kernels and gathers what their launches took.

    Parameters
    ----------
    device
        Marks moments; PyTorch's events by default.
    random_source
        Chooses the launch; a seeded one in tests.
    clock
        Monotonic seconds.
    quiet
        While it is entered no graph is captured; raises `Refused` if one is.
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
        """Samples lost because too many were pending, a graph was captured, or the device
        refused."""
        self._device: Device = device or TorchEvents()
        self._random = random_source or random.SystemRandom()
        self._clock = clock
        self._quiet = quiet
        self._next_s = 0.0
        self._pending: deque[_Sample] = deque()

    def round(self, kernels: Iterable[Kernel]) -> None:
        """Gather what has ended, and arm every kernel if it is time; called by housekeeping."""
        try:
            with self._quiet():
                self._gather()
        except Refused:
            pass  # a graph is being captured: they wait
        if self._clock() < self._next_s:
            return
        self._next_s = self._clock() + ROUND_S
        for kernel in kernels:
            if not kernel.interpreted:
                kernel.arm(Probe(self, self._random.randrange(MOST_SKIPPED)))

    def begin(self) -> Any | None:  # noqa: ANN401 - the device's own
        """Mark the begin of a launch; None if it is not to be timed."""
        if len(self._pending) >= MOST_PENDING:
            self.dropped += 1
            return None
        try:
            return self._device.mark()
        except Exception:  # the server's device: its launch must go on
            self.dropped += 1
            return None

    def end(self, begun: Any, cell: Cell) -> None:  # noqa: ANN401 - the device's own
        """Mark the end of a launch, unless the stream was idle when it was launched."""
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
        """Fold in the samples whose end has been passed, in the order they were taken."""
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
    """Events of the PyTorch that the server has loaded; CUDA's and ROCm's are the same there."""

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
        """Whether the device has come to an event."""
        return bool(mark.query())

    def between_ns(self, first: Any, second: Any) -> int:  # noqa: ANN401 - torch.cuda.Event
        """Time between two events, ns; they count in steps of half a microsecond."""
        return int(first.elapsed_time(second) * 1e6)

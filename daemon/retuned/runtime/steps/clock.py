"""Marks on the timeline of a step's device, read later and without waiting.

A mark is an event on the current stream of the launching thread; without a GPU it is the time on
the host. Events are neither recorded nor read while a graph is being captured: both could end the
capture.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from typing import Any, Protocol

from retuned.runtime.shadow.device import captures_under_way

Mark = Any
_KEPT_EVENTS = 256


class StepClock(Protocol):
    on_device: bool
    """Whether marks lie on the timeline of a device."""

    def mark(self) -> Mark | None:
        """Mark the present position; None during a capture. Called by the launching thread."""
        ...

    def arrived(self, mark: Mark) -> bool:
        """Whether a mark is reached; never waits. Not called during a capture."""
        ...

    def elapsed_us(self, begin: Mark, end: Mark) -> float:
        """Return the time between two marks that are reached."""
        ...

    def release(self, mark: Mark) -> None:
        """Take back a mark that is not read again."""
        ...


class HostClock:
    """The host's clock, for servers without a GPU."""

    on_device = False

    def mark(self) -> float:
        return time.perf_counter()

    def arrived(self, mark: float) -> bool:
        return True

    def elapsed_us(self, begin: float, end: float) -> float:
        return 1e6 * (end - begin)

    def release(self, mark: float) -> None:
        pass


class TorchClock:
    """Events of the server's PyTorch.

    Parameters
    ----------
    cuda
        The module ``torch.cuda``, on AMD too.
    """

    on_device = True

    def __init__(self, cuda: Any) -> None:  # noqa: ANN401 - the module
        self._cuda = cuda
        self._free: deque[Any] = deque(maxlen=_KEPT_EVENTS)

    def mark(self) -> Mark | None:
        if captures_under_way() or self._cuda.is_current_stream_capturing():
            return None
        try:
            event = self._free.pop()
        except IndexError:
            event = self._cuda.Event(enable_timing=True)
        event.record()
        return event

    def arrived(self, mark: Mark) -> bool:
        return bool(mark.query())

    def elapsed_us(self, begin: Mark, end: Mark) -> float:
        return 1e3 * float(begin.elapsed_time(end))

    def release(self, mark: Mark) -> None:
        self._free.append(mark)


def step_clock() -> StepClock:
    """Return the clock of this process: its GPU's, if PyTorch uses one."""
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    if cuda is not None and cuda.is_initialized():
        return TorchClock(cuda)
    return HostClock()

"""Device interface of checks: the only module of them that uses PyTorch's streams and events.

Work of a check is queued on one separate stream per device, behind a mark on the server's stream.
The server's stream never waits for the checks' stream, and only `arrived` queries its progress.
PyTorch has no priority below the default one: NVIDIA has none at all, and PyTorch's stream pools do
not offer AMD's. Server launches with a higher priority run first.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

from retuned.runtime.schema import Tensor
from retuned.runtime.shadow.comparison import ElementFormat, form_of
from retuned.runtime.shadow.fingerprints import glimpse
from retuned.runtime.shadow.reduction import NUMBERS, measure

PLACES = 8
MAX_OUTPUTS = 16
"""Outputs of a kernel whose checks run asynchronously."""
ROW = 1 + NUMBERS * MAX_OUTPUTS
"""Numbers of one check: bytes of inputs that changed, then those of each output."""

Mark = Any


class ShadowDevice(Protocol):
    def capturing(self) -> bool:
        """Whether a graph is being captured, on this stream or any other that is followed."""
        ...

    def copy(self, tensor: Tensor) -> Tensor: ...

    def glimpse(self, tensor: Tensor) -> Tensor:
        """Queue a copy of a bounded part of a tensor's bytes on the current stream."""
        ...

    def form(self, tensor: Tensor) -> tuple[ElementFormat, int]: ...

    def version(self, tensor: Tensor) -> int | None:
        """Return PyTorch's count of writes to a tensor; None if it is not counted."""
        ...

    def mark(self, *, timed: bool = False) -> Mark:
        """Mark the current position of the current stream.

        The mark has the time on the checks' stream, and on others if `timed` is set.
        """
        ...

    def aside(self, after: Mark) -> AbstractContextManager[None]:
        """Make the checks' stream current; it continues once `after` is reached."""
        ...

    def measure(self, ours: Tensor, theirs: Tensor, tolerance: float) -> Tensor:
        """Queue the comparison of one output; see `reduction.measure`."""
        ...

    def changed(self, before: Sequence[Tensor], after: Sequence[Tensor]) -> Tensor:
        """Queue the count of bytes in which byte samples differ."""
        ...

    def send(self, numbers: Sequence[Tensor], *, place: int) -> None:
        """Queue the copy of the numbers to the host, into the row of a place."""
        ...

    def received(self, count: int, *, place: int) -> list[float]: ...

    def arrived(self, mark: Mark) -> bool:
        """Whether a mark is reached; never waits."""
        ...

    def elapsed_ns(self, begin: Mark, end: Mark) -> int:
        """Return the device's time between two marks with the time, both reached."""
        ...


class DeviceOf(Protocol):
    def __call__(self, inputs: tuple[Any, ...], *, dense: bool = True) -> ShadowDevice | None:
        """Return the device that a check of a launch can run on asynchronously.

        None for synchronous.
        """
        ...


class TorchShadow:
    """A GPU of the server's PyTorch."""

    def __init__(self, torch: Any, index: int) -> None:  # noqa: ANN401 - the module
        self._torch = torch
        self._index = index
        with torch.cuda.device(index):
            self._stream = torch.cuda.Stream(device=index, priority=_lowest(torch))
        with torch.inference_mode(False):  # otherwise only launches in that mode could write to it
            self._rows = torch.zeros((PLACES, ROW), dtype=torch.float64, pin_memory=True)

    @property
    def stream(self) -> Any:  # noqa: ANN401 - torch.cuda.Stream
        return self._stream

    def capturing(self) -> bool:
        return bool(self._torch.cuda.is_current_stream_capturing()) or captures_under_way()

    def copy(self, tensor: Tensor) -> Tensor:
        return tensor.detach().clone()

    def glimpse(self, tensor: Tensor) -> Tensor:
        return glimpse(tensor).clone()

    def form(self, tensor: Tensor) -> tuple[ElementFormat, int]:
        return form_of(self._torch, tensor), int(tensor.numel())

    def version(self, tensor: Tensor) -> int | None:
        """Return the count of writes to a tensor; inference tensors have none."""
        return None if tensor.is_inference() else int(tensor._version)

    def mark(self, *, timed: bool = False) -> Mark:
        stream = self._torch.cuda.current_stream(self._index)
        timed = timed or stream == self._stream
        with self._torch.cuda.device(self._index):
            event = self._torch.cuda.Event(enable_timing=timed)
            event.record(stream)
        return event

    def aside(self, after: Mark) -> AbstractContextManager[None]:
        self._stream.wait_event(after)
        there: AbstractContextManager[None] = self._torch.cuda.stream(self._stream)
        return there

    def measure(self, ours: Tensor, theirs: Tensor, tolerance: float) -> Tensor:
        return measure(self._torch, ours, theirs, tolerance)

    def changed(self, before: Sequence[Tensor], after: Sequence[Tensor]) -> Tensor:
        torch = self._torch
        total = torch.zeros(1, dtype=torch.float64, device=torch.device("cuda", self._index))
        for first, second in zip(before, after, strict=True):
            total += (first != second).sum()
        return total

    def send(self, numbers: Sequence[Tensor], *, place: int) -> None:
        flat = self._torch.cat(list(numbers))
        self._rows[place, : flat.numel()].copy_(flat, non_blocking=True)

    def received(self, count: int, *, place: int) -> list[float]:
        return [float(number) for number in self._rows[place, :count].tolist()]

    def arrived(self, mark: Mark) -> bool:
        """Whether a mark is reached; raises RuntimeError if the device is lost."""
        return bool(mark.query())

    def elapsed_ns(self, begin: Mark, end: Mark) -> int:
        return int(begin.elapsed_time(end) * 1e6)


def _lowest(torch: Any) -> int:  # noqa: ANN401 - the module
    """Return the lowest priority that PyTorch accepts: it refuses those above 0."""
    ask = getattr(torch.cuda.Stream, "priority_range", None)
    least = ask()[0] if ask is not None else 0
    return min(0, int(least))


def captures_under_way() -> bool:
    """Whether any thread captures a graph that is followed.

    During a capture, other threads of the process must not query events.
    """
    following = sys.modules.get("retuned.runtime.graphs.process")
    return following is not None and following.captures_under_way()


def quiet() -> AbstractContextManager[None]:
    """Block captures of followed graphs in this context; raises `Refused` during one."""
    following = sys.modules.get("retuned.runtime.graphs.process")
    if following is None:
        return nullcontext()
    held: AbstractContextManager[None] = following.quiet()
    return held


_DEVICES: dict[int, TorchShadow | None] = {}
_LOCK = threading.Lock()


def shadow_device(inputs: tuple[Any, ...], *, dense: bool = True) -> ShadowDevice | None:
    """Return the device on which a check of a launch can run asynchronously; None for synchronous.

    All inputs must be plain tensors in the memory of one GPU, and row-major without gaps if they
    must be `dense`. ``RETUNED_SHADOW_STREAM=off`` makes every check synchronous: an incumbent with
    private scratch must not run twice at the same time.
    """
    torch = sys.modules.get("torch")
    if torch is None or not inputs:
        return None
    plain = (torch.Tensor, torch.nn.Parameter)
    if any(type(value) not in plain or not value.is_cuda for value in inputs):
        return None
    index = inputs[0].get_device()
    if any(v.get_device() != index or (dense and not v.is_contiguous()) for v in inputs):
        return None
    try:
        return _DEVICES[index]
    except KeyError:
        return _made(torch, index)


def _made(torch: Any, index: int) -> TorchShadow | None:  # noqa: ANN401 - the module
    if captures_under_way():
        return None  # pinned memory must not be allocated during a capture
    with _LOCK:
        if index not in _DEVICES:
            _DEVICES[index] = None
            off = os.environ.get("RETUNED_SHADOW_STREAM", "").strip().lower()
            if off not in ("off", "0", "false"):
                try:
                    _DEVICES[index] = TorchShadow(torch, index)
                except (RuntimeError, TypeError, AttributeError):  # no memory, or another PyTorch
                    return None
        return _DEVICES[index]


def _after_fork() -> None:
    """Forget the parent's streams: a child cannot use its GPU, and must not access them."""
    global _LOCK
    _LOCK = threading.Lock()
    _LEFT.append(dict(_DEVICES))
    _DEVICES.clear()


_LEFT: list[dict[int, TorchShadow | None]] = []
"""Kept, so that a child frees none of it."""

os.register_at_fork(after_in_child=_after_fork)

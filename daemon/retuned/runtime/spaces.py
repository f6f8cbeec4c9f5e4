"""Scratch of one variant in a server: one block of memory per stream, made off the request path.

Launches on one stream follow each other, so one block serves them all, as large as the largest of
the prepared lengths needs. A launch never allocates: where its stream has no block yet, or one that
is too small, it is the incumbent's, and the control thread makes a block. Two threads that launch
on one stream at the same time would mix their steps: the second is the incumbent's too.
"""

from __future__ import annotations

import threading
from typing import Any

from retuned.runtime.spec import Refused, Tensor

MAX_BYTES = 2 << 30
"""Most that all blocks of one variant may take."""
MAX_STREAMS = 8
"""Streams that get a block; launches on others are the incumbent's."""


class Lane:
    """One stream's block, and who has it."""

    __slots__ = ("block", "lock", "views")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        """Held from the first step of a launch to the last."""
        self.block: Tensor | None = None
        """Bytes."""
        self.views: dict[Any, Any] = {}
        """What launches keep of the block; forgotten with it."""


class Blocks:
    """All blocks of one variant.

    Parameters
    ----------
    torch
        The server's module.
    device
        Where they lie.
    limit_bytes
        Most that they may take together.
    """

    def __init__(self, torch: Any, device: Any, *, limit_bytes: int = MAX_BYTES) -> None:  # noqa: ANN401
        self._torch = torch
        self._device = device
        self._limit_bytes = limit_bytes
        self._size = 0
        self._bytes = 0
        self._spare: Tensor | None = None
        self._lanes: dict[int, Lane] = {}
        self._wanted = 0
        self._refused = limit_bytes + 1
        self._guard = threading.Lock()

    # --- on the control thread --------------------------------------------------------------------

    def reserve(self, size: int) -> None:
        """Have a block of at least `size` bytes for the next stream that asks.

        Raises
        ------
        Refused
            ``scratch-memory`` if the blocks would pass the limit or the device has no memory.
        """
        self._size = max(self._size, size)
        spare = self._spare
        if spare is not None and spare.numel() >= self._size:
            return
        if any(_holds(lane, self._size) for lane in list(self._lanes.values())):
            return
        self._make()

    def serve(self) -> int:
        """Make a block if a launch asked for one in vain; return how many were made.

        Raises
        ------
        Refused
            As `reserve`; as much is not tried again.
        """
        wanted, self._wanted = self._wanted, 0
        if not wanted:
            return 0
        self._size = max(self._size, wanted)
        try:
            self._make()
        except Refused:
            self._refused = min(self._refused, wanted)
            raise
        return 1

    # --- on the request path ----------------------------------------------------------------------

    def take(self, stream: int, size: int) -> Lane | None:
        """Return the stream's lane, held by the caller; None where there is none, or it is held."""
        lane = self._lanes.get(stream)
        if lane is None:
            if len(self._lanes) >= MAX_STREAMS:
                return None
            lane = self._lanes.setdefault(stream, Lane())
        if not lane.lock.acquire(blocking=False):
            return None
        if not _holds(lane, size) and not self._hand_over(lane, size):
            lane.lock.release()
            return None
        return lane

    def _hand_over(self, lane: Lane, size: int) -> bool:
        with self._guard:
            spare = self._spare
            if spare is None or spare.numel() < size:
                if size < self._refused:
                    self._wanted = max(self._wanted, size)
                return False
            self._spare = None
            if lane.block is not None:
                self._bytes -= int(lane.block.numel())
            if spare.is_cuda:  # when it is freed, what this stream still runs with it ends first
                spare.record_stream(self._torch.cuda.current_stream(spare.device))
            lane.views = {}
            lane.block = spare
        return True

    def _make(self) -> None:
        spare = self._spare
        kept = 0 if spare is None else int(spare.numel())
        if self._bytes - kept + self._size > self._limit_bytes:
            raise self._passed()
        try:
            made = self._torch.empty(self._size, dtype=self._torch.uint8, device=self._device)
        except RuntimeError as error:  # out of memory among them
            raise Refused("scratch-memory", detail=f"{error!r:.200}") from error
        if made.is_cuda:  # what this memory was before is over; launches use it from any stream
            self._torch.cuda.current_stream(made.device).synchronize()
        with self._guard:
            kept = 0 if self._spare is None else int(self._spare.numel())
            if self._bytes - kept + self._size > self._limit_bytes:  # a launch has taken the spare
                raise self._passed()
            self._bytes += self._size - kept
            self._spare = made

    def _passed(self) -> Refused:
        detail = f"scratch of {self._size} bytes a stream would pass {self._limit_bytes} bytes"
        return Refused("scratch-memory", detail=detail)


def _holds(lane: Lane, size: int) -> bool:
    block = lane.block
    return block is not None and int(block.numel()) >= size

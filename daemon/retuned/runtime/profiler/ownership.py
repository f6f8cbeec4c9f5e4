"""The server's own profiler comes first, always.

Two recordings in one process are not a thing that PyTorch stands: the second cancels the first,
and to write what was cancelled ends the process. Every profiler of PyTorch's Python side passes
three functions that ``torch.autograd.profiler`` holds by name. They are stood in for: somebody
else's recording is known from the moment it prepares itself, and it waits until a window of ours
is closed.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable
from typing import Any

log = logging.getLogger(__name__)

_BEGINS = ("_prepare_profiler", "_enable_profiler")
_ENDS = "_disable_profiler"
WAIT_S = 60.0
"""Longest time that the server's own profiler waits for a window of ours to close."""
_MARK = "_retuned_seam"


class ProfilerOwnership:
    """Whose turn to profile it is in this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._theirs: set[int] = set()
        self._ours: int | None = None
        self.wanted = threading.Event()
        """Set while another user waits for our window to close."""
        self._closed = threading.Event()
        self._closed.set()

    def begin(self) -> bool:
        """Take the turn for this thread; False while another user profiles."""
        with self._lock:
            if self._theirs or self._ours is not None:
                return False
            self._ours = threading.get_ident()
            self.wanted.clear()
            self._closed.clear()
            return True

    def end(self) -> None:
        with self._lock:
            self._ours = None
            self._closed.set()

    def give_way(self, wait_s: float = WAIT_S) -> bool:
        """Have our window closed and wait until it is; False if it still is not."""
        if self._ours == threading.get_ident():
            return True
        self.wanted.set()
        return self._closed.wait(wait_s)

    def theirs_begins(self) -> None:
        """Note that the server profiles, and wait for our window to close. Never raises."""
        if self._ours == threading.get_ident():
            return
        with self._lock:  # from here on no window of ours begins
            self._theirs.add(threading.get_ident())
        if not self.give_way():
            log.error("a profiler window does not close; the server's own profiler goes on")

    def theirs_ends(self) -> None:
        """Note that a profiler of the server's has ended; by another thread, all have."""
        own = threading.get_ident()
        if self._ours == own:
            return
        with self._lock:
            self._theirs = self._theirs - {own} if own in self._theirs else set()


def install(profiler: Any, turns: ProfilerOwnership) -> bool:  # noqa: ANN401 - torch.autograd.profiler
    """Stand in for a module's three functions; False if it has not got them, and is left alone.

    Parameters
    ----------
    profiler
        The module.
    turns
        Told of what others do.
    """
    if any(not callable(getattr(profiler, name, None)) for name in (*_BEGINS, _ENDS)):
        return False
    there = getattr(getattr(profiler, _ENDS), _MARK, None)
    if there is not None:
        return there is turns
    if getattr(profiler, "_is_profiler_enabled", False):
        turns.theirs_begins()
    for name in _BEGINS:
        setattr(profiler, name, _before(getattr(profiler, name), turns))
    setattr(profiler, _ENDS, _after(getattr(profiler, _ENDS), turns))
    return True


def remove(profiler: Any, turns: ProfilerOwnership) -> None:  # noqa: ANN401 - torch.autograd.profiler
    """Take back what `install` did, as far as nobody has stood in for it since."""
    for name in (*_BEGINS, _ENDS):
        found: Any = getattr(profiler, name, None)
        if getattr(found, _MARK, None) is turns:
            setattr(profiler, name, found.__wrapped__)


def _before(original: Callable[..., Any], turns: ProfilerOwnership) -> Callable[..., Any]:
    @functools.wraps(original)
    def begins(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - passed through
        turns.theirs_begins()
        return original(*args, **kwargs)

    setattr(begins, _MARK, turns)
    return begins


def _after(original: Callable[..., Any], turns: ProfilerOwnership) -> Callable[..., Any]:
    @functools.wraps(original)
    def ends(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - passed through
        try:
            return original(*args, **kwargs)
        finally:
            turns.theirs_ends()

    setattr(ends, _MARK, turns)
    return ends

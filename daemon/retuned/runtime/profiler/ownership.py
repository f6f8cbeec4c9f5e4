"""Ownership of the profiler: the server's own profiler always has priority.

PyTorch does not support two recordings in one process: the second cancels the first, and writing
the cancelled one ends the process. Every Python profiler of PyTorch calls three functions that
``torch.autograd.profiler`` looks up by name. They are wrapped: so another recording is detected
when it prepares itself, and it waits until a window of the runtime is closed.
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
"""Longest time that the server's own profiler waits for a window to close."""
_MARK = "_retuned_seam"


class ProfilerOwnership:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._theirs: set[int] = set()
        self._ours: int | None = None
        self.wanted = threading.Event()
        self._closed = threading.Event()
        self._closed.set()

    def begin(self) -> bool:
        """Acquire the profiler for this thread; False while another user profiles."""
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
        """Request that the window is closed and wait for it; False if it is still open."""
        if self._ours == threading.get_ident():
            return True
        self.wanted.set()
        return self._closed.wait(wait_s)

    def theirs_begins(self) -> None:
        """Record that the server profiles, and wait for the window to close. Never raises."""
        if self._ours == threading.get_ident():
            return
        with self._lock:  # from here on no window begins
            self._theirs.add(threading.get_ident())
        if not self.give_way():
            log.error("a profiler window does not close; the server's own profiler continues")

    def theirs_ends(self) -> None:
        """Record that a profiler of the server has ended; if called by another thread, all have."""
        own = threading.get_ident()
        if self._ours == own:
            return
        with self._lock:
            self._theirs = self._theirs - {own} if own in self._theirs else set()


def install(profiler: Any, turns: ProfilerOwnership) -> bool:  # noqa: ANN401 - torch.autograd.profiler
    """Wrap a module's three functions; False if it does not have them, and is not changed."""
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
    """Undo `install`, unless other code has wrapped the functions since."""
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

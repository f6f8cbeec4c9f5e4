"""Requests that wait for orders: futures by target, woken from any thread, without threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class Hub:
    """Wakes sidecars that wait, when something of their target changes.

    A wake-up only makes the request read its orders again; a needless one is harmless.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}
        self.closing = False
        """Whether the server is about to end, so that no request waits."""

    @property
    def waiting(self) -> int:
        """How many wait."""
        with self._lock:
            return sum(len(each) for each in self._waiting.values())

    def changed(self, target: str) -> None:
        """Wake all that wait for a target; from any thread."""
        with self._lock:
            woken = self._waiting.pop(target, set())
        for future in woken:
            with suppress(RuntimeError):  # its loop has ended
                future.get_loop().call_soon_threadsafe(_wake, future)

    def close(self) -> None:
        """Wake all requests, and let none wait any more: the server is about to end."""
        self.closing = True
        with self._lock:
            targets = list(self._waiting)
        for target in targets:
            self.changed(target)

    @contextmanager
    def listening(self, target: str) -> Iterator[asyncio.Future[None]]:
        """Begin to listen, before one looks, so that no change in between is missed."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        with self._lock:
            self._waiting.setdefault(target, set()).add(future)
        try:
            yield future
        finally:
            future.cancel()
            with self._lock:
                others = self._waiting.get(target)
                if others is not None:
                    others.discard(future)
                    if not others:
                        del self._waiting[target]


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)

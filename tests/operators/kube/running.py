"""Reflectors, leaders and managers in threads that end with the test."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

WITHIN_S = 120.0


class Clock:
    """A clock that moves only when it is told to: a busy machine costs nobody a lease."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def eventually(look: Callable[[], bool], what: str = "it did not come to that") -> None:
    """Wait until something is so, for two minutes at most: the machine may be busy."""
    end = time.monotonic() + WITHIN_S
    while not look():
        if time.monotonic() > end:
            pytest.fail(what)
        time.sleep(0.01)


@contextmanager
def in_thread(
    run: Callable[[threading.Event], object], wake: Callable[[], None] = lambda: None
) -> Iterator[threading.Event]:
    """Run something until the block ends; `wake` ends what it waits in."""
    stop = threading.Event()
    thread = threading.Thread(target=run, args=(stop,))
    thread.start()
    try:
        yield stop
    finally:
        stop.set()
        wake()
        thread.join(WITHIN_S)
        assert not thread.is_alive()

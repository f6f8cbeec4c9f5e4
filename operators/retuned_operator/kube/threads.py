"""Threads that end with the program, and are waited for when it ends in order."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

log = logging.getLogger(__name__)

_JOIN_S = 20.0


def in_thread(name: str, target: Callable[..., None], *arguments: object) -> threading.Thread:
    """Start a thread that does not keep the program alive."""
    thread = threading.Thread(target=target, args=arguments, name=name, daemon=True)
    thread.start()
    return thread


def join(threads: Sequence[threading.Thread], *, within_s: float = _JOIN_S) -> None:
    """Wait for threads, all in all so many seconds; say which did not end."""
    end = time.monotonic() + within_s
    for each in threads:
        each.join(max(0.0, end - time.monotonic()))
        if each.is_alive():
            log.error("%s did not end in time", each.name)

"""Recapture of graphs by the server, where changing their nodes is not enough.

A server that can capture its graphs again registers a callback. While the callback runs, slots
whose order is fully active are captured with their variant. Changing nodes does not reach these
launches. So a rollback calls the callback again, without a request, and until it has ended the
graphs continue to launch the variant.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from retuned.runtime.schema import Refused

log = logging.getLogger(__name__)

Capture = Callable[[], object]
"""Captures graphs again and makes the server replay the new ones; returns when that is done."""

RECORDED = "recorded"
"""Reason code of a node that was captured with a variant which must no longer run there."""


class Recapture:
    """Callbacks that can capture again, and whether a recapture is needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._offers: list[Capture] = []
        self._thread: int | None = None
        self.wanted = False
        self.failures = 0

    @property
    def offers(self) -> int:
        return len(self._offers)

    @property
    def under_way(self) -> bool:
        return self._thread is not None

    def offer(self, capture: Capture) -> Callable[[], None]:
        """Register a callback; return the function that withdraws it."""
        self._offers.append(capture)

        def withdraw() -> None:
            if capture in self._offers:
                self._offers.remove(capture)

        return withdraw

    def run(self) -> int:
        """Let every part of the server capture again; return how many did.

        Raises
        ------
        Refused
            ``recapture-unavailable`` if no callback is registered, ``recapture-under-way`` or
            ``recapture-failed``; the earlier graphs continue to be replayed.
        """
        offers = list(self._offers)
        if not offers:
            detail = "no part of this server has registered a callback by Runtime.graph"
            raise Refused("recapture-unavailable", detail=detail)
        with self._alone():
            self.wanted = False
            for capture in offers:
                try:
                    capture()
                except Exception as error:  # the server's own code may raise anything
                    self.failures += 1
                    self.wanted = True
                    log.exception("capturing graphs again failed")
                    raise Refused("recapture-failed", detail=repr(error)[:300]) from error
        return len(offers)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        if not self._lock.acquire(blocking=False):
            raise Refused("recapture-under-way", detail="try again when it has ended")
        self._thread = threading.get_ident()
        try:
            yield
        finally:
            self._thread = None
            self._lock.release()

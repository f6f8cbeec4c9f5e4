"""Capturing graphs again, where changing their nodes is not enough; only servers can do it.

A server that can capture its graphs again says so by a callback. While it runs, slots whose order
is fully in force are recorded with their variant. What was recorded so is not reached by a change
of nodes any more: on the way back the callback is called again, without being asked for, and until
it has ended the graphs go on with the variant.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from retuned.runtime.schema import Refused

log = logging.getLogger(__name__)

Capture = Callable[[], object]
"""Captures graphs again and lets the server replay the new ones; returns when that is done."""

RECORDED = "recorded"
"""Reason of a node that was captured with a variant which is no longer to run there."""


class Recapture:
    """Who can capture again, and whether it is wanted."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._offers: list[Capture] = []
        self._thread: int | None = None
        self.wanted = False
        """Whether graphs hold a variant that is no longer in force."""
        self.failures = 0
        """Callbacks that have raised."""

    @property
    def offers(self) -> int:
        """How many callbacks there are."""
        return len(self._offers)

    @property
    def under_way(self) -> bool:
        """Whether graphs are being captured again at this moment."""
        return self._thread is not None

    def offer(self, capture: Capture) -> Callable[[], None]:
        """Register a callback; return what withdraws it."""
        self._offers.append(capture)

        def withdraw() -> None:
            if capture in self._offers:
                self._offers.remove(capture)

        return withdraw

    def run(self) -> int:
        """Let every server part capture again; return how many did.

        Raises
        ------
        Refused
            ``recapture-unavailable`` if no callback is registered, ``recapture-under-way`` or
            ``recapture-failed``; what was captured before goes on being replayed.
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
                except Exception as error:  # the server's own code: whatever it raises
                    self.failures += 1
                    self.wanted = True
                    log.exception("capturing graphs again failed")
                    raise Refused("recapture-failed", detail=repr(error)[:300]) from error
        return len(offers)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        if not self._lock.acquire(blocking=False):
            raise Refused("recapture-under-way", detail="ask again when it has ended")
        self._thread = threading.get_ident()
        try:
            yield
        finally:
            self._thread = None
            self._lock.release()

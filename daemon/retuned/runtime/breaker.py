"""The circuit breaker of a process: what was taken back stays back until somebody says otherwise.

An order that trips opens the breaker of its kernel for its artifact: no later order brings that
artifact into that slot again, and there is no waiting time after which it is tried. When several
kernels trip, something is wrong with more than a kernel, and the breaker of the whole process
opens: every slot serves its original. Only the order to arm again closes a breaker.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

PROCESS_LIMIT = 3
"""Kernels that trip before the whole process goes back."""


class Breaker:
    """Which artifacts of which slots may not run in this process.

    Parameters
    ----------
    limit
        Kernels that trip before the whole process goes back.
    """

    def __init__(self, limit: int = PROCESS_LIMIT) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._open: dict[str, dict[str, str]] = {}
        self._process = ""

    @property
    def process(self) -> str:
        """Why no slot of the process may run a variant; empty while they may."""
        return self._process

    def state(self) -> dict[str, Mapping[str, str]]:
        """Return the reasons by slot and artifact."""
        with self._lock:
            return {slot: dict(artifacts) for slot, artifacts in self._open.items()}

    def open(self, slot: str, artifact: str, *, reason: str) -> bool:
        """Note that an artifact was taken back; True if that opens the breaker of the process."""
        with self._lock:
            self._open.setdefault(slot, {}).setdefault(artifact, reason)
            if self._process or len(self._open) < self._limit:
                return False
            self._process = f"{len(self._open)} kernels were taken back, the last for {reason}"
            return True

    def refuses(self, slot: str, artifact: str) -> str | None:
        """Return why an artifact may not run in a slot; None if it may."""
        with self._lock:
            return self._process or self._open.get(slot, {}).get(artifact)

    def arm(self, slot: str | None = None) -> bool:
        """Close the breaker of a slot, or of the process with all its slots; True if it was open.

        While the process's own breaker is open, arming one slot does not arm that slot: what is
        wrong is not known to be that slot's.
        """
        with self._lock:
            if slot is None:
                was_open = bool(self._process or self._open)
                self._open.clear()
                self._process = ""
                return was_open
            if self._process:
                return False
            return self._open.pop(slot, None) is not None

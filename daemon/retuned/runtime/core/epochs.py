"""Epochs and terms: process identity, the daemon that may give orders, prepared variants.

Epochs order the orders of one slot. Terms order daemons: each daemon takes a term higher than any
that a process of the server has received, and sends it with every request that changes something.
From then on, the runtime refuses requests of an earlier daemon.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from retuned.runtime.schema import Refused

PREPARED_FOR_S = 900.0
"""A prepared variant that is not committed is dropped after this time, seconds."""
MAX_HISTORY = 64
"""Orders remembered per slot, to answer a repeated order."""
_MAX_TERM = 2**53


class Fence:
    """Refuses daemons that a later daemon has replaced."""

    def __init__(self) -> None:
        self.term = 0
        """Highest term received; 0 before the first."""
        self._lock = threading.Lock()

    def admit(self, request: Mapping[str, Any]) -> None:
        """Admit a request of the newest daemon, and remember its term.

        A request without a term passes while no daemon has sent one.

        Raises
        ------
        Refused
            ``former-daemon`` or ``bad-request``.
        """
        term = request.get("term", 0)
        if not isinstance(term, int) or isinstance(term, bool) or not 0 <= term <= _MAX_TERM:
            raise Refused("bad-request", detail=f"'term' must be a number from 0 to {_MAX_TERM}")
        with self._lock:
            if term < self.term:
                detail = f"term {term} has ended, a daemon of term {self.term} drives this server"
                raise Refused("former-daemon", detail=detail)
            self.term = term


class Ledger:
    """The epochs of one slot: executed orders, and prepared variants."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.epoch = 0
        self._clock = clock
        self._done: OrderedDict[str, int] = OrderedDict()
        self._prepared: dict[str, float] = {}

    def done(self, order: str) -> int | None:
        """Return how long the flip of an order took, ns; None if it was not executed here."""
        return self._done.get(order)

    def check(self, epoch: int) -> None:
        """Verify that an epoch is later than the last.

        Raises
        ------
        Refused
            ``stale-epoch``.
        """
        if epoch <= self.epoch:
            raise Refused("stale-epoch", detail=f"epoch {epoch} is not after {self.epoch}")

    def carried_out(self, order: str, *, epoch: int, artifact: str | None, flip_ns: int) -> None:
        self.epoch = epoch
        self._done[order] = flip_ns
        while len(self._done) > MAX_HISTORY:
            self._done.popitem(last=False)
        if artifact is not None:
            self._prepared.pop(artifact, None)

    def prepared(self, artifact: str) -> None:
        self._prepared[artifact] = self._clock()

    def renew(self, artifact: str) -> None:
        """Renew the lease if there is one; a committed variant needs no lease."""
        if artifact in self._prepared:
            self.prepared(artifact)

    def release(self, artifact: str) -> bool:
        """End the lease; False if there is none: then the variant is, or was, active."""
        return self._prepared.pop(artifact, None) is not None

    def expired(self) -> list[str]:
        before = self._clock() - PREPARED_FOR_S
        gone = [artifact for artifact, since in list(self._prepared.items()) if since < before]
        return [artifact for artifact in gone if self.release(artifact)]


def new_instance() -> str:
    """Return a name that is unique to this start of the process; a forked child has another one."""
    return f"{os.getpid()}-{_started()}-{secrets.token_hex(4)}"


def rank_of_environment() -> str:
    """Return this process's rank as set by launchers of parallel servers; empty if not set."""
    rank = number_of_environment("RANK", "LOCAL_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")
    return "" if rank is None else str(rank)


def number_of_environment(*names: str) -> int | None:
    """Return the first of these variables that is a valid number of processes; None if none is."""
    for name in names:
        text = os.environ.get(name, "")
        if text.isascii() and text.isdigit() and len(text) < 8:
            return int(text)
    return None


def _started() -> int:
    """Return when the kernel started this process, in ticks since boot; 0 if unknown."""
    try:
        with open("/proc/self/stat", encoding="ascii", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
        return int(fields[19])
    except (OSError, ValueError, IndexError):
        return 0

"""Who this process is, whose orders it takes, and what is prepared and not committed.

Orders of one slot are in sequence by their epochs. Daemons are in sequence by their terms: each
takes a higher one than any process of the server has heard of, and tells it with everything that
changes something. From then on what a former daemon has sent, or sends still, is refused.
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
"""A prepared variant without a commit is dropped after this time, seconds."""
MAX_HISTORY = 64
"""Orders remembered per slot, to answer a repeated one."""
_MAX_TERM = 2**53


class Fence:
    """Refuses daemons that another one has followed."""

    def __init__(self) -> None:
        self.term = 0
        """Highest term heard of; 0 before the first."""
        self._lock = threading.Lock()

    def admit(self, request: Mapping[str, Any]) -> None:
        """Let a request of the newest daemon pass, and remember its term.

        Where no daemon has ever told a term, one that tells none passes too.

        Raises
        ------
        Refused
            ``former-daemon`` or ``bad-request``.
        """
        term = request.get("term", 0)
        if not isinstance(term, int) or isinstance(term, bool) or not 0 <= term <= _MAX_TERM:
            raise Refused("bad-request", detail=f"'term' is no whole number to {_MAX_TERM}")
        with self._lock:
            if term < self.term:
                detail = f"term {term} has ended, a daemon of term {self.term} drives this server"
                raise Refused("former-daemon", detail=detail)
            self.term = term


class Ledger:
    """The epochs of one slot: what is done, and what is prepared.

    Parameters
    ----------
    clock
        Monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.epoch = 0
        """Last order carried out."""
        self._clock = clock
        self._done: OrderedDict[str, int] = OrderedDict()
        self._prepared: dict[str, float] = {}

    def done(self, order: str) -> int | None:
        """Return how long the flip of an order took, ns; None if it was not carried out here."""
        return self._done.get(order)

    def check(self, epoch: int) -> None:
        """Make sure that an epoch comes after the last.

        Raises
        ------
        Refused
            ``stale-epoch``.
        """
        if epoch <= self.epoch:
            raise Refused("stale-epoch", detail=f"epoch {epoch} is not after {self.epoch}")

    def carried_out(self, order: str, *, epoch: int, artifact: str | None, flip_ns: int) -> None:
        """Remember an order that was carried out."""
        self.epoch = epoch
        self._done[order] = flip_ns
        while len(self._done) > MAX_HISTORY:
            self._done.popitem(last=False)
        if artifact is not None:
            self._prepared.pop(artifact, None)

    def prepared(self, artifact: str) -> None:
        """Begin or renew the lease of a variant."""
        self._prepared[artifact] = self._clock()

    def renew(self, artifact: str) -> None:
        """Renew the lease if there is one; what was committed once needs none."""
        if artifact in self._prepared:
            self.prepared(artifact)

    def release(self, artifact: str) -> bool:
        """End the lease; False if there is none: then it is, or was, in force."""
        return self._prepared.pop(artifact, None) is not None

    def expired(self) -> list[str]:
        """End the leases that ran out, and return their artifacts."""
        before = self._clock() - PREPARED_FOR_S
        gone = [artifact for artifact, since in list(self._prepared.items()) if since < before]
        return [artifact for artifact in gone if self.release(artifact)]


def new_instance() -> str:
    """Return a name that no other start of this process has, nor a child that is forked from it."""
    return f"{os.getpid()}-{_started()}-{secrets.token_hex(4)}"


def rank_of_environment() -> str:
    """Return this process's rank as launchers of parallel servers say it; empty if they do not."""
    rank = number_of_environment("RANK", "LOCAL_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")
    return "" if rank is None else str(rank)


def number_of_environment(*names: str) -> int | None:
    """Return the first of these variables that is a number of processes; None where none is."""
    for name in names:
        text = os.environ.get(name, "")
        if text.isascii() and text.isdigit() and len(text) < 8:
            return int(text)
    return None


def _started() -> int:
    """When the kernel started this process, in ticks since boot; 0 if unknown."""
    try:
        with open("/proc/self/stat", encoding="ascii", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
        return int(fields[19])
    except (OSError, ValueError, IndexError):
        return 0

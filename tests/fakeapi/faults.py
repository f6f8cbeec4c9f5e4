"""What can go wrong between a client and an API server, on demand."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field


@dataclass(slots=True, kw_only=True)
class Fault:
    """One thing that goes wrong with the next requests that it fits."""

    verb: str = ""
    """get, list, watch, create, update, patch or delete; empty means any."""
    plural: str = ""
    """Kind; empty means any."""
    name: str = ""
    """Object; empty means any."""
    times: int = 1
    """How often it happens; -1 means until it is taken away."""
    skip: int = 0
    """How many requests that fit go well before."""
    latency_s: float = 0.0
    """The answer comes so much later."""
    status: int = 0
    """The answer is this and nothing is done; 0 means it is done."""
    retry_after: str = ""
    """Header of that answer."""
    drop: str = ""
    """The connection breaks: ``before`` or ``after`` it is done; of a watch, as it begins."""
    stall: bool = False
    """A watch is accepted and never says anything."""
    hits: int = field(default=0, init=False)
    """How often it happened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A request that came."""

    verb: str
    plural: str
    namespace: str
    name: str
    subresource: str
    user: str


class Faults:
    """The faults that are waiting, and the requests that came; safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[Fault] = []
        self._seen: list[Seen] = []

    def add(self, fault: Fault) -> Fault:
        with self._lock:
            self._waiting.append(fault)
        return fault

    def clear(self) -> None:
        with self._lock:
            self._waiting.clear()

    def seen(self, verb: str = "", plural: str = "") -> list[Seen]:
        """Return the requests that came, oldest first."""
        with self._lock:
            return [e for e in self._seen if verb in ("", e.verb) and plural in ("", e.plural)]

    def meet(self, request: Seen) -> Fault | None:
        """Note a request and return what is to go wrong with it."""
        with self._lock:
            self._seen.append(request)
            for fault in self._waiting:
                fits = fault.verb in ("", request.verb) and fault.plural in ("", request.plural)
                if not fits or fault.name not in ("", request.name) or fault.times == 0:
                    continue
                if fault.skip:
                    fault.skip -= 1
                    continue
                fault.times -= 1
                fault.hits += 1
                return fault
        return None

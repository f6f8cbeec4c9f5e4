"""Supervisor of all orders of a process: canary steps, circuit breaker, lease.

The daemon advances a canary; the runtime never does. If the daemon sends no request for longer than
the lease, an unfinished canary is an orphan: it keeps its fraction or rolls back, as its order
defines.

The circuit breaker of the process refuses an artifact that tripped until an order arms it again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from retuned.runtime.core.active_order import Swapped
from retuned.runtime.core.canary import BLOCK
from retuned.runtime.core.orders import Order, parse_bucket, parse_fraction
from retuned.runtime.core.slots import Slot
from retuned.runtime.schema import Refused

PROCESS_LIMIT = 3


class Breaker:
    """Artifacts that may not run in a slot of this process."""

    def __init__(self, limit: int = PROCESS_LIMIT) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._open: dict[str, dict[str, str]] = {}
        self._process = ""

    @property
    def process(self) -> str:
        """Reason why no slot of the process may run a variant; empty if slots may."""
        return self._process

    def state(self) -> dict[str, Mapping[str, str]]:
        with self._lock:
            return {slot: dict(artifacts) for slot, artifacts in self._open.items()}

    def open(self, slot: str, artifact: str, *, reason: str) -> bool:
        """Record that an artifact tripped; return True if that opens the breaker of the process."""
        with self._lock:
            self._open.setdefault(slot, {}).setdefault(artifact, reason)
            if self._process or len(self._open) < self._limit:
                return False
            self._process = f"{len(self._open)} kernels tripped, the last for {reason}"
            return True

    def refuses(self, slot: str, artifact: str) -> str | None:
        with self._lock:
            return self._process or self._open.get(slot, {}).get(artifact)

    def arm(self, slot: str | None = None) -> bool:
        """Close the breaker of a slot, or of the process with all its slots; True if it was open.

        While the process's own breaker is open, arming one slot does not arm that slot: the cause
        is not known to be in that slot.
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


log = logging.getLogger(__name__)

MAX_EXCLUDED = 256
_PROCESS = "process-breaker"


class Supervision:
    """Supervises the orders of a process."""

    def __init__(
        self, slots: Callable[[], Iterable[Slot]], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.breaker = Breaker()
        self._slots = slots
        self._clock = clock
        self._heard_s = clock()
        self._lock = threading.Lock()

    @property
    def unasked_s(self) -> float:
        return max(0.0, self._clock() - self._heard_s)

    def heard(self) -> None:
        """Record a request of the daemon for its orders: the lease is renewed."""
        self._heard_s = self._clock()

    def admit(self, order: Order) -> None:
        """Check an order against the circuit breaker.

        Raises
        ------
        Refused
            ``breaker-open``.
        """
        if order.artifact is None:
            return
        reason = self.breaker.refuses(order.definition, order.artifact)
        if reason is not None:
            raise Refused(
                "breaker-open",
                detail=f"{order.definition}: {order.artifact} tripped here ({reason}); "
                "arm the breaker to admit it again",
            )

    def tripped(self, swapped: Swapped, reason: str) -> None:
        """Open the breaker of an order that tripped; with too many of them, that of every slot.

        An orphan did no harm: its artifact may be ordered again.
        """
        if reason in ("orphaned", _PROCESS) or swapped.artifact is None:
            return
        if self.breaker.open(swapped.order.definition, swapped.artifact, reason=reason):
            log.error("every slot rolls back to its original: %s", self.breaker.process)
            for slot, order in self._in_force():
                if order.artifact is not None and order is not swapped:
                    slot.replace(order, state=f"tripped:{_PROCESS}")

    def tend(self) -> None:
        """Handle canaries whose daemon sends no requests; called by the idle control thread."""
        silent_s = self.unasked_s
        for _, swapped in self._in_force():
            order = swapped.order
            unfinished = order.lease_s > 0.0 and swapped.live.share < BLOCK
            orphaned = unfinished and silent_s > order.lease_s
            if orphaned and not swapped.orphaned:
                log.warning("%s: no daemon request for %.0f s", order.definition, silent_s)
            swapped.orphaned = orphaned
            if orphaned and order.orphan == "rollback":
                swapped.trip("orphaned", f"no daemon request for {silent_s:.0f} s")

    def ramp(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Change the fraction of launches that run the variant of the active order.

        Raises
        ------
        Refused
            ``order-invalid`` or ``bad-request``; ``stale-epoch`` if another order is active.
        """
        self.heard()
        fraction = parse_fraction(request.get("fraction"))
        rows = request.get("excluded") or []
        if not isinstance(rows, (list, tuple)) or len(rows) > MAX_EXCLUDED:
            raise Refused("bad-request", detail=f"'excluded' is not a list of up to {MAX_EXCLUDED}")
        excluded = [parse_bucket(row) for row in rows]
        epoch, definition = request.get("epoch"), request.get("definition")
        for slot, swapped in self._in_force():
            if slot.spec.name != definition:
                continue
            named = request.get("artifact", swapped.artifact)
            if swapped.epoch != epoch or swapped.artifact is None or named != swapped.artifact:
                raise Refused("stale-epoch", detail=f"epoch {swapped.epoch} is active")
            start_ns = time.perf_counter_ns()
            with self._lock:
                swapped.ramp(fraction, excluded=excluded)
            return {"flip_ns": time.perf_counter_ns() - start_ns, "fraction": swapped.live.fraction}
        raise Refused("stale-epoch", detail=f"no order of {definition!r:.150} is active")

    def rearm(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Close the breaker of a slot; with null, that of the process and of all its slots.

        Raises
        ------
        Refused
            ``bad-request``.
        """
        definition = request.get("definition")
        if definition is not None and not isinstance(definition, str):
            raise Refused("bad-request", detail="'definition' must be a slot or null")
        return {"was_open": self.breaker.arm(definition), "process": self.breaker.process}

    def _in_force(self) -> list[tuple[Slot, Swapped]]:
        found = [(slot, slot.table.in_force) for slot in list(self._slots())]
        return [(slot, order) for slot, order in found if isinstance(order, Swapped)]

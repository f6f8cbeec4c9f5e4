"""Who may act: one Lease, held by one operator.

Times are compared on one's own monotonic clock only: a lease is free when it has not changed for
its whole duration while one watched, whatever the clocks of others say. Who holds it stops to act
after `renew_deadline_s` without a renewal, counted from before the last one was sent; the next one
begins after `duration_s` at the earliest, counted from when it saw that renewal. The time between
the two is for writes that are under way.

The rules of a lease are pure: how long it lasts, and what one observes of it.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from retuned_operator.kube.backoff import Backoff
from retuned_operator.kube.client import Api
from retuned_operator.kube.errors import ApiError, Conflict, NotFound
from retuned_operator.kube.resources import LEASES, Obj
from retuned_operator.kube.transport import Timeouts


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTimes:
    """How long a lease holds, all in seconds."""

    duration_s: float = 30.0
    """Without a renewal for so long, it is another's."""
    renew_deadline_s: float = 20.0
    """Without a renewal for so long, who holds it stops: several tries, also where a machine is so
    busy that each takes seconds."""
    renew_s: float = 2.0
    """From the start of a renewal to the next, and between reads of another's lease."""
    fresh_s: float = 6.0
    """A confirmation is good for so long; after it the lease is read before a write."""

    def __post_init__(self) -> None:
        ordered = 0 < self.renew_s < self.fresh_s <= self.renew_deadline_s < self.duration_s
        if not ordered:
            raise ValueError(f"renew < fresh <= deadline < duration does not hold: {self}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedLease:
    """A lease as it was seen."""

    version: str
    """Its ``resourceVersion``."""
    holder: str
    """Its holder; empty if it is free."""
    duration_s: float
    """How long it lasts after a renewal, as its holder wrote."""
    since_s: float
    """When this version was first seen, on one's own clock."""


def observed(body: Obj, before: ObservedLease | None, *, now_s: float) -> ObservedLease:
    """Return a lease as it is now, with the time since when it is so.

    Examples
    --------
    >>> body = {"metadata": {"resourceVersion": "3"}, "spec": {"holderIdentity": "a"}}
    >>> first = observed(body, None, now_s=10.0)
    >>> observed(body, first, now_s=12.0).since_s
    10.0
    """
    version = str(body["metadata"]["resourceVersion"])
    if before is not None and before.version == version:
        return before
    duration: Any = (body.get("spec") or {}).get("leaseDurationSeconds")
    return ObservedLease(
        version=version,
        holder=holder_of(body),
        duration_s=float(duration) if isinstance(duration, int) and duration > 0 else 0.0,
        since_s=now_s,
    )


def may_take(seen: ObservedLease, me: str, *, now_s: float, times: LeaseTimes) -> bool:
    """Return whether a lease is one's own or free.

    The longer of both durations counts: another version of the operator may have another.

    Examples
    --------
    >>> seen = ObservedLease(version="1", holder="a", duration_s=15.0, since_s=0.0)
    >>> may_take(seen, "a", now_s=1.0, times=LeaseTimes())
    True
    >>> may_take(seen, "b", now_s=29.0, times=LeaseTimes())
    False
    >>> may_take(seen, "b", now_s=30.0, times=LeaseTimes())
    True
    """
    if seen.holder in ("", me):
        return True
    return now_s - seen.since_s >= max(seen.duration_s, times.duration_s)


def holder_of(body: Obj) -> str:
    """Return the holder of a lease; empty if it is free."""
    return str((body.get("spec") or {}).get("holderIdentity") or "")


log = logging.getLogger(__name__)

LEASE_TIMEOUTS = Timeouts(connect_s=2.0, answer_s=4.0)
"""Of the connection that the elector has for itself: a request ends long before the deadline."""
_PAUSE_S = 0.1
"""Shortest time between two renewals."""
EXIT_LOST = 1
"""Exit code of an operator that lost its lease."""


class NotLeading(Conflict):
    """Another operator leads, or may lead by now; nothing may be written."""

    code = "not-leading"


class Leader:
    """One contender for a lease.

    Parameters
    ----------
    api
        The API server; with `LEASE_TIMEOUTS`.
    name, namespace
        Of the lease.
    identity
        Who contends; unique to this process, such as the pod's name and uid.
    times
        See `LeaseTimes`.
    on_lost
        Called once when the lease is lost; by default the process ends immediately, because its
        threads have no right to write any more.
    clock
        Monotonic seconds.
    """

    def __init__(
        self,
        api: Api,
        name: str,
        *,
        namespace: str,
        identity: str,
        times: LeaseTimes | None = None,
        on_lost: Callable[[], None] = lambda: os._exit(EXIT_LOST),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not identity:
            raise ValueError("a leader has an identity")
        self.identity = identity
        self.times = times or LeaseTimes()
        self._api = api
        self._name, self._namespace = name, namespace
        self._on_lost = on_lost
        self._clock = clock
        self._seen: ObservedLease | None = None
        self._mine_last: Obj | None = None
        """The lease as the last renewal left it; None where it is to be read first."""
        self._confirmed_s = -float("inf")
        """When the request was sent whose answer last confirmed this leader."""
        self._lost = False
        self._reading = threading.Lock()
        """Held by the one writer that reads the lease; never by who renews it."""
        self._reads = self._read_well = 0
        """How many reads writers have sent, and the number of the last that found it its own."""

    # --- asked by who writes ----------------------------------------------------------------------

    def confirm(self) -> None:
        """Make sure that this one leads; the guard of every write.

        After a pause (a stopped process, a moved machine) the lease is read again first.

        Raises
        ------
        ApiError
            `NotLeading`, or why it could not be found out: either way nothing may be written.
        """
        if not self.is_leading():
            raise NotLeading(f"{self.identity} does not lead")
        if self._clock() - self._confirmed_s <= self.times.fresh_s:
            return
        before = self._reads
        with self._reading:  # all that ask while one reads take the same answer, which came later
            if self._read_well <= before:
                self._confirm_by_reading()
        if not self.is_leading():
            raise NotLeading(f"{self.identity} was answered too late")

    def _confirm_by_reading(self) -> None:
        """Read the lease for all who are about to write.

        Raises
        ------
        ApiError
            As `confirm`.
        """
        self._reads += 1
        sent, body = self._clock(), self._read()
        if body is None or holder_of(body) != self.identity:
            raise NotLeading(f"{self.identity} does not lead any more")
        # it was its own when it was read; when it ends is counted from the renewal as before
        if self._clock() - sent > self.times.fresh_s or not self.is_leading():
            raise NotLeading(f"{self.identity} was answered too late")
        self._read_well = self._reads

    def is_leading(self) -> bool:
        """Say whether this one leads for all that it knows itself."""
        if self._lost:
            return False
        return self._clock() - self._confirmed_s < self.times.renew_deadline_s

    # --- the elector's thread ---------------------------------------------------------------------

    def acquire(self, stop: threading.Event) -> bool:
        """Wait until this one leads; False if `stop` was set before."""
        failures, backoff = 0, Backoff(first_s=self.times.renew_s, most_s=self.times.duration_s)
        while not stop.is_set():
            try:
                if self._try():
                    log.info("%s leads", self.identity)
                    return True
                failures = 0
            except ApiError as error:
                failures += 1
                log.warning("lease %s: %s", self._name, error)
            stop.wait(backoff.delay_s(max(failures, 1)))
        return False

    def hold(self, stop: threading.Event) -> None:
        """Renew until `stop` is set, then give the lease away; or lose it and call `on_lost`."""
        wait_s = self.times.renew_s
        while not stop.wait(wait_s):
            began = self._clock()
            try:
                held = self._try()
            except ApiError as error:
                log.warning("lease %s was not renewed: %s", self._name, error)
                held = self.is_leading()  # until the deadline
            except Exception:  # who does not know whether it leads does not lead
                log.exception("lease %s cannot be understood", self._name)
                held = False
            if not held or not self.is_leading():
                self._lost = True
                log.error("%s lost the lease %s", self.identity, self._name)
                self._on_lost()
                return
            # the next begins in time after this one began, so that slow ones leave no longer gaps
            took_s = self._clock() - began
            wait_s = min(max(self.times.renew_s - took_s, _PAUSE_S), self.times.renew_s)
        self._release()

    def _try(self) -> bool:
        """Take or renew the lease if it may be taken; say whether this one leads now."""
        return self._renewed() or self._taken()

    def _renewed(self) -> bool:
        """Renew an unchanged lease by one request; another client's write is a conflict."""
        body, self._mine_last = self._mine_last, None
        if body is None:
            return False
        sent = self._clock()
        try:
            self._hold_as(self._api.replace(LEASES, self._mine(body)), sent_s=sent)
        except (Conflict, NotFound):
            return False
        return True

    def _taken(self) -> bool:
        """Read the lease, and take it or renew it."""
        sent = self._clock()
        body = self._read()
        try:
            if body is None:
                mine = self._api.create(LEASES, self._mine({}))
            elif not may_take(
                self._see(body), self.identity, now_s=self._clock(), times=self.times
            ):
                return False
            else:
                mine = self._api.replace(LEASES, self._mine(body))
        except Conflict:  # another client wrote, or the previous write arrived late
            return self.is_leading()
        self._hold_as(mine, sent_s=sent)
        return True

    def _hold_as(self, body: Obj, *, sent_s: float) -> None:
        """Note that the lease is this one's, as it was written."""
        self._see(body)
        self._mine_last, self._confirmed_s = body, sent_s

    def _read(self) -> Obj | None:
        try:
            return self._api.get(LEASES, self._name, namespace=self._namespace)
        except NotFound:
            return None

    def _see(self, body: Obj) -> ObservedLease:
        self._seen = observed(body, self._seen, now_s=self._clock())
        return self._seen

    def _release(self) -> None:
        """Free the lease for the next holder; if that fails, it starts after the lease expires."""
        self._lost = True
        try:
            body = self._read()
            if body is not None and holder_of(body) == self.identity:
                spec = {**body["spec"], "holderIdentity": "", "leaseDurationSeconds": 1}
                self._api.replace(LEASES, {**body, "spec": spec})
        except ApiError as error:
            log.warning("lease %s was not given away: %s", self._name, error)

    def _mine(self, body: Obj) -> Obj:
        """Return the lease as this one writes it."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = dict(body.get("spec") or {})
        if holder_of(body) != self.identity:
            spec["acquireTime"] = now
            spec["leaseTransitions"] = int(spec.get("leaseTransitions") or 0) + bool(body)
        spec["holderIdentity"] = self.identity
        spec["leaseDurationSeconds"] = round(self.times.duration_s)
        spec["renewTime"] = now
        named = {"metadata": {"name": self._name, "namespace": self._namespace}}
        return {**(body or named), "spec": spec}

"""When a lease is somebody's: how long it holds, and what is seen of it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from retuned_operator.runtime.resources import Obj


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTimes:
    """How long a lease holds, all in seconds."""

    duration_s: float = 30.0
    """Without a renewal for so long, it is another's."""
    renew_deadline_s: float = 20.0
    """Without a renewal for so long, who holds it stops: several tries, also where a machine is so
    busy that each takes seconds."""
    renew_s: float = 2.0
    """From the begin of a renewal to the next, and between looks at another's lease."""
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
    """Who holds it; empty if nobody."""
    duration_s: float
    """For how long after a renewal, as its holder says."""
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
    >>> seen = Seen(version="1", holder="a", duration_s=15.0, since_s=0.0)
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
    """Return who holds a lease; empty if nobody."""
    return str((body.get("spec") or {}).get("holderIdentity") or "")

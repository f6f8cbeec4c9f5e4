"""How often one pod may ask: a bucket that fills steadily. Bounded in memory. Pure but for time."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from retuned.ports import Clock

_MAX_KEPT = 20_000


@dataclass(slots=True)
class _Bucket:
    left: float
    at_s: float


class RateLimit:
    """Requests of each pod.

    Parameters
    ----------
    clock
        Time.
    per_s
        Requests a second that a pod may make for ever.
    burst
        Requests that it may make at once.

    Examples
    --------
    >>> from retuned_operator.agent.limits import RateLimit
    >>> class Still:
    ...     def now(self): ...
    ...     def monotonic_s(self): return 0.0
    >>> limit = RateLimit(Still(), per_s=1.0, burst=2)
    >>> [limit.wait_s("pod") for _ in range(3)]
    [0.0, 0.0, 1.0]
    """

    def __init__(self, clock: Clock, *, per_s: float, burst: int) -> None:
        if per_s <= 0.0 or burst < 1:
            raise ValueError(f"a rate of {per_s}/s and a burst of {burst} let nothing pass")
        self._clock = clock
        self._per_s = per_s
        self._burst = float(burst)
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()

    def wait_s(self, who: str) -> float:
        """Count one request; return 0 where it may go on, else how long to wait, seconds."""
        now = self._clock.monotonic_s()
        bucket = self._buckets.setdefault(who, _Bucket(self._burst, now))
        self._buckets.move_to_end(who)
        while len(self._buckets) > _MAX_KEPT:  # who was not heard of longest has a full one again
            self._buckets.popitem(last=False)
        filled = bucket.left + (now - bucket.at_s) * self._per_s
        bucket.left, bucket.at_s = min(self._burst, filled), now
        if bucket.left >= 1.0:
            bucket.left -= 1.0
            return 0.0
        return (1.0 - bucket.left) / self._per_s

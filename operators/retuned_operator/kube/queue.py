"""A queue of keys to reconcile: each key once, one worker a key, and retries after failures.

A key that is added while a worker has it is given out again when that worker is done. So no change
is lost, and no two workers ever have the same key.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from itertools import count

from retuned_operator.kube.backoff import Backoff


class WorkQueue:
    """Keys in the order in which they came; safe for threads.

    Parameters
    ----------
    backoff
        Of keys that failed.
    clock
        Monotonic seconds.
    observe
        Called with the seconds that a key waited, for every key that is given out.
    """

    def __init__(
        self,
        *,
        backoff: Backoff | None = None,
        clock: Callable[[], float] = time.monotonic,
        observe: Callable[[float], None] | None = None,
    ) -> None:
        self._backoff = backoff or Backoff(first_s=0.1, most_s=300.0)
        self._clock = clock
        self._observe = observe or (lambda _: None)
        self._changed = threading.Condition()
        self._waiting: OrderedDict[str, float] = OrderedDict()
        """Keys to give out, with the time since when."""
        self._taken: dict[str, float | None] = {}
        """Keys that a worker has; the time at which it was added again, or None."""
        self._later: list[tuple[float, int, str]] = []
        self._due: dict[str, float] = {}
        """When a delayed key is due; other entries of the heap are outdated."""
        self._failures: dict[str, int] = {}
        self._count = count()
        self._closed = False

    def add(self, key: str) -> None:
        """Queue a key for the next free worker."""
        with self._changed:
            self._add(key, self._clock())

    def add_after(self, key: str, delay_s: float) -> None:
        """Queue a key after some seconds; the earliest requested time counts."""
        if delay_s <= 0:
            self.add(key)
            return
        with self._changed:
            due = self._clock() + delay_s
            if self._closed or key in self._waiting or self._due.get(key, due) < due:
                return
            self._due[key] = due
            heapq.heappush(self._later, (due, next(self._count), key))
            self._changed.notify()

    def retry(self, key: str, *, at_least_s: float = 0.0, at_most_s: float = float("inf")) -> float:
        """Queue a failed key with a growing delay; return the delay in seconds."""
        with self._changed:
            failures = self._failures[key] = self._failures.get(key, 0) + 1
        delay_s = max(min(self._backoff.delay_s(failures), at_most_s), at_least_s)
        self.add_after(key, delay_s)
        return delay_s

    def forget(self, key: str) -> None:
        """Forget that a key ever failed."""
        with self._changed:
            self._failures.pop(key, None)

    def get(self, *, timeout_s: float | None = None) -> str | None:
        """Return the next key; None if there is none in time or the queue is closed.

        Parameters
        ----------
        timeout_s
            Seconds to wait; None waits until there is one.
        """
        end = None if timeout_s is None else self._clock() + timeout_s
        with self._changed:
            while True:
                if self._closed:
                    return None
                now = self._clock()
                next_s = self._mature(now)
                if self._waiting:
                    key, since = self._waiting.popitem(last=False)
                    self._taken[key] = None
                    self._observe(now - since)
                    return key
                left_s = None if end is None else end - now
                if left_s is not None and left_s <= 0:
                    return None
                waits = [each for each in (next_s, left_s) if each is not None]
                self._changed.wait(min(waits) if waits else None)

    def done(self, key: str) -> None:
        """Say that the worker that got a key is done with it."""
        with self._changed:
            added = self._taken.pop(key, None)
            if added is not None:
                self._add(key, added)

    def close(self) -> None:
        """Give out no more keys; waiting workers get None."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def __len__(self) -> int:
        """Return how many keys are due now."""
        with self._changed:
            self._mature(self._clock())
            return len(self._waiting)

    def oldest_s(self) -> float:
        """Return for how long the key that waits longest has waited, in seconds."""
        with self._changed:
            now = self._clock()
            return max((now - since for since in self._waiting.values()), default=0.0)

    def _add(self, key: str, now: float) -> None:
        if self._closed:
            return
        self._due.pop(key, None)  # the pass comes earlier and sets the next delay
        if key in self._taken:
            if self._taken[key] is None:
                self._taken[key] = now
        elif key not in self._waiting:
            self._waiting[key] = now
            self._changed.notify()

    def _mature(self, now: float) -> float | None:
        """Add what is due; return seconds until the next is, or None."""
        while self._later:
            due, _, key = self._later[0]
            if self._due.get(key) != due:
                heapq.heappop(self._later)
            elif due <= now:
                heapq.heappop(self._later)
                self._add(key, due)
            else:
                return due - now
        return None

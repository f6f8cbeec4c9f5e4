"""Service levels while a swap is proven: whether a server meets the bounds of a policy. Pure.

A breach switches the swap off until the server meets the levels again. It says nothing about the
swap, because load has the same effect.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from retuned.stages.gate import ServiceLevels

WINDOW_S = 10.0
"""Time over which latencies are counted, seconds."""
LEAST_COUNT = 20
"""Least number of values for a quantile; of fewer, a single request would decide."""
_SHARE = 0.99


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts of a Prometheus histogram since the server began."""

    ends_s: tuple[float, ...]
    """Upper end of each bucket, seconds, ascending; the last is infinite."""
    counts: tuple[float, ...]
    """Values up to each end, so they ascend as well."""


@dataclass(frozen=True, slots=True)
class Served:
    """Counts of a server's requests; None where the server has no such count."""

    at_s: float
    """When it was read, seconds of a monotonic clock."""
    first_token: Histogram | None = None
    """Time to the first token."""
    between_tokens: Histogram | None = None
    """Time between two tokens."""
    waiting: float | None = None
    """Requests that wait now."""


def breach(before: Served, after: Served, bounds: ServiceLevels) -> str:
    """Return which bound is not met, a phrase; empty if all are.

    A bound whose count the server does not have is a breach.

    Parameters
    ----------
    before, after
        Counts at the begin and at the end of the judged time; `continues` holds for them.
    bounds
        Service levels of the policy.

    Examples
    --------
    >>> breach(Served(0.0), Served(9.0, waiting=3.0), ServiceLevels(max_queue=2))
    '3 requests wait, more than 2'
    """
    latencies = (
        ("first token", before.first_token, after.first_token, bounds.ttft_p99_ms),
        ("token to token", before.between_tokens, after.between_tokens, bounds.itl_p99_ms),
    )
    for name, earlier, later, bound_ms in latencies:
        if bound_ms is None:
            continue
        counts = _between(earlier, later)
        if later is None or counts is None:
            return f"{name}: the server has no counts"
        found_s = _quantile(later.ends_s, counts)
        if found_s is not None and found_s * 1e3 > bound_ms:
            return f"{name}: p99 is {_words(found_s)}, above {bound_ms} ms"
    if bounds.max_queue is None:
        return ""
    if after.waiting is None:
        return "the server does not count waiting requests"
    if after.waiting > bounds.max_queue:
        return f"{after.waiting:g} requests wait, more than {bounds.max_queue}"
    return ""


def continues(before: Served, after: Served) -> bool:
    """Return whether the counts continue; a restart of the server resets them."""
    pairs = (
        (before.first_token, after.first_token),
        (before.between_tokens, after.between_tokens),
    )
    return all(a is None or b is None or _between(a, b) is not None for a, b in pairs)


def _between(before: Histogram | None, after: Histogram | None) -> list[float] | None:
    """Return the values of each bucket between two readings; None if they do not continue."""
    if after is None or not after.ends_s or after.ends_s[-1] != math.inf:
        return None
    earlier: Sequence[float] = [0.0] * len(after.counts)
    if before is not None:
        if before.ends_s != after.ends_s:
            return None
        earlier = before.counts
    if not all(map(math.isfinite, (*earlier, *after.counts))):
        return None
    grown = [late - early for early, late in zip(earlier, after.counts, strict=True)]
    counts = [high - low for low, high in itertools.pairwise([0.0, *grown])]
    return counts if all(count >= 0.0 for count in counts) else None


def _quantile(ends_s: Sequence[float], counts: Sequence[float]) -> float | None:
    """Return the quantile as Prometheus does, seconds; None where too few values are counted.

    Values above the last finite end count as infinite.
    """
    total = sum(counts)
    if total < LEAST_COUNT:
        return None
    rank, below, start_s = _SHARE * total, 0.0, 0.0
    for end_s, count in zip(ends_s, counts, strict=True):
        if count and below + count >= rank:
            return (
                end_s
                if end_s == math.inf
                else start_s + (end_s - start_s) * ((rank - below) / count)
            )
        below, start_s = below + count, end_s
    return math.inf


def _words(seconds: float) -> str:
    return "beyond the last bucket" if seconds == math.inf else f"{seconds * 1e3:.0f} ms"

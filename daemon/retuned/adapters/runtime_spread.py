"""How far an order has spread over the processes of a server: their reports as one.

The process that is furthest behind speaks for all: a canary goes on when every process is ready.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from retuned.stages.watch import BucketSample, WatchSample


def spread_of(samples: Sequence[WatchSample]) -> dict[str, Any]:
    """Return the fields of a `WatchSample` that say how far an order has spread.

    Parameters
    ----------
    samples
        Of the processes that have the order; at least one.
    """
    fraction = min(sample.fraction for sample in samples)
    behind = [sample for sample in samples if sample.fraction == fraction]
    return {
        "fraction": fraction,
        "fraction_s": min(sample.fraction_s for sample in behind),
        "buckets": _added(samples),
        "excluded": tuple(sorted({name for sample in samples for name in sample.excluded})),
        "orphaned": any(sample.orphaned for sample in samples),
        "shadow_s": sum(sample.shadow_s for sample in samples),
        "throttled_checks": sum(sample.throttled_checks for sample in samples),
        "slowdown": max(sample.slowdown for sample in samples),
    }


def _added(samples: Sequence[WatchSample]) -> tuple[BucketSample, ...]:
    found: dict[tuple[int, ...], BucketSample] = {}
    for each in (row for sample in samples for row in sample.buckets):
        known = found.get(each.bucket)
        if known is None:
            found[each.bucket] = each
            continue
        found[each.bucket] = BucketSample(
            bucket=each.bucket,
            launches=known.launches + each.launches,
            checks=known.checks + each.checks,
            step_checks=known.step_checks + each.step_checks,
        )
    return tuple(sorted(found.values(), key=lambda row: -row.launches))

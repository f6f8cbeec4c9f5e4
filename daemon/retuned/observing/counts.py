"""What the server's slots counted: every launch, by slot and bucket of its lengths."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping

from retuned.errors import TemporaryError
from retuned.observing.context import Observing
from retuned.stages.profile import Counts, WorkloadProfile, bucket, key_of, recount

log = logging.getLogger(__name__)


def totals(ctx: Observing) -> dict[str, dict[str, int]]:
    """Return launches since the server started; empty while it does not answer."""
    try:
        slots = ctx.swapper.slots()
    except TemporaryError as error:
        log.info("no counters: %s", error)
        return {}
    return {slot.definition: _bucketed(ctx, slot.launches) for slot in slots if slot.counted}


def since(before: Counts, now: Counts) -> dict[str, dict[str, int]]:
    """Return what was counted in between; a restarted server counts from zero, which says nothing.

    Examples
    --------
    >>> since({"gemm": {"4": 10}}, {"gemm": {"4": 15, "64": 2}, "new": {"1": 9}})
    {'gemm': {'4': 5, '64': 2}}
    >>> since({"gemm": {"4": 10}}, {"gemm": {"4": 3}})
    {}
    """
    return {
        slot: {
            key: count - before[slot].get(key, 0)
            for key, count in counts.items()
            if count > before[slot].get(key, 0)
        }
        for slot, counts in now.items()
        if slot in before and not _fell(before[slot], counts)
    }


def steady(before: Counts, now: Counts) -> dict[str, Mapping[str, int]]:
    """Return the totals that the next window may be compared with.

    Counts that fell are those of a process that went, or did not answer: when it answers again, the
    difference would be all that it ever launched.

    Examples
    --------
    >>> steady({"gemm": {"4": 10}}, {"gemm": {"4": 3}, "new": {"1": 9}})
    {'new': {'1': 9}}
    """
    return {slot: counts for slot, counts in now.items() if not _fell(before.get(slot, {}), counts)}


def _fell(before: Mapping[str, int], now: Mapping[str, int]) -> bool:
    return any(now.get(key, 0) < count for key, count in before.items())


def with_counts(ctx: Observing, profile: WorkloadProfile, counts: Counts) -> WorkloadProfile:
    """Return a window with its sampled launches replaced by counted ones, as far as known."""
    counted = {}
    for stat in profile.stats:
        signature = stat.signature
        named = ctx.catalog.recognise(signature.kernel, signature.dims, signature.dtypes)
        if named is not None and named[0] in counts:
            counted[signature] = counts[named[0]].get(key_of(named[1].values()), 0)
    return recount(profile, counted)


def _bucketed(ctx: Observing, launches: Mapping[tuple[int, ...], int]) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for key, count in launches.items():
        counts[key_of(bucket(length, ctx.settings.profile) for length in key)] += count
    return dict(counts)

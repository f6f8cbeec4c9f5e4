"""What the server's slots counted: every launch, by slot and bucket of its lengths."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import log as ln

from retuned.contract import Workload
from retuned.errors import TemporaryError
from retuned.local.context import Context
from retuned.stages.hypothesis import ShapeCost
from retuned.stages.profile import WorkloadProfile, bucket, bucket_middle, recount

log = logging.getLogger(__name__)

Counts = Mapping[str, Mapping[str, int]]
"""Launches by slot and by lengths such as ``4`` or ``1x256``: the variable axes in their order."""

_LEAST = 8
"""Launches of a shape that no trace saw, below which nothing is believed of it."""


def totals(ctx: Context) -> dict[str, dict[str, int]]:
    """Return launches since the server started; empty while it does not answer."""
    try:
        slots = ctx.swapper.slots()
    except TemporaryError as error:
        log.info("no counters: %s", error)
        return {}
    return {slot.definition: _bucketed(ctx, slot.launches) for slot in slots}


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


def together(windows: Iterable[Counts]) -> dict[str, dict[str, int]]:
    """Add up several windows."""
    added: dict[str, Counter[str]] = defaultdict(Counter)
    for window in windows:
        for slot, counts in window.items():
            added[slot].update(counts)
    return {slot: dict(counts) for slot, counts in added.items()}


def with_counts(ctx: Context, profile: WorkloadProfile, counts: Counts) -> WorkloadProfile:
    """Return a window with its sampled launches replaced by counted ones, as far as known."""
    counted = {}
    for stat in profile.stats:
        signature = stat.signature
        named = ctx.catalog.recognise(signature.kernel, signature.dims, signature.dtypes)
        if named is not None and named[0] in counts:
            counted[signature] = counts[named[0]].get(_key(named[1].values()), 0)
    return recount(profile, counted)


def floor_ns(ctx: Context, workload: Workload) -> int:
    """Return the roofline in the middle of a bucket: at its edge it would promise too little."""
    axes = {name: bucket_middle(n, ctx.settings.profile) for name, n in workload.axes.items()}
    return ctx.catalog.floor_ns(workload.definition, axes)


def unseen(ctx: Context, known: Sequence[ShapeCost], counts: Mapping[str, int]) -> list[ShapeCost]:
    """Return shapes that were counted but in no trace, timed by the roofline's proportions.

    The nearest shape that was timed lends its time: a guess, good enough to say which shapes an
    experiment should measure.
    """
    if not known:
        return []
    definition, names = known[0].workload.definition, list(known[0].workload.axes)
    seen = {_key(cost.workload.axes.values()) for cost in known}
    overhead = ctx.settings.hypothesis.launch_ns
    found = []
    for key, launches in counts.items():
        lengths = [int(length) for length in key.split("x")]
        if key in seen or launches < _LEAST or len(lengths) != len(names):
            continue
        axes = dict(zip(names, lengths, strict=True))
        workload = Workload(definition=definition, axes=axes, weight=launches)
        found.append(_guessed(workload, known, floor_ns(ctx, workload), overhead))
    return found


def _guessed(
    workload: Workload, known: Sequence[ShapeCost], floor: int, overhead_ns: int
) -> ShapeCost:
    least = floor + overhead_ns
    near = min(known, key=lambda cost: abs(ln((cost.floor_ns + overhead_ns + 1) / (least + 1))))
    median_ns = round(near.median_ns * (least + 1) / (near.floor_ns + overhead_ns + 1))
    return ShapeCost(
        workload=workload,
        gpu_time_ns=round(median_ns * workload.weight),
        median_ns=median_ns,
        floor_ns=floor,
    )


def _bucketed(ctx: Context, launches: Mapping[tuple[int, ...], int]) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for key, count in launches.items():
        counts[_key(bucket(length, ctx.settings.profile) for length in key)] += count
    return dict(counts)


def _key(lengths: Iterable[int]) -> str:
    return "x".join(str(length) for length in lengths)

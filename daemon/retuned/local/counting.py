"""What slots counted, as costs of shapes: those that no trace saw have a guessed time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log as ln

from retuned.contract import Workload
from retuned.local.context import Context
from retuned.observing.counts import Counts, key_of, together
from retuned.stages.hypothesis import ShapeCost
from retuned.stages.profile import bucket_middle

__all__ = ["Counts", "floor_ns", "together", "unseen"]

_LEAST = 8
"""Launches of a shape that no trace saw, below which nothing is believed of it."""


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
    seen = {key_of(cost.workload.axes.values()) for cost in known}
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

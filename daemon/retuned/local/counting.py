"""What slots counted, as costs of shapes: those that no trace saw have a guessed time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from retuned.contract import Workload
from retuned.local.context import Context
from retuned.stages import hypothesis as hypothesis_stage
from retuned.stages.hypothesis import ShapeCost
from retuned.stages.profile import Counts, bucket_middle, together

__all__ = ["Counts", "floor_ns", "together", "unseen"]


def floor_ns(ctx: Context, workload: Workload) -> int:
    """Return the roofline in the middle of a bucket: at its edge it would promise too little."""
    axes = {name: bucket_middle(n, ctx.settings.profile) for name, n in workload.axes.items()}
    return ctx.catalog.floor_ns(workload.definition, axes)


def unseen(ctx: Context, known: Sequence[ShapeCost], counts: Mapping[str, int]) -> list[ShapeCost]:
    """Return shapes that were counted but in no trace; see `hypothesis_stage.unseen`."""
    return hypothesis_stage.unseen(
        known,
        counts,
        floor_ns=lambda workload: floor_ns(ctx, workload),
        overhead_ns=ctx.settings.hypothesis.launch_ns,
    )

"""Shapes that slots counted and no trace saw: rare ones are not forgotten. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import log as ln

from retuned.contract import Workload
from retuned.stages.hypothesis.records import ShapeCost
from retuned.stages.profile import key_of

LEAST = 8
"""Launches of a shape that no trace saw, below which nothing is believed of it."""


def unseen(
    known: Sequence[ShapeCost],
    counts: Mapping[str, int],
    *,
    floor_ns: Callable[[Workload], int],
    overhead_ns: int,
) -> list[ShapeCost]:
    """Return shapes that were counted but in no trace, timed by the roofline's proportions.

    The nearest shape that was timed lends its time: a guess, good enough to say which shapes an
    experiment should measure. Where no roofline is known the nearest lengths do.

    Parameters
    ----------
    known
        Shapes of one definition that were timed.
    counts
        Launches of that definition by lengths, see `retuned.stages.profile.Counts`.
    floor_ns
        Roofline of a shape; 0 where nobody knows it.
    overhead_ns
        What a launch takes besides.

    Examples
    --------
    >>> def cost(rows, median):
    ...     work = Workload(definition="d", axes={"M": rows})
    ...     return ShapeCost(workload=work, gpu_time_ns=9, median_ns=median)
    >>> found = unseen([cost(1, 10), cost(64, 80)], {"32": 100, "64": 5, "2": 7},
    ...     floor_ns=lambda _: 0, overhead_ns=2_000)
    >>> [(each.workload.axes, each.median_ns, each.gpu_time_ns) for each in found]
    [({'M': 32}, 80, 8000)]
    """
    if not known:
        return []
    definition, names = known[0].workload.definition, list(known[0].workload.axes)
    seen = {key_of(cost.workload.axes.values()) for cost in known}
    found = []
    for key, launches in counts.items():
        lengths = [int(length) for length in key.split("x")]
        if key in seen or launches < LEAST or len(lengths) != len(names) or min(lengths) < 1:
            continue
        axes = dict(zip(names, lengths, strict=True))
        workload = Workload(definition=definition, axes=axes, weight=launches)
        found.append(_guessed(workload, known, floor_ns(workload), overhead_ns))
    return found


def _guessed(
    workload: Workload, known: Sequence[ShapeCost], floor: int, overhead_ns: int
) -> ShapeCost:
    least = floor + overhead_ns

    def distance(cost: ShapeCost) -> tuple[float, float]:
        work = abs(ln((cost.floor_ns + overhead_ns + 1) / (least + 1)))
        return work, _apart(cost.workload.axes, workload.axes)

    near = min(known, key=distance)
    median_ns = round(near.median_ns * (least + 1) / (near.floor_ns + overhead_ns + 1))
    return ShapeCost(
        workload=workload,
        gpu_time_ns=round(median_ns * workload.weight),
        median_ns=median_ns,
        floor_ns=floor,
    )


def _apart(some: Mapping[str, int], others: Mapping[str, int]) -> float:
    return sum(abs(ln(max(1, some[name]) / max(1, others[name]))) for name in some)

"""Shape costs: what a window of traffic spends on each definition, the input of stage 4. Pure.

`retuned run` and the operator bind a window by this function; they differ in where the kernels are
known from.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from retuned.contract import Workload
from retuned.stages.hypothesis import ShapeCost, unseen
from retuned.stages.profile import Counts, Signature, SignatureStat, WorkloadProfile


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownKernels:
    """The kernels of a target that a control plane knows."""

    recognise: Callable[[Signature], tuple[str, Mapping[str, int]] | None]
    """Definition and axes of a signature that the catalogue has; None for others."""
    live_shares: Callable[[SignatureStat], Iterable[tuple[Workload, float]]]
    """Workloads of live kernels that a geometry may belong to, each with its part of the time."""
    serves: Callable[[Workload], bool]
    """Whether the incumbent serves a shape: the guard of an active variant excludes the others."""
    floor_ns: Callable[[Workload], int] = lambda _: 0
    """Shortest time that the hardware allows for a workload; 0 where the hardware is unknown."""


def shape_costs(
    profile: WorkloadProfile, *, counts: Counts, kernels: KnownKernels, launch_ns: int
) -> tuple[Mapping[str, Sequence[ShapeCost]], int]:
    """Group a window by definition.

    Shapes that slots counted and no trace contains are added with an estimated time, so that a rare
    shape is not lost.

    Parameters
    ----------
    profile
        The window.
    counts
        Launches that slots counted, by definition and shape.
    kernels
        Maps signatures to definitions.
    launch_ns
        Overhead of one launch, for estimated times, nanoseconds.

    Returns
    -------
    tuple
        Costs by definition, weights in launches per second, only of shapes that the incumbent
        serves; and the GPU time of the window with the estimated shapes, nanoseconds.
    """
    found: dict[str, list[ShapeCost]] = defaultdict(list)
    for stat in profile.stats:
        for workload, part in _workloads(stat, kernels):
            found[workload.definition].append(
                ShapeCost(
                    workload=workload,
                    gpu_time_ns=round(stat.gpu_time_ns * part),
                    median_ns=stat.median_ns,
                    floor_ns=kernels.floor_ns(workload),
                )
            )
    total_ns = profile.gpu_time_ns
    for definition, costs in found.items():
        estimated = unseen(
            costs, counts.get(definition, {}), floor_ns=kernels.floor_ns, overhead_ns=launch_ns
        )
        total_ns += sum(each.gpu_time_ns for each in estimated)
        costs += estimated
    per_s = 1e9 / max(profile.observed_ns, 1)
    return {
        definition: [_per_second(cost, per_s) for cost in costs if kernels.serves(cost.workload)]
        for definition, costs in found.items()
    }, total_ns


def _workloads(stat: SignatureStat, kernels: KnownKernels) -> Iterable[tuple[Workload, float]]:
    named = kernels.recognise(stat.signature)
    if named is None:
        return kernels.live_shares(stat)
    definition, axes = named
    return [(Workload(definition=definition, axes=dict(axes), weight=stat.launches), 1.0)]


def _per_second(cost: ShapeCost, per_s: float) -> ShapeCost:
    workload = cost.workload.model_copy(update={"weight": cost.workload.weight * per_s})
    return replace(cost, workload=workload)

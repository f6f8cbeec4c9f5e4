"""Kernels in place: what launches of the proven slot take in both arms, at the same lengths. Pure.

An experiment times a kernel alone. Here the same kernel is timed within the server's steps, where
caches, clocks and neighbours are the server's own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from retuned.stages.watch.proof.records import MOST_LENGTHS, Arm, ArmLaunches, KernelTime

LEAST_SAMPLES = 8
"""Times of each arm below which a length is not compared."""
LEAST_COVERED = 0.8
"""Share of launches whose lengths must be compared for a change per step."""


def kernel_times(seen: Sequence[ArmLaunches], *, steps: int) -> tuple[KernelTime, ...]:
    """Return what was measured of each length, those with the most time first.

    Parameters
    ----------
    seen
        Launches of both arms.
    steps
        Labelled steps in which they were launched.

    Examples
    --------
    >>> both = [
    ...     ArmLaunches(arm=arm, lengths=(512,), launches=50, times_s=(seconds,) * 9)
    ...     for arm, seconds in ((Arm.OFF, 3e-3), (Arm.ON, 1e-3))
    ... ]
    >>> found, = kernel_times(both, steps=100)
    >>> found.launches, round(found.speedup, 3)
    (1.0, 3.0)
    """
    if steps <= 0:
        return ()
    found = [_at(lengths, seen, steps=steps) for lengths in sorted({e.lengths for e in seen})]
    found.sort(key=lambda each: each.launches * max(each.off_s or 0.0, each.on_s or 0.0))
    return tuple(found[::-1][:MOST_LENGTHS])


def change_per_step_s(kernels: Sequence[KernelTime]) -> float | None:
    """Return by how much the kernel's time per step differs with the swap, seconds.

    None if the lengths with times of both arms have too few of the launches.
    """
    compared = [k for k in kernels if k.on_s is not None and k.off_s is not None]
    launches = math.fsum(each.launches for each in kernels)
    if not compared or math.fsum(k.launches for k in compared) < LEAST_COVERED * launches:
        return None
    return math.fsum(
        k.launches * (k.on_s - k.off_s)
        for k in compared
        if k.on_s is not None and k.off_s is not None
    )


def _at(lengths: tuple[int, ...], seen: Sequence[ArmLaunches], *, steps: int) -> KernelTime:
    mine = [each for each in seen if each.lengths == lengths]
    return KernelTime(
        lengths=lengths,
        launches=sum(each.launches for each in mine) / steps,
        off_s=_median_of(mine, Arm.OFF),
        on_s=_median_of(mine, Arm.ON),
    )


def _median_of(seen: Sequence[ArmLaunches], arm: Arm) -> float | None:
    times = [t for each in seen if each.arm is arm for t in each.times_s if t > 0.0]
    return median(times) if len(times) >= LEAST_SAMPLES else None

"""State of the pod's accelerators: shown as metrics, and reported with windows and drift.

A sidecar reads the devices of its container, with the vendor's library in its image. Without
device or library it reports none. No decision depends on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from retuned.api.agent import MAX_GPUS
from retuned.node import devices
from retuned.ports import DeviceState
from retuned.sidecar.context import Context
from retuned.stages.drift import GpuObservation


def look(ctx: Context) -> int:
    """Update the metrics and the state for the next report; return the number of devices."""
    if ctx.devices is None:
        return 0
    states = tuple(ctx.devices.read())[:MAX_GPUS]
    unnamed = [replace(each, processes=None) for each in states]
    for name, rows in devices.rows(unnamed, servers=frozenset(), lab=frozenset()).items():
        ctx.telemetry.table(name, rows)
    ctx.standing.gpus = beside(states, processes=ctx.standing.processes)
    return len(states)


def beside(states: Sequence[DeviceState], *, processes: int) -> tuple[GpuObservation, ...]:
    """Return the state of devices, with the number of foreign processes on each.

    Devices and the server number processes differently, so only counts can be compared. A process
    is foreign if its device has more than one and all devices have more than the server. The
    result may be too small, never too large.

    Parameters
    ----------
    processes
        Processes of the server; 0 if unknown, and then no process counts as foreign.

    Examples
    --------
    Two ranks, and a foreign process beside the first:

    >>> states = [DeviceState(gpu="nvidia-0", processes=(7, 8)),
    ...           DeviceState(gpu="nvidia-1", processes=(9,))]
    >>> [each.others for each in beside(states, processes=2)]
    [1, 0]
    >>> [each.others for each in beside(states, processes=0)]
    [None, None]
    """
    there = {pid for each in states for pid in each.processes or ()}
    most = max(0, len(there) - processes)
    unnamed = devices.seen([replace(each, processes=None) for each in states], ours=frozenset())
    if not processes:
        return unnamed
    return tuple(
        one.model_copy(update={"others": min(most, max(0, len(set(state.processes)) - 1))})
        if state.processes is not None
        else one
        for one, state in zip(unnamed, states, strict=True)
    )

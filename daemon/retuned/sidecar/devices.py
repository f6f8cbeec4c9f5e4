"""What the pod's accelerators do beside the work: shown, and told with windows and drift.

A sidecar sees what its container is shown, through whatever library its image has; without either
nothing is told. Nothing is decided by it.
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
    """Show how they stand, and keep it for what is told next; return how many there are."""
    if ctx.devices is None:
        return 0
    states = tuple(ctx.devices.read())[:MAX_GPUS]
    unnamed = [replace(each, processes=None) for each in states]
    for name, rows in devices.rows(unnamed, servers=frozenset(), lab=frozenset()).items():
        ctx.telemetry.table(name, rows)
    ctx.standing.gpus = beside(states, processes=ctx.standing.processes)
    return len(states)


def beside(states: Sequence[DeviceState], *, processes: int) -> tuple[GpuObservation, ...]:
    """Return how devices stand, with how many strangers are on each.

    Devices number processes otherwise than the server does, so that only counts can be compared: a
    stranger is one too many on its device, and there are more processes than the server has. It
    says too few strangers rather than too many.

    Parameters
    ----------
    processes
        Processes of the server; 0 where that is not known, and then nobody is called a stranger.

    Examples
    --------
    Two ranks, and somebody else beside the first:

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

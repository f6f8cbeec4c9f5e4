"""Pod of an experiment on a tunable: the lab with child processes in the server's container."""

from __future__ import annotations

from pathlib import Path

from retuned.clock import SystemClock
from retuned.errors import UsageError
from retuned.experiment.pod_task import HOST
from retuned.experiment.tunable_task import TunableInputs
from retuned.experiment.tunables import TunableLab, TunableTask
from retuned.ports import Bench
from retuned.tunables.process import ServerHost

HOST_WAIT_S = 900.0
"""Longest wait for the server's container, whose image may have to be pulled."""
_DEVICE = "0"
"""The only GPU of the server's container."""


def open_tunable_lab(inputs: TunableInputs, root: Path, *, host: ServerHost | None) -> Bench:
    """Return the lab of a pod.

    Parameters
    ----------
    inputs
        Of the pod's task.
    root
        Private folder for evidence and tables.
    host
        Starts child processes in the server's container.

    Raises
    ------
    UsageError
        If the pod has no such container.
    """
    if host is None:
        raise UsageError(f"{HOST} must be set for a tunable, as the manifest of its Job does")
    task = task_from(inputs, host=host)
    return TunableLab(lambda _plan: task, root, clock=SystemClock())


def task_from(inputs: TunableInputs, *, host: ServerHost) -> TunableTask:
    """Return the lab's task from a record."""
    server = inputs.environment
    return TunableTask(
        report=inputs.report.model_dump(mode="json", exclude_unset=True),
        recipes=[each.model_dump(mode="json", exclude_unset=True) for each in inputs.recipes],
        environment=server.model_dump(mode="json"),
        measured_in=inputs.measured_in,
        device=_DEVICE if server.has_device else "",
        in_force=[each.model_dump(mode="json") for each in inputs.in_force],
        host=host,
    )

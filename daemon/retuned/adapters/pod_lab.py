"""A lab as the pod of a Job: carries out the task that is mounted, and leaves what it found."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from retuned.adapters.gpu_devices import find_devices
from retuned.adapters.lab_wire import DeviceStates, LabTask, done_line, failed_line, finding_line
from retuned.adapters.pod_ending import Preemption
from retuned.adapters.pod_results import (
    exit_code_of,
    exit_code_of_error,
    publish,
    summary,
    write_message,
)
from retuned.adapters.pod_task import PodRole, PodSettings, for_pod, read_mounted
from retuned.agent_wire import MAX_GPUS
from retuned.contract import Digest
from retuned.errors import HarnessError, RetunedError, UsageError
from retuned.observing.devices import seen
from retuned.ports import Bench, Devices, Finding
from retuned.stages.drift import GpuSeen

_MEASURING = (PodRole.SEARCH, PodRole.VERIFY)
_TaskT = TypeVar("_TaskT", bound=LabTask)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodResources(Generic[_TaskT]):
    """What the program lends a pod."""

    read: Callable[[str, str], _TaskT]
    """Reads a task's text from a place; raises `UnreadableInput`."""
    environment: Callable[[_TaskT, PodRole], Digest]
    """What this machine is to the lab."""
    open: Callable[[_TaskT, PodRole], Bench]
    """Opens the lab of a role."""
    say: Callable[[Mapping[str, Any]], None]
    """Writes a line."""
    devices: Callable[[], Devices | None] = find_devices
    """Finds who says how this machine's accelerators stand; None where nobody can."""


def run_pod(words: Sequence[str], settings: PodSettings, *, means: PodResources[_TaskT]) -> int:
    """Carry out the task, and say at the end what became of it; return the exit code.

    Parameters
    ----------
    words
        Arguments of the program: the path of the task.
    settings
        What the manifest says.
    """
    plan = ""
    with Preemption(settings) as ending:
        try:
            if len(words) != 1:
                raise UsageError("a pod is given one argument, the path of its task")
            task = means.read(read_mounted(Path(words[0])), words[0])
            plan = ending.plan = task.plan.id
            if task.cores:
                os.sched_setaffinity(0, task.cores)
            return _carried_out(task, settings, means=means, ending=ending)
        except RetunedError as error:
            failed = error
        except OSError as error:
            failed = HarnessError(f"this pod cannot work: {error}")
        code = exit_code_of_error(failed)
        said = summary(settings.role, plan, exit_code=code)
        with ending.last_words():
            write_message(settings.message, said, failed=(failed.code, str(failed)))
        means.say(failed_line(failed.code, str(failed)))
        return code


def _carried_out(
    task: _TaskT, settings: PodSettings, *, means: PodResources[_TaskT], ending: Preemption
) -> int:
    watched = means.devices() if settings.role in _MEASURING else None
    begin = _stood(watched)  # before this pod is on them itself
    here = means.environment(task, settings.role)
    with tempfile.TemporaryDirectory(prefix="lab-", dir=task.root) as folder:
        asked = for_pod(task, role=settings.role, root=Path(folder), here=here)
        lab = means.open(asked, settings.role)
        findings: list[Finding] = []
        for finding in lab.run(asked.plan, known={}):
            means.say(finding_line(finding))
            findings.append(finding)
        code = exit_code_of(settings.role, findings)
        stood = DeviceStates(begin=begin, end=_stood(watched, alone=False))
        with ending.last_words():
            publish(settings.results, findings, bench=lab, stood=stood)
            said = summary(settings.role, task.plan.id, findings=findings, exit_code=code)
            write_message(settings.message, said)
        means.say(done_line())
        return code


def _stood(watched: Devices | None, *, alone: bool = True) -> tuple[GpuSeen, ...]:
    """Return how accelerators stand; who is on them is only known while nobody of this pod is."""
    states = tuple(watched.read())[:MAX_GPUS] if watched is not None else ()
    known = states if alone else [replace(each, processes=None) for each in states]
    return seen(known, ours=frozenset())

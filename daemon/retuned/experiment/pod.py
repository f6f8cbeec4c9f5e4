"""Pod of an experiment's Job: it runs the mounted task and leaves its results.

When production preempts the pod, the pod ends in time, whatever it is doing.
"""

from __future__ import annotations

import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, TypeVar

from retuned.api.agent import MAX_GPUS
from retuned.contract import Digest
from retuned.errors import HarnessError, RetunedError, UsageError
from retuned.experiment.messages import DeviceStates, LabTask, done_line, failed_line, finding_line
from retuned.experiment.pod_results import (
    PREEMPTED,
    clear,
    exit_code_of,
    exit_code_of_error,
    publish,
    summary,
    write_message,
)
from retuned.experiment.pod_task import PodRole, PodSettings, for_pod, read_mounted
from retuned.node.devices import seen
from retuned.node.gpu import find_devices
from retuned.ports import Bench, Devices, Finding
from retuned.stages.drift import GpuObservation

_PUBLISHING_S = 3.0
"""Maximum to complete results that are being written; incomplete ones are discarded."""


class Preemption:
    """Ends the process on SIGTERM while it is entered; the main thread enters it.

    `settings` name the folder of partial results and the message's file.
    """

    def __init__(self, settings: PodSettings) -> None:
        self.plan = ""
        """Id of the plan, once it is known."""
        self._settings = settings
        self._lock = threading.Lock()
        self._over = False

    def __enter__(self) -> Preemption:
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.signal(signal.SIGTERM, lambda _number, _frame: None)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        threading.Thread(target=self._wait, args=(reader,), daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        signal.set_wakeup_fd(-1)

    @contextmanager
    def last_words(self) -> Iterator[None]:
        """Complete the current action if it ends soon; afterwards SIGTERM has no effect."""
        with self._lock:
            yield
            self._over = True

    def _wait(self, reader: int) -> None:
        while signal.SIGTERM not in os.read(reader, 64):
            pass
        # The lock stays held: no new action starts after this.
        self._lock.acquire(timeout=_PUBLISHING_S)
        if self._over:
            self._lock.release()
            return
        clear(self._settings.results)
        body = summary(self._settings.role, self.plan, exit_code=PREEMPTED)
        told = ("preempted", "the pod was terminated before results were complete")
        write_message(self._settings.message, body, failed=told)
        os._exit(PREEMPTED)


_MEASURING = (PodRole.SEARCH, PodRole.VERIFY)
_TaskT = TypeVar("_TaskT", bound=LabTask)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodResources(Generic[_TaskT]):
    """Resources that the program gives a pod."""

    read: Callable[[str, str], _TaskT]
    environment: Callable[[_TaskT, PodRole], Digest]
    open: Callable[[_TaskT, PodRole], Bench]
    say: Callable[[Mapping[str, Any]], None]
    devices: Callable[[], Devices | None] = find_devices
    beside: AbstractContextManager[object] = field(default_factory=nullcontext)
    """Entered while the pod works: the host in the server's container, which ends with it."""


def run_pod(words: Sequence[str], settings: PodSettings, *, means: PodResources[_TaskT]) -> int:
    """Run the task and report the outcome; return the exit code.

    `words` are the program's arguments: the path of the task.
    """
    plan = ""
    with Preemption(settings) as ending:
        try:
            with means.beside:
                if len(words) != 1:
                    raise UsageError("a pod needs one argument, the path of its task")
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
    begin = _stood(watched)  # before this pod uses them
    here = means.environment(task, settings.role)
    with tempfile.TemporaryDirectory(prefix="lab-", dir=task.root) as folder:
        asked = for_pod(task, role=settings.role, root=Path(folder), here=here)
        lab = means.open(asked, settings.role)
        findings: list[Finding] = []
        for finding in lab.run(asked.plan, known={}):
            means.say(finding_line(finding))
            findings.append(finding)
        # a search that finds a bad table is not a failure, and a tunable's one pod searches too
        code = exit_code_of(settings.role, findings) if task.tunable is None else 0
        turns = lab.turns(task.plan.id) if task.tunable is not None else ()
        stood = DeviceStates(begin=begin, end=_stood(watched, alone=False))
        with ending.last_words():
            publish(settings.results, findings, bench=lab, stood=stood, turns=turns)
            said = summary(settings.role, task.plan.id, findings=findings, exit_code=code)
            write_message(settings.message, said)
        means.say(done_line())
        return code


def _stood(watched: Devices | None, *, alone: bool = True) -> tuple[GpuObservation, ...]:
    """Return the accelerators' states, with processes only if none of this pod runs."""
    states = tuple(watched.read())[:MAX_GPUS] if watched is not None else ()
    known = states if alone else [replace(each, processes=None) for each in states]
    return seen(known, ours=frozenset())

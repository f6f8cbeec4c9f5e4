"""Results of experiments on their way in: the log of a pod's container, read once and kept.

A pod of an experiment has no other way out. Its container `TELLER` writes the results as lines to
its log, which the API server hands on as long as the pod is there; a finished Job stays for an
hour. What was read is kept, whatever it was: after a restart nobody asks again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from retuned.adapters.pod_bundle import MAX_LOG_BYTES, Sender, read
from retuned.errors import RetunedError, TemporaryError, UnreadableInput
from retuned.ports import Clock
from retuned_operator.controllers import reading
from retuned_operator.crds import KernelExperiment
from retuned_operator.crds.experiment_status import JobRef
from retuned_operator.manifests.jobs import TELLER
from retuned_operator.program.results import ResultFolder
from retuned_operator.runtime.errors import Invalid, NotFound
from retuned_operator.runtime.resources import Obj

log = logging.getLogger(__name__)

LOG_GONE = "results-log-gone"
"""The node has forgotten what the container wrote, or it never ran."""
_MAX_WAITING = 1024
"""Most pods whose waits are remembered; who is forgotten is asked a little earlier."""
_ENDED = ("Succeeded", "Failed")
_WAIT_S, _LONGEST_WAIT_S = 10.0, 80.0
"""Nobody asks again for a log that could not be had before that time has passed, which doubles: one
that looks at experiments waits while a node that is away is asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wait:
    """When a pod is asked again."""

    until_s: float
    length_s: float


class Logs(Protocol):
    """The part of the API server that hands out logs."""

    def logs(self, namespace: str, name: str, *, container: str, limit_bytes: int) -> bytes:
        """Return what a container has written; errors are those of the runtime."""
        ...


class Collector:
    """Brings results in.

    Parameters
    ----------
    folder
        Where they are kept.
    pods
        Pods of an experiment as they are seen; None while that is not known.
    logs
        The API server.
    clock
        Time.
    """

    def __init__(
        self,
        folder: ResultFolder,
        *,
        pods: Callable[[KernelExperiment], Sequence[Obj] | None],
        logs: Logs,
        clock: Clock,
    ) -> None:
        self._folder = folder
        self._pods = pods
        self._logs = logs
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting: dict[str, _Wait] = {}

    def collect(self, experiment: KernelExperiment) -> None:
        """Read every pod that has ended and was not read before.

        What cannot be had now is asked for later; it never keeps an experiment from going on, or
        from being ended.
        """
        uid = experiment.metadata.uid
        for ref, body in self._ended(experiment):
            metadata = body["metadata"]
            pod, wait = str(metadata["uid"]), self._waiting.get(str(metadata["uid"]))
            if self._folder.has(uid, ref.name, pod):
                continue
            if wait is not None and self._clock.monotonic_s() < wait.until_s:
                continue
            try:
                self._read(Sender(experiment=uid, job=ref.name, pod=pod), metadata)
                with self._lock:
                    self._waiting.pop(pod, None)
            except RetunedError as error:
                self._wait(pod, wait)
                log.warning("results of pod %s: %s", metadata.get("name"), error)

    def _wait(self, pod: str, before: _Wait | None) -> None:
        length_s = min(2 * before.length_s, _LONGEST_WAIT_S) if before is not None else _WAIT_S
        until_s = self._clock.monotonic_s() + length_s
        with self._lock:
            self._waiting[pod] = _Wait(until_s=until_s, length_s=length_s)
            while len(self._waiting) > _MAX_WAITING:
                self._waiting.pop(next(iter(self._waiting)))

    def lost(self, experiment: KernelExperiment) -> Mapping[str, str]:
        """Return the Jobs all of whose pods that have ended told nothing, with a stable code."""
        found: dict[str, str] = {}
        ended = tuple(self._ended(experiment))
        for ref in {ref.name: ref for ref, _ in ended}.values():
            mine = [str(b["metadata"]["uid"]) for r, b in ended if r == ref]
            codes = self._folder.refusals(experiment.metadata.uid, ref.name)
            if all(pod in codes for pod in mine):
                found[ref.name] = codes[mine[-1]]
        return found

    def _ended(self, experiment: KernelExperiment) -> Iterator[tuple[JobRef, Obj]]:
        """Yield the pods of Jobs without a result that have ended, first ended first."""
        waiting = {ref.uid: ref for ref in experiment.status.job_refs if ref.result is None}
        if not waiting:
            return
        found = []
        for body in self._pods(experiment) or ():
            ref = waiting.get(reading.owner_uid(body))
            if ref is not None and body.get("status", {}).get("phase") in _ENDED:
                found.append((reading.pod_ended_at(body), ref, body))
        for _, ref, body in sorted(found, key=lambda each: (each[0], each[2]["metadata"]["uid"])):
            yield ref, body

    def _read(self, sender: Sender, metadata: Mapping[str, object]) -> None:
        """Read one pod, and keep what it told or why it told nothing.

        Raises
        ------
        RetunedError
            If it cannot be read or kept now.
        """
        namespace, name = str(metadata.get("namespace", "")), str(metadata.get("name", ""))
        uid, job, pod = sender.experiment, sender.job, sender.pod
        try:
            text = self._logs.logs(namespace, name, container=TELLER, limit_bytes=MAX_LOG_BYTES)
            self._folder.keep(uid, job, pod, read(text, sender=sender))
        except NotFound as error:
            raise TemporaryError(str(error), delay_s=_WAIT_S) from error  # its end is seen soon
        except Invalid as error:
            self._folder.refuse(uid, job, pod, code=LOG_GONE, why=str(error))
        except UnreadableInput as error:
            log.warning("results of pod %s do not count: %s", name, error)
            self._folder.refuse(uid, job, pod, code=error.code, why=error.message)

"""Results of the pods of experiments, stored in folders of the operator; untrusted input.

A pod's folder is ``<results>/<experiment uid>/<job>/<pod uid>``: ``findings.jsonl`` with the lab's
lines, whose last marks the end; ``evidence/<digest>.json`` and
``artifacts/<digest>`` as the lab keeps them. A folder without the last line is not complete and
does not count. A pod that could not be read has a folder with ``refused.json`` alone, so that the
operator does not try it again.

Results of experiments on their way in: the log of a pod's container, read once and kept.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import stat
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from retuned.api.experiment import JobRef
from retuned.contract import Digest
from retuned.control import ResultFact
from retuned.errors import (
    HarnessError,
    MissingDependency,
    RetunedError,
    TemporaryError,
    UnreadableInput,
)
from retuned.experiment.log_transport import FINDINGS, MAX_LOG_BYTES, Bundle, Sender, read
from retuned.experiment.messages import read_line, stood_of, turns_of
from retuned.files import NotPlain, read_plain
from retuned.ports import Clock, Finding
from retuned.stages.experiment import Turn
from retuned.stages.verdict import Status
from retuned.store.artifact_folder import bundle_of
from retuned_operator.controllers import objects
from retuned_operator.kube.errors import Invalid, NotFound, printable
from retuned_operator.kube.resources import Obj
from retuned_operator.manifests.jobs import TELLER
from retuned_operator.schema import JobRole, KernelExperiment

__all__ = ["FINDINGS", "PodResult", "ResultFolder"]

LEFT_OUT, REFUSED = "left-out.json", "refused.json"
"""What a pod had no room for, and why there is nothing of it."""
MAX_FINDINGS_BYTES = 64 << 20
MAX_EVIDENCE_BYTES = 32 << 20
MAX_ARTIFACT_BYTES = 16 << 20
MAX_PODS = 256
"""Most pods of one Job that are read: a Job has one, or a few after disruptions."""
_MOST = 2**31 - 1
_WORDS = 1024
"""Characters of what turns found."""
_KEPT_BYTES = 4 << 20
"""Findings that are kept as they were read, by their length as text."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
_RETRY_S = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PodResult:
    """What one pod has left, complete."""

    job: str
    """Name of its Job."""
    pod_uid: str
    """Its uid."""
    at: datetime
    """When its findings were complete."""
    findings: tuple[Finding, ...]
    """Every candidate, in the order in which they were final."""
    left_out: int = 0
    """Losers that the pod's log had no room for."""
    beside: str = ""
    """State of accelerators during its measurements; empty if unknown or not notable."""
    turns: tuple[Turn, ...] = ()
    """Of an experiment on a tunable: one for each size class that it searched."""

    def best(self) -> Finding | None:
        """Return the finding that promotes with the highest lower bound; None where none does."""
        won = [each for each in self.findings if each.verdict.status is Status.PROMOTE]
        return max(won, key=lambda each: _lower(each), default=None)

    def fact(self, role: JobRole) -> ResultFact:
        """Return what the state machine reads of it; only a trusted Job has winners."""
        best = self.best()
        proven = best if role is JobRole.VERIFY else None
        promoted = sum(each.verdict.status is Status.PROMOTE for each in self.findings)
        return ResultFact(
            job=self.job,
            pod_uid=self.pod_uid,
            at=self.at,
            tried=_count(t.tried for t in self.turns) or len(self.findings) + self.left_out,
            correct=_count(t.correct for t in self.turns)
            or sum(each.verdict.speedup is not None for each in self.findings),
            finalists=promoted,
            winner=proven.solution.digest if proven else None,
            speedup=proven.verdict.speedup if proven else None,
            beside=self.beside or printable("; ".join(t.because for t in self.turns))[:_WORDS],
        )


def _count(numbers: Iterable[int]) -> int:
    """Return a sum that a status can hold, whatever a pod reports."""
    return min(sum(numbers), _MOST)


def _lower(finding: Finding) -> float:
    return finding.verdict.speedup.lower if finding.verdict.speedup else 0.0


class ResultFolder:
    """Folders of results, by experiment, Job and pod; written once, by the operator alone.

    Parameters
    ----------
    root
        Where they are; made when the first one comes.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._lock = threading.Lock()
        self._read: OrderedDict[tuple[Path, int, int, int], PodResult] = OrderedDict()
        """By folder, file, time and size of its findings: what was read of it, newest use last."""

    # --- stored results --------------------------------------------------------------------------

    def has(self, experiment_uid: str, job: str, pod: str) -> bool:
        """Whether a pod has been read before, with any result."""
        return (self._root / _checked(experiment_uid) / _checked(job) / _checked(pod)).is_dir()

    def keep(self, experiment_uid: str, job: str, pod: str, told: Bundle) -> None:
        """Store the results of a pod; existing files stay unchanged.

        Raises
        ------
        TemporaryError
            If it cannot be written now.
        """
        files = dict(told.files)
        if told.left_out:
            files[LEFT_OUT] = json.dumps(dict(told.left_out)).encode()
        self._put(self._root / _checked(experiment_uid) / _checked(job) / _checked(pod), files)

    def refuse(self, experiment_uid: str, job: str, pod: str, *, code: str, why: str) -> None:
        """Record that a pod has no usable result.

        Raises
        ------
        TemporaryError
            If it cannot be written now.
        """
        data = json.dumps({"code": code[:128], "why": why[:2048]}).encode()
        folder = self._root / _checked(experiment_uid) / _checked(job) / _checked(pod)
        self._put(folder, {REFUSED: data})

    def refusals(self, experiment_uid: str, job: str) -> Mapping[str, str]:
        """Return the codes of pods without a usable result, by uid."""
        found = {}
        folder = self._root / _checked(experiment_uid) / _checked(job)
        for path in sorted(folder.glob(f"*/{REFUSED}"))[:MAX_PODS]:
            data = _bytes(path, limit=MAX_EVIDENCE_BYTES)
            found[path.parent.name] = str(json.loads(data)["code"]) if data else "results-absent"
        return found

    def keep_only(self, experiment_uids: Collection[str]) -> None:
        """Delete the results of all other experiments, which do not exist any more."""
        if self._root.is_dir():
            for folder in self._root.iterdir():
                if folder.name not in experiment_uids:
                    shutil.rmtree(folder, ignore_errors=True)

    def _put(self, folder: Path, files: Mapping[str, bytes]) -> None:
        """Write a folder whole or not at all; the first of several wins."""
        if folder.is_dir():
            return
        try:
            folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            partial = Path(tempfile.mkdtemp(prefix=".partial-", dir=folder.parent))
            try:
                for name, data in files.items():
                    path = partial / name
                    path.parent.mkdir(parents=True, exist_ok=True)
                    with path.open("xb") as file:
                        file.write(data)
                        file.flush()
                        os.fsync(file.fileno())
                os.replace(partial, folder)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
        except OSError as error:
            if not folder.is_dir():
                text = f"{folder}: results cannot be kept ({error.strerror})"
                raise TemporaryError(text, delay_s=_RETRY_S) from error

    # --- what counts ------------------------------------------------------------------------------

    def of(self, experiment_uid: str, job: str) -> Sequence[PodResult]:
        """Return the complete results of a Job, in the order of pods.

        Raises
        ------
        TemporaryError
            If they cannot be read now.
        """
        folder = self._root / _checked(experiment_uid) / _checked(job)
        try:
            pods = sorted(each.name for each in folder.iterdir() if _NAME.fullmatch(each.name))
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise _unreadable(folder, error) from error
        found = [self._known(folder / pod, job=job) for pod in pods[:MAX_PODS]]
        return tuple(each for each in found if each is not None)

    def evidence(self, experiment_uid: str, result: PodResult, digest: Digest) -> bytes | None:
        """Return a document of evidence, unchecked; None if it does not exist."""
        path = self._folder(experiment_uid, result) / "evidence" / f"{_hex(digest)}.json"
        return _bytes(path, limit=MAX_EVIDENCE_BYTES)

    def artifact(
        self, experiment_uid: str, result: PodResult, digest: Digest
    ) -> dict[str, bytes] | None:
        """Return the files of an artifact, unchecked; None if it does not exist."""
        folder = self._folder(experiment_uid, result) / "artifacts" / _hex(digest)
        try:
            if not _is_small(folder):
                return None
            return bundle_of(folder)
        except (OSError, ValueError):
            return None

    def _folder(self, experiment_uid: str, result: PodResult) -> Path:
        return self._root / _checked(experiment_uid) / _checked(result.job) / result.pod_uid

    def _known(self, folder: Path, *, job: str) -> PodResult | None:
        """Return what `_pod` does; every look asks for it, and a folder is never written again."""
        try:
            facts = (folder / FINDINGS).lstat()
        except OSError:
            return self._pod(folder, job=job)
        key = (folder, facts.st_ino, facts.st_mtime_ns, facts.st_size)
        with self._lock:
            if key in self._read:
                self._read.move_to_end(key)
                return self._read[key]
        found = self._pod(folder, job=job)
        if found is not None and facts.st_size <= _KEPT_BYTES:
            with self._lock:
                self._read[key] = found
                while sum(size for *_, size in self._read) > _KEPT_BYTES:
                    self._read.popitem(last=False)
        return found

    def _pod(self, folder: Path, *, job: str) -> PodResult | None:
        """Return the result of a pod; None if it is incomplete or not a result."""
        data = _bytes(folder / FINDINGS, limit=MAX_FINDINGS_BYTES)
        if data is None or not data.endswith(b"\n"):
            return None
        findings: list[Finding] = []
        try:
            lines = data.splitlines()
            for line in lines[:-1]:
                finding = read_line(line)
                if finding is None:
                    return None  # something follows the end
                findings.append(finding)
            if read_line(lines[-1]) is not None:
                return None
            at = (folder / FINDINGS).stat().st_mtime
        except (HarnessError, MissingDependency, OSError, IndexError):
            return None
        moment = datetime.fromtimestamp(at, UTC)
        return PodResult(
            job=job,
            pod_uid=folder.name,
            at=moment,
            findings=tuple(findings),
            left_out=_left_out(folder),
            beside=stood_of(lines[-1]).words,
            turns=turns_of(lines[-1]),
        )


def _left_out(folder: Path) -> int:
    data = _bytes(folder / LEFT_OUT, limit=MAX_EVIDENCE_BYTES)
    return int(json.loads(data).get("findings", 0)) if data else 0


def _bytes(path: Path, *, limit: int) -> bytes | None:
    """Return a plain file's bytes, never through a link; None if absent or not plain."""
    try:
        return read_plain(path, max_bytes=limit, follow=False)
    except (FileNotFoundError, NotPlain):
        return None
    except OSError as error:
        raise _unreadable(path, error) from error


def _is_small(folder: Path) -> bool:
    """Whether a folder holds plain files only, of a size that a server takes."""
    if folder.is_symlink():
        return False
    facts = [each.lstat() for each in folder.iterdir()]
    plain = all(stat.S_ISREG(each.st_mode) for each in facts)
    return plain and sum(each.st_size for each in facts) <= MAX_ARTIFACT_BYTES


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name[:80]!r} is not a name of an object")
    return name


def _hex(digest: Digest) -> str:
    return digest.removeprefix("sha256:")


def _unreadable(path: Path, error: OSError) -> TemporaryError:
    text = f"{path}: cannot be read ({error.strerror})"
    return TemporaryError(text, delay_s=_RETRY_S)


log = logging.getLogger(__name__)

LOG_GONE = "results-log-gone"
"""The node has forgotten what the container wrote, or it never ran."""
_MAX_WAITING = 1024
"""Most pods whose waits are remembered; a forgotten pod is tried earlier."""
_ENDED = ("Succeeded", "Failed")
_WAIT_S, _LONGEST_WAIT_S = 10.0, 80.0
"""Delay before the next try of a log that could not be read, first and longest; it doubles. A
request to a node that is away blocks the controller."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wait:
    """When a pod's log is tried again."""

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

        A log that cannot be read now is tried later. It never keeps an experiment from continuing
        or ending.
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
        """Return the Jobs whose ended pods all have no usable result, with a stable code."""
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
            ref = waiting.get(objects.owner_uid(body))
            if ref is not None and body.get("status", {}).get("phase") in _ENDED:
                found.append((objects.pod_ended_at(body), ref, body))
        for _, ref, body in sorted(found, key=lambda each: (each[0], each[2]["metadata"]["uid"])):
            yield ref, body

    def _read(self, sender: Sender, metadata: Mapping[str, object]) -> None:
        """Read one pod, and store its result or the reason for none.

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

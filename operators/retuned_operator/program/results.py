"""What the pods of experiments leave in their volume, read as a stranger's.

A pod's folder is ``<results>/<experiment uid>/<job>/<pod uid>``: ``findings.jsonl`` with the lab's
lines, the last of which says that all is done; ``evidence/<digest>.json`` and
``artifacts/<digest>`` as the lab keeps them. A folder without the last line is not complete and
does not count.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from retuned.adapters.artifact_folder import bundle_of
from retuned.adapters.lab_wire import read_line
from retuned.contract import Digest
from retuned.errors import HarnessError, MissingDependency, TemporaryError
from retuned.plain_files import NotPlain, read_plain
from retuned.ports import Finding
from retuned.stages.verdict import Status
from retuned_operator.crds import JobRole
from retuned_operator.machine import ResultFact

FINDINGS = "findings.jsonl"
"""The lab's lines."""
MAX_FINDINGS_BYTES = 64 << 20
MAX_EVIDENCE_BYTES = 32 << 20
MAX_ARTIFACT_BYTES = 16 << 20
MAX_PODS = 256
"""Most pods of one Job that are looked at: a Job has one, or a few after disruptions."""
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
            tried=len(self.findings),
            correct=sum(each.verdict.speedup is not None for each in self.findings),
            finalists=promoted,
            winner=proven.solution.digest if proven else None,
            speedup=proven.verdict.speedup if proven else None,
        )


def _lower(finding: Finding) -> float:
    return finding.verdict.speedup.lower if finding.verdict.speedup else 0.0


class ResultFolder:
    """The volume with results.

    Parameters
    ----------
    root
        Where it is mounted.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def of(self, experiment_uid: str, job: str) -> Sequence[PodResult]:
        """Return the complete results of a Job, in the order of pods.

        Raises
        ------
        TemporaryError
            If the volume cannot be read now.
        """
        folder = self._root / _checked(experiment_uid) / _checked(job)
        try:
            pods = sorted(each.name for each in folder.iterdir() if _NAME.fullmatch(each.name))
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise _unreadable(folder, error) from error
        found = [self._pod(folder / pod, job=job) for pod in pods[:MAX_PODS]]
        return tuple(each for each in found if each is not None)

    def evidence(self, experiment_uid: str, result: PodResult, digest: Digest) -> bytes | None:
        """Return a document of evidence, unchecked; None where there is none."""
        path = self._folder(experiment_uid, result) / "evidence" / f"{_hex(digest)}.json"
        return _bytes(path, limit=MAX_EVIDENCE_BYTES)

    def artifact(
        self, experiment_uid: str, result: PodResult, digest: Digest
    ) -> dict[str, bytes] | None:
        """Return the files of an artifact, unchecked; None where there is none."""
        folder = self._folder(experiment_uid, result) / "artifacts" / _hex(digest)
        try:
            if not _is_small(folder):
                return None
            return bundle_of(folder)
        except (OSError, ValueError):
            return None

    def _folder(self, experiment_uid: str, result: PodResult) -> Path:
        return self._root / _checked(experiment_uid) / _checked(result.job) / result.pod_uid

    def _pod(self, folder: Path, *, job: str) -> PodResult | None:
        """Return what a pod has left; None where it is not complete, or is no result at all."""
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
        return PodResult(job=job, pod_uid=folder.name, at=moment, findings=tuple(findings))


def _bytes(path: Path, *, limit: int) -> bytes | None:
    """Return a plain file's bytes, never through a link; None where there is none that is fit."""
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
        raise ValueError(f"{name[:80]!r} is no name of an object")
    return name


def _hex(digest: Digest) -> str:
    return digest.removeprefix("sha256:")


def _unreadable(path: Path, error: OSError) -> TemporaryError:
    text = f"{path}: cannot be read ({error.strerror}); mount the volume with the results there"
    return TemporaryError(text, delay_s=_RETRY_S)

"""Pod results of an experiment: folder, termination message and exit code.

Evidence and artifacts are written first and ``findings.jsonl`` last. Each is written under a
temporary name and renamed when complete, so the operator sees complete files only.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from retuned.contract import Digest
from retuned.errors import CandidateError, HarnessError, RetunedError
from retuned.experiment.log_transport import FINDINGS
from retuned.experiment.messages import DeviceStates, done_line, finding_line
from retuned.experiment.pod_task import PodRole
from retuned.ports import Bench, Finding
from retuned.stages.experiment import Turn
from retuned.stages.verdict import Reason, Status

log = logging.getLogger(__name__)

__all__ = ["FINDINGS", "clear", "exit_code_of", "exit_code_of_error", "publish", "summary"]

MAX_MESSAGE_BYTES = 4096
"""Kubernetes truncates a termination message at this size."""
MAX_RESULT_BYTES = 48 << 20
"""Of one pod: the folder is an emptyDir of 64 MiB, and a pod that fills it is evicted."""
WRONG_RESULT, COMPILE_ERROR, BREACH, PREEMPTED = 64, 65, 66, 143
"""Exit codes; the last is a shell's code for a program that got SIGTERM."""
_PARTIAL = ".partial-"
_LONGEST_DETAIL = 1024
_CODES: Mapping[Reason, int] = {
    Reason.WRONG_OUTPUT: WRONG_RESULT,
    Reason.NAN_MISMATCH: WRONG_RESULT,
    Reason.OUTPUT_NOT_WRITTEN: WRONG_RESULT,
    Reason.NONDETERMINISTIC: WRONG_RESULT,
    Reason.ROW_DEPENDENT: WRONG_RESULT,
    Reason.TIMED_OUTPUT_WRONG: WRONG_RESULT,
    Reason.COMPILE_FAILED: COMPILE_ERROR,
    Reason.BINARY_AUDIT: BREACH,
    Reason.CONTRACT: BREACH,
    Reason.OUT_OF_BOUNDS: BREACH,
    Reason.INPUT_MODIFIED: BREACH,
}


def exit_code_of(role: PodRole, findings: Iterable[Finding]) -> int:
    """Return the exit code of a lab that completed.

    A search often meets wrong variants. If the trusted pod finds only wrong ones among the search's
    promotions, the experiment failed; the highest of the codes counts.
    """
    codes = [_CODES.get(each.verdict.reason, 0) for each in findings]
    return max(codes) if role is PodRole.VERIFY and codes and all(codes) else 0


def exit_code_of_error(error: RetunedError) -> int:
    """Return the exit code of a lab that failed; the incumbent may be the cause."""
    for each in (error, error.__cause__):
        if isinstance(each, CandidateError) and each.reason in set(Reason):
            return _CODES.get(Reason(each.reason), HarnessError.exit_code)
    return error.exit_code


def publish(
    folder: Path,
    findings: Sequence[Finding],
    *,
    bench: Bench,
    stood: DeviceStates | None = None,
    turns: Sequence[Turn] = (),
) -> None:
    """Write evidence and winners' artifacts, and then the findings.

    Evidence of losers is omitted beyond `MAX_RESULT_BYTES`. The accelerators' states and the turns
    are on the last line. The artifact of a table is its text.

    Raises
    ------
    CandidateError
        If a winner no longer compiles.
    HarnessError
        If a winner has no evidence or is too large, or the folder cannot be written.
    """
    won = [each for each in findings if each.verdict.status is Status.PROMOTE]
    lost = [each for each in findings if each.verdict.status is not Status.PROMOTE]
    lines = "".join(
        json.dumps(line, separators=(",", ":"), allow_nan=False) + "\n"
        for line in (*map(finding_line, findings), done_line(stood, turns=turns))
    ).encode()
    left = MAX_RESULT_BYTES - len(lines)
    try:
        for each in won:
            left -= _put_artifact(folder, each, bench=bench)
        for each in (*won, *lost):
            left -= _put_evidence(folder, each, bench=bench, left=left)
        if left < 0:
            raise HarnessError(f"the findings are longer than {MAX_RESULT_BYTES} bytes")
        _put(folder / FINDINGS, lines)
    except OSError as error:
        clear(folder)
        raise HarnessError(f"{folder}: results cannot be written: {error.strerror}") from error


def clear(folder: Path) -> None:
    """Remove incomplete files; the reader ignores files that cannot be removed."""
    for place in (folder, folder / "evidence", folder / "artifacts"):
        for each in place.glob(f"{_PARTIAL}*"):
            if each.is_dir() and not each.is_symlink():
                shutil.rmtree(each, ignore_errors=True)
            else:
                each.unlink(missing_ok=True)


def _put_artifact(folder: Path, found: Finding, *, bench: Bench) -> int:
    built = bench.build(found.solution)
    target = folder / "artifacts" / _hex(found.solution.digest)
    partial = target.with_name(f"{_PARTIAL}{target.name}")
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copytree(built, partial)
    for each in partial.iterdir():
        with each.open("rb") as file:
            os.fsync(file.fileno())
    os.rename(partial, target)
    return sum(each.stat().st_size for each in target.iterdir())


def _put_evidence(folder: Path, found: Finding, *, bench: Bench, left: int) -> int:
    digest, wins = found.verdict.evidence, found.verdict.status is Status.PROMOTE
    data = bench.evidence(digest) if digest is not None else None
    if digest is None or data is None:
        if wins:
            raise HarnessError(f"no evidence of the winner {found.solution.digest[:19]}")
        return 0
    if not wins and len(data) > left:
        log.warning("evidence omitted, no space: variant=%s", found.solution.name)
        return 0
    _put(folder / "evidence" / f"{_hex(digest)}.json", data)
    return len(data)


def _put(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{_PARTIAL}{path.name}")
    with partial.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)


def summary(
    role: PodRole, plan: str, *, findings: Sequence[Finding] = (), exit_code: int
) -> dict[str, Any]:
    won = [each for each in findings if each.verdict.status is Status.PROMOTE]
    best = max(won, key=lambda each: _lower(each), default=None)
    body: dict[str, Any] = {
        "role": str(role),
        "plan": plan[:128],
        "exit_code": exit_code,
        "tried": len(findings),
        "correct": sum(each.verdict.speedup is not None for each in findings),
        "promoted": len(won),
    }
    if best is not None and best.verdict.speedup is not None:
        speedup = best.verdict.speedup.model_dump(mode="json")
        named = {"candidate": best.solution.digest, "evidence": best.verdict.evidence}
        body["best"] = {**named, "speedup": speedup}
    return body


def write_message(
    path: Path | None, body: Mapping[str, Any], *, failed: tuple[str, str] | None = None
) -> None:
    """Write the termination message, one JSON object; a failure only logs a warning.

    The node owns the file, so it is overwritten, not replaced. A `path` of None writes nothing.
    `failed` holds code and message of an error; the message is shortened.
    """
    if path is None:
        return
    text, longest = "", _LONGEST_DETAIL
    while not text or len(text) > MAX_MESSAGE_BYTES:  # escapes make characters longer
        more = {} if failed is None else {"code": failed[0][:64], "message": failed[1][:longest]}
        text = json.dumps({**body, **more}, separators=(",", ":"), allow_nan=False)
        longest //= 2
    try:
        path.write_text(text, encoding="ascii")
    except OSError as error:
        log.warning("termination message not written: path=%s: %s", path, error.strerror)


def _lower(finding: Finding) -> float:
    return finding.verdict.speedup.lower if finding.verdict.speedup else 0.0


def _hex(digest: Digest) -> str:
    return digest.removeprefix("sha256:")

"""What a pod leaves is whole or not there, bounded, and says what it is."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.expect import raises_naming
from tests.standalone.local_world import LOST, WINNER, WON

from retuned.contract import Digest, Solution
from retuned.errors import CompileFailed, HarnessError, UnreadableInput, UsageError
from retuned.experiment import pod_results
from retuned.experiment.fake import FakeBench
from retuned.experiment.messages import done_line, finding_line
from retuned.experiment.pod_results import (
    BREACH,
    COMPILE_ERROR,
    FINDINGS,
    MAX_MESSAGE_BYTES,
    PREEMPTED,
    WRONG_RESULT,
    exit_code_of,
    exit_code_of_error,
    publish,
    summary,
    write_message,
)
from retuned.experiment.pod_task import PodRole, pod_settings, read_mounted
from retuned.ports import Finding
from retuned.stages.verdict import Reason

PROOF: Digest = "sha256:" + "1" * 64
PROVEN = replace(WON, verdict=WON.verdict.model_copy(update={"evidence": PROOF}))
REJECTED = replace(LOST, verdict=LOST.verdict.model_copy(update={"evidence": "sha256:" + "2" * 64}))


class Lab(FakeBench):
    """Has raw numbers of everything, all of one length."""

    length = 100

    def evidence(self, digest: Digest) -> bytes | None:
        return b"x" * self.length


class Compilerless(Lab):
    """Cannot build what it measured."""

    def build(self, solution: Solution) -> Path:
        raise CompileFailed("compile-failed", detail="no space")


def failing(reason: Reason) -> Finding:
    return replace(LOST, verdict=LOST.verdict.model_copy(update={"reason": reason}))


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(script={}, root=tmp_path / "lab")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "results"
    made.mkdir()
    return made


def files(folder: Path) -> set[str]:
    return {str(each.relative_to(folder)) for each in folder.rglob("*") if each.is_file()}


def test_findings_lie_beside_what_they_name(folder: Path, lab: Lab) -> None:
    publish(folder, [REJECTED, PROVEN], bench=lab)
    lines = [json.loads(line) for line in (folder / FINDINGS).read_text().splitlines()]
    assert lines == [finding_line(REJECTED), finding_line(PROVEN), done_line()]
    won = f"artifacts/{WINNER.digest.removeprefix('sha256:')}"
    proofs = {f"evidence/{digit * 64}.json" for digit in "12"}
    assert files(folder) > {FINDINGS, f"{won}/kernel.so", *proofs}


def test_without_a_winners_code_there_are_no_findings(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(CompileFailed):
        publish(folder, [PROVEN], bench=Compilerless(script={}, root=tmp_path))
    assert files(folder) == set()


def test_without_a_winners_evidence_there_are_no_findings(folder: Path, tmp_path: Path) -> None:
    with raises_naming(HarnessError, "evidence", PROVEN.solution.digest[:19]):
        publish(folder, [PROVEN], bench=FakeBench(script={}, root=tmp_path))
    assert FINDINGS not in files(folder)


def test_a_folder_that_cannot_be_written_is_a_failure_of_the_lab(folder: Path, lab: Lab) -> None:
    (folder / "evidence").write_text("a file where a folder should be")
    with raises_naming(HarnessError, "results", os.strerror(errno.EEXIST)):
        publish(folder, [REJECTED], bench=lab)
    assert files(folder) == {"evidence"}


def test_losers_leave_no_evidence_where_there_is_no_room(
    folder: Path, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pod_results, "MAX_RESULT_BYTES", 20_000)
    lab.length = 9_000
    publish(folder, [REJECTED, PROVEN], bench=lab)
    proofs = {each for each in files(folder) if each.startswith("evidence")}
    assert proofs == {f"evidence/{'1' * 64}.json"}  # the winner's comes first
    assert len((folder / FINDINGS).read_text().splitlines()) == 3


def test_a_winner_that_is_too_large_is_none(
    folder: Path, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pod_results, "MAX_RESULT_BYTES", 20_000)
    lab.length = 20_000
    with raises_naming(HarnessError, "20000 bytes"):
        publish(folder, [PROVEN], bench=lab)
    assert FINDINGS not in files(folder)


@pytest.mark.parametrize(
    ("reasons", "code"),
    [
        ([Reason.WRONG_OUTPUT], WRONG_RESULT),
        ([Reason.COMPILE_FAILED, Reason.NAN_MISMATCH], COMPILE_ERROR),
        ([Reason.WRONG_OUTPUT, Reason.BINARY_AUDIT], BREACH),
        ([Reason.WRONG_OUTPUT, Reason.WITHIN_NOISE], 0),
        ([Reason.CRASHED], 0),
        ([], 0),
    ],
)
def test_only_a_trusted_pod_fails_for_its_variants_and_only_if_all_are_bad(
    reasons: list[Reason], code: int
) -> None:
    findings = list(map(failing, reasons))
    assert exit_code_of(PodRole.VERIFY, findings) == code
    assert exit_code_of(PodRole.SEARCH, findings) == 0


def test_what_the_incumbent_did_is_told_by_the_code() -> None:
    failed = HarnessError("the incumbent itself fails")
    assert exit_code_of_error(failed) == 5
    failed.__cause__ = CompileFailed("compile-failed", detail="")
    assert exit_code_of_error(failed) == COMPILE_ERROR
    failed.__cause__ = CompileFailed("no known reason", detail="")
    assert exit_code_of_error(failed) == 5


@given(st.text(max_size=3000), st.text(max_size=300))
def test_a_message_is_one_bounded_object_whatever_it_tells(
    tmp_path_factory: pytest.TempPathFactory, text: str, plan: str
) -> None:
    path = tmp_path_factory.mktemp("message") / "log"
    body = summary(PodRole.VERIFY, plan, findings=[PROVEN], exit_code=5)
    write_message(path, body, failed=("code", text))
    data = path.read_bytes()
    assert len(data) <= MAX_MESSAGE_BYTES
    said = json.loads(data)
    assert said["best"]["candidate"] == WINNER.digest
    assert text.startswith(said["message"])


def test_a_message_that_cannot_be_told_stops_nothing(tmp_path: Path) -> None:
    write_message(tmp_path / "nowhere" / "log", {"exit_code": 0})
    write_message(None, {"exit_code": 0})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "environment",
    [
        {"RETUNED_ROLE": "verify"},
        {"RETUNED_ROLE": "verify", "RETUNED_RESULTS_DIR": "here"},
        {"RETUNED_ROLE": "deploy", "RETUNED_RESULTS_DIR": "/results"},
    ],
)
def test_a_manifest_that_says_half_is_wrong_usage(environment: dict[str, str]) -> None:
    with pytest.raises(UsageError):
        pod_settings(environment)


def test_who_has_no_role_is_no_pod() -> None:
    assert pod_settings({"RETUNED_RESULTS_DIR": "/results"}) is None


def test_a_task_that_is_no_plain_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(b"\xff")
    (tmp_path / "long").write_bytes(b"x" * (pod_results.MAX_RESULT_BYTES // 32))
    for name in ("bytes", "long", "absent", "."):
        with pytest.raises(UnreadableInput) as caught:
            read_mounted(tmp_path / name)
        assert caught.value.code == "bad-task"


PROGRAM = """
import sys
from pathlib import Path
from retuned.experiment import pod
from retuned.experiment.pod import Preemption
from retuned.experiment.pod_task import PodRole, PodSettings
folder, pod._PUBLISHING_S = Path(sys.argv[1]), float(sys.argv[2])
with Preemption(PodSettings(role=PodRole.SEARCH, results=folder)) as ending:
    with ending.last_words():
        (folder / ".partial-findings.jsonl").write_text("half")
        print("writing", flush=True)
        sys.stdin.readline()
        (folder / ".partial-findings.jsonl").rename(folder / "findings.jsonl")
"""


@pytest.mark.parametrize("is_quick", [True, False])
def test_results_that_are_being_written_become_whole_or_go(folder: Path, is_quick: bool) -> None:
    patience_s = "200" if is_quick else "0.1"  # what quick is shall not depend on the machine
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(folder), patience_s],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stdout.readline() == "writing\n"
        child.send_signal(signal.SIGTERM)
        if is_quick:
            child.stdin.write("\n")
            child.stdin.flush()
        assert child.wait(timeout=200.0) == (0 if is_quick else PREEMPTED)
    assert files(folder) == ({FINDINGS} if is_quick else set())

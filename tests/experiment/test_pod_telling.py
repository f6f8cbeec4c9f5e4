"""The container that tells: once, when all is there, and what no decision needs comes last."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from tests.expect import raises_naming
from tests.standalone.local_world import LOST, WINNER, WON

from retuned.errors import UnreadableInput, UsageError
from retuned.experiment import log_transport
from retuned.experiment.log_transport import (
    FINDINGS,
    Bundle,
    Sender,
    TellingSettings,
    is_complete,
    read,
    telling_settings,
    told,
)
from retuned.experiment.messages import done_line, finding_line
from retuned.ports import Finding

SENDER = Sender(experiment="uid-1", job="verify-1", pod="pod-1")
PROOF, DOUBT = "1" * 64, "2" * 64
PROVEN = replace(WON, verdict=WON.verdict.model_copy(update={"evidence": f"sha256:{PROOF}"}))
REJECTED = replace(LOST, verdict=LOST.verdict.model_copy(update={"evidence": f"sha256:{DOUBT}"}))
CODE = f"artifacts/{WINNER.digest.removeprefix('sha256:')}"
ENVIRONMENT = {
    "RETUNED_EXPERIMENT_UID": "uid-1",
    "RETUNED_JOB": "verify-1",
    "RETUNED_POD_UID": "pod-1",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the results of a pod with a winner and a loser."""
    for name, data in {
        f"{CODE}/kernel.so": b"code" * 100,
        f"{CODE}/manifest.json": b"{}",
        f"evidence/{PROOF}.json": b'{"won":1}',
        f"evidence/{DOUBT}.json": b'{"lost":1}',
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(data)
    write(tmp_path, PROVEN, REJECTED)
    return tmp_path


def write(folder: Path, *findings: Finding) -> None:
    text = "".join(json.dumps(each) + "\n" for each in (*map(finding_line, findings), done_line()))
    (folder / FINDINGS).write_text(text)


def told_of(folder: Path) -> Bundle:
    return read(b"".join(told(TellingSettings(sender=SENDER, results=folder))), sender=SENDER)


def files(folder: Path) -> Iterator[str]:
    return (str(each.relative_to(folder)) for each in folder.rglob("*") if each.is_file())


def test_everything_is_told_as_it_lies_there(folder: Path) -> None:
    found = told_of(folder)
    assert found.left_out == {}
    assert set(found.files) == set(files(folder))
    assert all((folder / name).read_bytes() == data for name, data in found.files.items())


def test_what_is_not_whole_and_what_leads_elsewhere_is_not_told(folder: Path) -> None:
    (folder / ".partial-x").write_bytes(b"half")
    (folder / CODE / "more").mkdir()
    (folder / CODE / "more" / "kernel.so").write_bytes(b"deep")
    (folder / f"evidence/{'3' * 64}.json").symlink_to("/etc/hostname")
    (folder / "artifacts" / ("4" * 64)).symlink_to(folder / CODE)
    os.mkfifo(folder / f"evidence/{'5' * 64}.json")
    names = set(told_of(folder).files)
    assert names == {
        FINDINGS, f"{CODE}/kernel.so", f"{CODE}/manifest.json", f"evidence/{PROOF}.json",
        f"evidence/{DOUBT}.json",
    }  # fmt: skip


def test_evidence_of_who_lost_is_left_out_first(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / f"evidence/{DOUBT}.json").write_bytes(os.urandom(20_000))
    monkeypatch.setattr(log_transport, "MAX_PACKED_BYTES", 10_000)
    found = told_of(folder)
    assert found.left_out == {"evidence": 1}
    assert f"evidence/{PROOF}.json" in found.files
    assert found.files[FINDINGS] == (folder / FINDINGS).read_bytes()


def test_then_those_who_lost_are_left_out_and_counted(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise = os.urandom(9_000).hex()
    source = REJECTED.solution.sources[0].model_copy(update={"content": noise})
    long = REJECTED.solution.model_copy(update={"sources": (source,)})
    write(folder, replace(REJECTED, solution=long), PROVEN)
    monkeypatch.setattr(log_transport, "MAX_PACKED_BYTES", 9_000)
    found = told_of(folder)
    assert found.left_out == {"findings": 1}
    kept = found.files[FINDINGS].splitlines()
    assert [json.loads(line) for line in kept] == [
        json.loads(json.dumps(finding_line(PROVEN))), done_line()
    ]  # fmt: skip


def test_a_winner_that_is_too_large_is_not_told_in_part(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / CODE / "kernel.so").write_bytes(os.urandom(20_000))
    monkeypatch.setattr("retuned.experiment.log_transport.MAX_PACKED_BYTES", 10_000)
    monkeypatch.setattr(log_transport, "MAX_PACKED_BYTES", 10_000)
    with pytest.raises(UnreadableInput) as caught:
        told_of(folder)
    assert caught.value.code == "results-not-told"
    assert "results-too-large" in caught.value.message


def test_nothing_is_complete_before_the_findings_are_there(folder: Path) -> None:
    assert is_complete(folder)
    (folder / FINDINGS).rename(folder / ".partial-findings.jsonl")
    assert not is_complete(folder)
    (folder / FINDINGS).symlink_to(".partial-findings.jsonl")
    assert not is_complete(folder)
    assert not is_complete(folder / "nowhere")


@pytest.mark.parametrize("name", [*ENVIRONMENT, "RETUNED_RESULTS_DIR"])
def test_a_manifest_that_says_not_enough_is_wrong_usage(name: str) -> None:
    given = {**ENVIRONMENT, "RETUNED_RESULTS_DIR": "/results"}
    assert telling_settings(given).sender == SENDER
    with raises_naming(UsageError, name):
        telling_settings(given | {name: ""})


_BLOCKED = """
import runpy, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
sys.stderr.write("deaf\\n")
sys.stderr.flush()
runpy.run_module("retuned.experiment.log_transport", run_name="__main__")
"""
"""As the program, which does the same a moment after its start: a test cannot see that moment."""


@contextmanager
def telling(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    environment = {**os.environ, **ENVIRONMENT, "RETUNED_RESULTS_DIR": str(folder)}
    with subprocess.Popen(
        [sys.executable, "-c", _BLOCKED],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        try:
            assert process.stderr is not None
            assert process.stderr.readline() == b"deaf\n"
            yield process
        finally:
            process.kill()


def test_results_that_came_in_the_last_moment_are_told_and_then_it_ends(
    folder: Path,
) -> None:
    later = folder / FINDINGS
    later.rename(folder / ".partial")
    with telling(folder) as process:
        (folder / ".partial").rename(later)
        process.send_signal(signal.SIGTERM)
        log, said = process.communicate(timeout=200.0)
    assert (process.returncode, said) == (0, b"")
    assert FINDINGS in read(log, sender=SENDER).files


def test_it_tells_once_and_goes_on_waiting(folder: Path) -> None:
    with telling(folder) as process:
        assert process.stdout is not None
        lines: list[bytes] = []
        while not lines or not lines[-1].startswith(b"retuned-results end"):
            lines.append(process.stdout.readline())
        time.sleep(2 * log_transport._LOOK_S)
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        rest, _ = process.communicate(timeout=200.0)
    assert (process.returncode, rest) == (0, b"")
    assert FINDINGS in read(b"".join(lines), sender=SENDER).files


def test_without_results_it_ends_when_it_is_told_to_and_says_nothing(tmp_path: Path) -> None:
    with telling(tmp_path) as process:
        process.send_signal(signal.SIGTERM)
        log, said = process.communicate(timeout=200.0)
    assert (process.returncode, log, said) == (0, b"", b"")


def test_a_manifest_that_says_nothing_ends_it_at_once(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in (*ENVIRONMENT, "RETUNED_RESULTS_DIR"):
        monkeypatch.delenv(name, raising=False)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        assert log_transport.main() == 2
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert "RETUNED_JOB" in capfd.readouterr().err


def test_it_costs_a_pod_no_more_than_the_standard_library(folder: Path) -> None:
    text = (
        "import sys, retuned.experiment.log_transport; "
        "sys.exit(bool({'pydantic', 'numpy', 'torch', 'httpx'} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", text], check=True, timeout=200)

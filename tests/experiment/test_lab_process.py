"""What the lab's process says is a stranger's: its lines and documents are bounded and checked."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.expect import raises_naming
from tests.lab.test_lab_notebook import PLAN

from retuned.errors import HarnessError
from retuned.experiment import child, local
from retuned.experiment.child import LabProcess
from retuned.experiment.fake import FakeBench
from retuned.experiment.local import LocalLab


@pytest.mark.parametrize(
    ("said", "names"),
    [
        (r"b'\xff\xfe\n'", r"b'\xff\xfe\n'"),
        (r"b'[' * 5_000 + b'\n'", "b'[[[["),
        (r"b'[]\n'", r"b'[]\n'"),
        (r"b'{}\n'", "'finding'"),
        (r"b'x' * 20_000", "10000 bytes"),
        (r"b''", "status 0"),
    ],
)
def test_a_lab_that_speaks_nonsense_has_failed(
    said: str, names: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = f"import os, sys; sys.stdin.read(); os.write(1, {said})"

    def start(_self: LabProcess) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-I", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    monkeypatch.setattr(LabProcess, "_start", start)
    monkeypatch.setattr(child, "_LONGEST_LINE_BYTES", 10_000)
    builder = FakeBench(script={}, root=tmp_path)
    lab = LabProcess(tmp_path, cores=tuple, solution=lambda _: None, builder=builder)
    with raises_naming(HarnessError, names):
        list(lab.run(PLAN, known={}))


def test_a_document_that_nobody_can_bear_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "_MAX_EVIDENCE_BYTES", 100)
    lab = LocalLab(
        tmp_path,
        subjects=lambda _: pytest.fail("nobody asks"),
        solutions=lambda _: None,
        generators={},
    )
    folder = tmp_path / "evidence"
    folder.mkdir(exist_ok=True)
    for digits, size in (("a" * 64, 100), ("b" * 64, 101)):
        (folder / f"{digits}.json").write_bytes(b"x" * size)
    (folder / f"{'c' * 64}.json").symlink_to(folder / f"{'a' * 64}.json")
    assert lab.evidence("sha256:" + "a" * 64) == b"x" * 100
    assert lab.evidence("sha256:" + "b" * 64) is None
    assert lab.evidence("sha256:" + "c" * 64) is None
    assert lab.evidence("sha256:" + "d" * 64) is None

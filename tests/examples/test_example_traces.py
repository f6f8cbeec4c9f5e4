"""The traces that come with the project: real windows of a Llama on a GPU, read as a user reads."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from retuned.cli.commands import app
from retuned.traces import read_trace

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "traces"
MODES = ("eager", "graphs")
PHASES = ("chat", "code")
LIGER = ("_rms_norm_forward_kernel", "_swiglu_forward_kernel", "_triton_rope")
_MOST_BYTES = 3_000_000
_A_PATH = re.compile(r"/(?:home|root|tmp|opt|usr|var|mnt|srv)/")


def trace(phase: str, mode: str) -> Path:
    return FOLDER / f"llama-{phase}-{mode}.pt.trace.json.gz"


def every() -> list[Path]:
    return [trace(phase, mode) for phase in PHASES for mode in MODES]


def told(*words: str) -> tuple[int, Any]:
    done = CliRunner().invoke(app, [*words, "--json"])
    return done.exit_code, json.loads(done.stdout)


def test_all_windows_are_there_and_small() -> None:
    assert sorted(FOLDER.glob("*.gz")) == sorted(every())
    assert sum(path.stat().st_size for path in every()) <= _MOST_BYTES


@pytest.mark.parametrize("path", every(), ids=lambda path: path.name)
def test_a_window_names_no_folder_and_no_host(path: Path) -> None:
    text = gzip.decompress(path.read_bytes()).decode()
    assert not _A_PATH.search(text)
    assert "hostname" not in text.lower()


@pytest.mark.parametrize("path", every(), ids=lambda path: path.name)
def test_a_window_is_analyzed_without_anything_malformed(path: Path) -> None:
    status, body = told("analyze", str(path))
    assert status == 0
    assert body, "something is said"
    launches = read_trace(path).launches
    assert len(launches) >= 200
    names = {one.kernel for one in launches}
    for kernel in LIGER:
        assert any(kernel in name for name in names), f"{kernel} is not in {path.name}"


@pytest.mark.parametrize("mode", MODES)
def test_code_after_chat_is_drift(mode: str) -> None:
    status, body = told("diff", str(trace("chat", mode)), str(trace("code", mode)))
    assert status == 0
    assert body["drift"]["detected"] is True, body["drift"]["sentence"]
    status, _ = told("diff", str(trace("chat", mode)), str(trace("code", mode)), "--fail-on-drift")
    assert status == 1


@pytest.mark.parametrize("path", every(), ids=lambda path: path.name)
def test_a_window_is_no_drift_from_itself(path: Path) -> None:
    status, body = told("diff", str(path), str(path), "--fail-on-drift")
    assert status == 0
    assert body["drift"]["detected"] is False, body["drift"]["sentence"]

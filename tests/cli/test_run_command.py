"""``retuned run`` at its start: what it warns of, and lines that are harmless to a terminal."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.expect import raises_naming

from retuned.cli import run as command
from retuned.clock import FakeClock
from retuned.contract import Language
from retuned.errors import RetunedError
from retuned.standalone import assembly
from retuned.telemetry import logs

LOOP = SimpleNamespace(ctx=SimpleNamespace(clock=FakeClock()))
POLICIES = Path(__file__).resolve().parents[2] / "policies"


@pytest.fixture(autouse=True)
def still(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A daemon that ends as soon as it has started."""
    monkeypatch.delenv("RETUNED_CONFIG", raising=False)
    monkeypatch.setenv("RETUNED_METRICS_PORT", "0")
    monkeypatch.setattr(assembly, "build", lambda _: (LOOP, SimpleNamespace()))
    monkeypatch.setattr(command, "serve", lambda *_, **__: None)
    monkeypatch.setattr(command, "hide_memory", lambda: None)  # not that of the tests' own process


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]


def test_each_folder_that_cannot_be_read_is_warned_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    watch = [tmp_path / "file", tmp_path / "none", tmp_path]
    command.run(state_dir=tmp_path / "state", watch=watch)
    first, second = warned(caplog)
    assert first.startswith(f"watched folder {tmp_path / 'file'} is not a folder; ")
    assert second.startswith(f"watched folder {tmp_path / 'none'} does not exist; ")


def test_the_daemons_memory_is_hidden_before_it_reads_a_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []

    def build(_: object) -> tuple[object, object]:
        steps.append("build")
        return LOOP, SimpleNamespace()

    monkeypatch.setattr(command, "hide_memory", lambda: steps.append("hide"))
    monkeypatch.setattr(assembly, "build", build)
    command.run(state_dir=tmp_path / "state")
    assert steps == ["hide", "build"]


def test_policy_fields_without_effect_are_named_at_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    policy = [POLICIES / "production-two-person.yaml", POLICIES / "laptop-demo.yaml"]
    command.run(state_dir=tmp_path / "state", watch=[tmp_path], policy=policy)
    (told,) = warned(caplog)
    assert told.startswith("policy default/production-two-person: acts in a cluster only: ")
    assert "spec.experiments.pauseWhen" in told


@pytest.mark.parametrize(
    ("language", "here", "said"),
    [("auto", Language.CPU_CPP, 1), ("auto", Language.TRITON, 0), ("cpu_cpp", None, 0)],
)
def test_without_a_gpu_it_says_once_that_live_triton_kernels_are_left_alone(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    language: str,
    here: Language | None,
    said: int,
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setenv("RETUNED_LAB_LANGUAGE", language)
    monkeypatch.setattr(assembly, "language_of", lambda _: here)
    command.run(state_dir=tmp_path / "state", watch=[tmp_path])
    told = [r.getMessage() for r in caplog.records if "live Triton kernels" in r.getMessage()]
    assert len(told) == said
    assert all("none is tried" in text for text in told)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("RETUNED_REVIEW", "0.0.0.0:9476", "'0.0.0.0:9476'"),
        ("RETUNED_CHANNELS_LISTEN", "127.0.0.1:0", "channels_listen"),
        ("RETUNED_POLICY_FILES", "{bad}", "bad.yaml"),
        ("RETUNED_DEFINITION_FILES", "{bad}", "bad.yaml"),
    ],
)
def test_what_is_written_wrong_is_told_before_anything_is_made_or_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, says: str
) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text("spec: [")
    monkeypatch.setenv(name, value.format(bad=bad))
    monkeypatch.setattr(assembly, "build", lambda _: pytest.fail("it was started"))
    with raises_naming(RetunedError, says):
        command.run(state_dir=tmp_path / "state", watch=[tmp_path])
    assert not (tmp_path / "state").exists()


def test_a_logged_name_cannot_write_to_the_terminal() -> None:
    record = logging.LogRecord("x", 20, "f", 1, "read %s", ("\x1b]0;pwn\x07\n2026 all well",), None)
    for formatter in (logs.TextLines("%(message)s"), logs.JsonLines()):
        line = formatter.format(record)
        assert not set(line) & {"\x1b", "\x07"}
        assert "\n2026" not in line

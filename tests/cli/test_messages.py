"""Messages of all commands: harmless to a terminal, and an object for machines on every refusal."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.expect import raises_naming

from retuned import cli
from retuned.cli import commands
from retuned.cli.output import check_writable, lines, safe
from retuned.errors import (
    CandidateError,
    HarnessError,
    MissingDependency,
    PolicyInvalid,
    Problem,
    Refused,
    RetunedError,
    TemporaryError,
    UnreadableInput,
    UsageError,
)
from retuned.store.lock import only_one

HOSTILE = "x\x1b]0;pwn\x07\x9b31m\u202egpj\nretuned: all is well"


def retuned(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str
) -> tuple[int, str, str]:
    """Run the whole command line in this process; return exit code, stdout and stderr."""
    monkeypatch.setattr(sys, "argv", ["retuned", *arguments])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    out, err = capsys.readouterr()
    return int(str(caught.value.code)), out, err


def ends_with(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: RetunedError
) -> tuple[int, dict[str, Any]]:
    def fail() -> None:
        raise error

    monkeypatch.setattr(commands, "app", fail)
    code, out, err = retuned(monkeypatch, capsys, "proposals", "--json")
    assert err.startswith("retuned: ")
    body: dict[str, Any] = json.loads(out)
    assert body.keys() == {"error"}
    assert body["error"].keys() == {"code", "where", "message"}
    return code, body["error"]


@pytest.mark.parametrize(
    ("error", "exit_code", "code", "where", "message"),
    [
        (UsageError("no such thing"), 2, "wrong-usage", "", "no such thing"),
        (Refused("not now"), 1, "refused", "", "not now"),
        (UnreadableInput("cut", where="a:1", message="is cut"), 3, "cut", "a:1", "is cut"),
        (
            PolicyInvalid("p.yaml", problems=(Problem(path="spec", line=1, message="bad"),)),
            1,
            "policy-invalid",
            "p.yaml",
            "spec: bad",
        ),
        (MissingDependency("no g++"), 4, "missing-dependency", "", "no g++"),
        (CandidateError("wrong-output", detail="7"), 1, "wrong-output", "", "7"),
        (HarnessError("broken"), 5, "harness-failed", "", "broken"),
        (TemporaryError("busy", delay_s=1.0), 5, "temporary", "", "busy"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, RetunedError) else None,
)
def test_every_refusal_is_an_object_for_machines_with_its_exit_code(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: RetunedError,
    exit_code: int,
    code: str,
    where: str,
    message: str,
) -> None:
    ended, body = ends_with(monkeypatch, capsys, error)
    assert ended == exit_code
    assert body == {"code": code, "where": where, "message": message}


def test_without_the_flag_stdout_stays_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    state = str(tmp_path / "none")
    code, out, err = retuned(monkeypatch, capsys, "proposals", "--state-dir", state)
    assert (code, out) == (3, "")
    assert "no state here" in err
    code, out, _ = retuned(monkeypatch, capsys, "proposals", "--json", "--state-dir", state)
    assert (code, json.loads(out)["error"]["code"]) == (3, "no-state")


@pytest.mark.parametrize(
    "arguments",
    [
        ("validate", "{}.cpp", "--definition", "softmax_n32"),
        ("validate", "{}.json"),
        ("analyze", "{}.json"),
        ("analyze", "{}.json", "--json"),
        ("diff", "{}.json", "{}.csv"),
        ("policy", "check", "{}.yaml"),
        ("show", "{}{}", "--state-dir", "{}"),
        ("run", "--config", "{}.yaml"),
    ],
    ids=" ".join,
)
def test_a_hostile_path_reaches_no_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    filled = [argument.replace("{}", HOSTILE) for argument in arguments]
    code, out, err = retuned(monkeypatch, capsys, *filled)
    assert code == 3
    assert not set(out + err) & {"\x1b", "\x07", "\x9b", "\u202e"}
    assert "\nretuned: all is well" not in out + err


def test_a_name_that_is_not_text_is_reported_all_the_same(tmp_path: Path) -> None:
    name = os.fsdecode(os.fsencode(tmp_path) + b"/\xff.json")
    for flags in ((), ("--json",)):
        done = subprocess.run(
            [sys.executable, "-m", "retuned.cli", "analyze", name, *flags],
            capture_output=True,
            check=False,
        )
        assert done.returncode == 3
        assert b"Traceback" not in done.stderr
        if flags:
            assert json.loads(done.stdout)["files"][0]["path"] == name


@given(st.text())
def test_safe_text_is_one_line_that_shows(text: str) -> None:
    shown = safe(text, limit=50)
    assert len(shown) <= 50
    assert all(char.isprintable() or char.isspace() for char in shown)
    assert not set(shown) & set("\n\r\t\v\f\x1b\x85\u2028\u2029")


@given(st.lists(st.text(), min_size=1))
def test_only_the_first_line_of_a_message_begins_at_the_edge(parts: list[str]) -> None:
    first, *rest = lines("x" + "\n".join(parts)).split("\n")
    assert first.startswith("x")
    assert all(line.startswith("  ") for line in rest)


def test_a_page_that_cannot_be_written_is_found_before_the_work(tmp_path: Path) -> None:
    check_writable(tmp_path / "new.html")
    (tmp_path / "there.html").touch()
    check_writable(tmp_path / "there.html")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["there.html"]  # asking leaves nothing
    for path in (tmp_path, tmp_path / "none" / "page.html", Path("/proc/page.html")):
        with raises_naming(UsageError, str(path)):
            check_writable(path)


@pytest.mark.parametrize("command", ["doctor", "proposals", "freeze", "history"])
def test_a_settings_file_that_is_not_there_is_named_in_the_error(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
) -> None:
    config = str(tmp_path / "nope.yaml")
    code, out, _ = retuned(monkeypatch, capsys, command, "--config", config, "--json")
    error = json.loads(out)["error"]
    assert (code, error["code"], error["where"]) == (3, "cannot-open", config)


def test_a_second_daemon_on_a_state_ends_with_5(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("RETUNED_CONFIG", raising=False)
    with only_one(tmp_path):
        code, _, err = retuned(monkeypatch, capsys, "run", "--state-dir", str(tmp_path))
    assert code == 5
    assert "another daemon" in err

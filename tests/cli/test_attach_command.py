"""``retuned attach``: what is printed can be evaluated by a shell, and what is run has joined."""

from __future__ import annotations

import errno
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from tests.expect import raises_naming

from retuned.cli.attach import attach, exports, variables
from retuned.errors import MissingDependency, UsageError

LOOK = "import sys; print([type(f).__name__ for f in sys.meta_path].count('ImportWatch'))"


@pytest.fixture
def tmp_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder whose name is short: there are sockets in it."""
    return tmp_path_factory.mktemp("a")


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("RETUNED_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("RETUNED_STATE_DIR", str(tmp_path / "state"))


def test_what_is_printed_is_evaluated_by_a_shell_and_reaches_a_server(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "a folder; $(touch x)"
    attach(print_env=True, socket_dir=folder, server="it's")
    script = capsys.readouterr().out + f"{shlex.quote(sys.executable)} -c {shlex.quote(LOOK)}\n"
    script += 'printf "%s\\n" "$PYTHONPATH" "$RETUNED_SOCKET_DIR" "$RETUNED_SERVER"\n'
    done = subprocess.run(
        ["sh", "-eu", "-c", script],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": "/theirs"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    watching, path, sockets, server = done.stdout.splitlines()
    assert (watching, sockets, server) == ("1", str(folder), "it's")
    assert path.endswith("/runtime/site:/theirs")
    assert done.stderr == ""
    assert not (tmp_path / "x").exists()


def test_the_same_for_machines(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    attach(as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert found == {"variables": variables(tmp_path / "state" / "sockets")}


def test_a_command_is_run_in_place_with_what_it_inherits(tmp_path: Path) -> None:
    program = (
        "from retuned.cli.attach import attach\nimport sys\n"
        f"attach([sys.executable, '-c', {LOOK!r} + '; sys.exit(7)'], server='chat')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (7, "1\n")
    assert done.stderr.startswith("retuned: control sockets in ")


def test_a_command_that_is_not_there_is_said_to_be_missing() -> None:
    with raises_naming(MissingDependency, "no-such-server", os.strerror(errno.ENOENT)):
        attach(["no-such-server"])


def test_why_a_command_cannot_be_run_names_no_folder_that_was_merely_looked_into() -> None:
    with pytest.raises(MissingDependency) as refused:
        attach(["no-such-server"])
    assert str(refused.value) == "no-such-server: cannot be run (No such file or directory)"


def test_a_null_character_in_a_command_is_said_to_be_why() -> None:
    with raises_naming(MissingDependency, "server\0", "execve"):
        attach(["server\0"])


def test_neither_a_command_nor_what_to_set_is_refused() -> None:
    with raises_naming(UsageError, "`--`", "--print-env"):
        attach(None)


@pytest.mark.parametrize(("flag", "given"), [("--print-env", "print_env"), ("--json", "as_json")])
def test_a_flag_that_runs_nothing_is_refused_beside_a_command(flag: str, given: str) -> None:
    with raises_naming(UsageError, flag):
        attach(["server"], **{given: True})  # type: ignore[arg-type]


def test_a_folder_too_long_for_sockets_is_refused_at_once(tmp_path: Path) -> None:
    with raises_naming(UsageError, "x" * 90, "--socket-dir"):
        attach(print_env=True, socket_dir=tmp_path / ("x" * 90))


def test_what_is_exported_is_quoted() -> None:
    assert exports({"RETUNED_SERVER": "$(rm -rf x)"}) == "export RETUNED_SERVER='$(rm -rf x)'\n"

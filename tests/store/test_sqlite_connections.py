"""Several connections to one state: in one process, and from commands that come and go."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.expect import raises_naming

from retuned.errors import UsageError
from retuned.store.sqlite import DATABASE, SqliteStore

_COMMAND = """
import sys
from pathlib import Path
from retuned.store.sqlite import SqliteStore
store = SqliteStore(Path(sys.argv[1]))
print([each.id for each in store.list("thing")])
store.add("thing", sys.argv[2], {}, phase="new")
store.close()
"""


def command(folder: Path, adds: str) -> str:
    """Open the state as a command does, list and add, and leave it."""
    words = [sys.executable, "-c", _COMMAND, str(folder), adds]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


def test_a_command_that_leaves_does_not_take_the_log_of_a_daemon_with_a_page(
    tmp_path: Path,
) -> None:
    daemon = SqliteStore(tmp_path)
    page = SqliteStore(tmp_path)
    daemon.add("thing", "first", {}, phase="new")
    assert command(tmp_path, "second") == "['first']"
    assert (tmp_path / f"{DATABASE}-wal").exists()
    daemon.add("thing", "third", {}, phase="new")
    assert command(tmp_path, "fourth") == "['first', 'second', 'third']"
    every = ["first", "second", "third", "fourth"]
    assert [each.id for each in daemon.list("thing")] == every
    assert [each.id for each in page.list("thing")] == every
    page.close()
    daemon.close()


def test_a_state_that_may_not_be_written_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    SqliteStore(tmp_path).close()
    monkeypatch.setattr("os.access", lambda *_: False)  # root may write everything
    with raises_naming(UsageError, "Permission denied"):
        SqliteStore(tmp_path)

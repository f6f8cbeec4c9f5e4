"""The state survives: kills at any moment, damage, other versions, several processes."""

from __future__ import annotations

import errno
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.expect import raises_code, raises_naming

from retuned.errors import TemporaryError, UnreadableInput, UsageError
from retuned.ports import Event
from retuned.store import migrations
from retuned.store.sqlite import DATABASE, SqliteStore

# Two records that must always agree, an event per round, and a blob named only after it is kept.
WRITER = """
import os, sys
from datetime import UTC, datetime
from pathlib import Path
from retuned.store.sqlite import SqliteStore
from retuned.ports import Event

die_at = sys.argv[2] if len(sys.argv) > 2 else None
left = int(sys.argv[3]) if len(sys.argv) > 3 else 0

def hook(where):
    global left
    if where == die_at:
        left -= 1
        if left < 0:
            os.kill(os.getpid(), 9)

store = SqliteStore(Path(sys.argv[1]), hook=hook)
for name in ("left", "right"):
    store.add("pair", name, {"n": 0}, phase="current")
n = store.get("pair", "right").body["n"]
while n < 10_000:
    n += 1
    digest = store.put_blob(str(n).encode() * 50)
    with store.transaction():
        for name in ("left", "right"):
            assert store.advance("pair", name, expect="current", to="current",
                                 body={"n": n, "blob": digest})
        store.record(Event(at=datetime.now(UTC), kind="pair", id="left", what="step",
                           who="retuned", detail={"n": n}))
    print(n, flush=True)
"""


def write(state: Path, *args: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(state), *args], stdout=subprocess.PIPE, text=True
    )


def check(state: Path) -> int:
    """Both records agree, the trail has every round exactly once, the named blob is there."""
    store = SqliteStore(state)
    try:
        left, right = store.get("pair", "left"), store.get("pair", "right")
        if left is None or right is None:
            return 0
        assert left.body == right.body
        n = int(left.body["n"])
        assert [e.detail["n"] for e in store.events(id="left")] == list(range(1, n + 1))
        if n:
            assert store.get_blob(left.body["blob"]) == str(n).encode() * 50
        return n
    finally:
        store.close()


def test_kills_at_random_moments_leave_a_consistent_state(tmp_path: Path) -> None:
    rng = random.Random(20261121)
    reached = 0
    for _ in range(8):
        child = write(tmp_path)
        assert child.stdout is not None
        printed = 0
        for _ in range(rng.randint(1, 12)):
            line = child.stdout.readline()
            printed = int(line) if line else printed
        time.sleep(rng.random() * 0.01)  # lands inside a write; any moment is right
        child.kill()
        rest = child.communicate()[0].split()
        printed = int(rest[-1]) if rest else printed
        n = check(tmp_path)
        assert n >= printed >= reached  # what was reported done is kept
        reached = n
    assert reached > 8


@pytest.mark.parametrize(
    "where",
    [
        "blob-opened", "blob-written", "blob-synced", "blob-renamed", "blob-kept",
        "begun", "written", "before-commit", "after-commit",
    ],
)  # fmt: skip
def test_a_kill_at_each_boundary_leaves_the_state_before_or_after(
    tmp_path: Path, where: str
) -> None:
    child = write(tmp_path, where, "7")
    out, _ = child.communicate(timeout=250)
    assert child.returncode == -signal.SIGKILL
    printed = int(out.split()[-1]) if out.split() else 0
    n = check(tmp_path)
    assert n in (printed, printed + 1)
    if where == "after-commit":
        assert n == printed + 1 or printed == 0
    elif where.startswith("blob") or where in {"begun", "before-commit"}:
        assert n == printed
    again = write(tmp_path)  # and work goes on from there
    assert again.stdout is not None
    assert int(again.stdout.readline()) == n + 1
    again.kill()
    again.wait()
    again.stdout.close()


def test_several_processes_share_one_state(tmp_path: Path) -> None:
    script = """
import sys
from pathlib import Path
from retuned.store import sqlite
from retuned.store.sqlite import SqliteStore
sqlite._BUSY_S = 200.0  # a slow disk may let one of them wait until the others are done
store = SqliteStore(Path(sys.argv[1]))
store.add("counter", "c", {"n": 0}, phase="current")
for _ in range(30):
    with store.transaction():
        now = store.get("counter", "c")
        store.advance("counter", "c", expect="current", to="current", body={"n": now.body["n"] + 1})
"""
    children = [subprocess.Popen([sys.executable, "-c", script, str(tmp_path)]) for _ in range(3)]
    assert [child.wait(timeout=250) for child in children] == [0, 0, 0]
    store = SqliteStore(tmp_path)
    found = store.get("counter", "c")
    store.close()
    assert found is not None
    assert found.body == {"n": 90}


def test_a_new_state_that_another_process_has_just_begun_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite itself does not wait while a database changes to a write-ahead log."""
    other = sqlite3.connect(tmp_path / DATABASE, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    waits: list[float] = []

    def passes(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3 and other.in_transaction:
            other.execute("ROLLBACK")

    clock = SimpleNamespace(monotonic=time.monotonic, sleep=passes)
    monkeypatch.setattr("retuned.store.migrations.time", clock)
    store = SqliteStore(tmp_path)
    assert len(waits) == 3
    assert store.add("k", "i", {}, phase="p")
    store.close()
    other.close()


def test_a_held_database_is_a_temporary_error_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("retuned.store.sqlite._BUSY_S", 0.05)
    store = SqliteStore(tmp_path)
    other = sqlite3.connect(tmp_path / DATABASE, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with raises_naming(TemporaryError, "database is locked"):
        store.add("k", "i", {}, phase="p")
    assert store.list("k") == []  # reading goes on meanwhile
    other.execute("ROLLBACK")
    other.close()
    assert store.add("k", "i", {}, phase="p")
    store.close()


@pytest.mark.parametrize("damage", ["garbage", "middle"])
def test_a_damaged_database_says_what_to_do(tmp_path: Path, damage: str) -> None:
    store = SqliteStore(tmp_path)
    for n in range(200):
        store.add("k", f"{n:04}", {"text": "x" * 500}, phase="p")
    store.close()
    path = tmp_path / DATABASE
    data = bytearray(path.read_bytes())
    if damage == "garbage":
        data[:] = b"this is no database. " * 500
    else:
        for page in range(4096, len(data), 4096):
            data[page : page + 64] = os.urandom(64)
    path.write_bytes(bytes(data))
    with raises_code(UnreadableInput, "state-corrupt", "state.sqlite3", "-wal", "-shm"):
        SqliteStore(tmp_path)


def test_a_blob_that_rotted_is_found_and_healed_by_writing_it_again(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    digest = store.put_blob(b"good")
    (path,) = (p for p in (tmp_path / "blobs").rglob("*") if p.is_file())
    path.write_bytes(b"evil")
    with pytest.raises(UnreadableInput) as caught:
        store.get_blob(digest)
    assert caught.value.code == "blob-corrupt"
    assert str(path) in str(caught.value)
    assert store.put_blob(b"good") == digest
    assert store.get_blob(digest) == b"good"
    store.close()


def test_temporary_files_of_the_dead_are_swept_and_those_of_the_living_stay(tmp_path: Path) -> None:
    SqliteStore(tmp_path).close()
    old, young = (tmp_path / "blobs" / "tmp" / name for name in ("old", "young"))
    for path in (old, young):
        path.write_bytes(b"half")
    os.utime(old, (0, 0))
    SqliteStore(tmp_path).close()
    assert (old.exists(), young.exists()) == (False, True)


def test_only_the_owner_can_read_the_state(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "state")
    store.put_blob(b"secret")
    store.add("k", "i", {}, phase="p")
    for path in (tmp_path / "state").rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path
    store.close()


def test_a_newer_state_is_refused_and_untouched(tmp_path: Path) -> None:
    SqliteStore(tmp_path).close()
    db = sqlite3.connect(tmp_path / DATABASE)
    db.execute("PRAGMA user_version = 99")
    db.commit()
    db.close()
    with raises_code(UnreadableInput, "state-too-new", "version 99", "state_dir"):
        SqliteStore(tmp_path)


def test_an_older_state_is_brought_forward_with_its_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SqliteStore(tmp_path)
    store.add("k", "i", {"a": 1}, phase="p")
    store.close()
    newer = (*migrations.MIGRATIONS, ("CREATE TABLE extra (n INTEGER) STRICT",))
    db = sqlite3.connect(tmp_path / DATABASE, isolation_level=None)
    migrations.migrate(db, where=tmp_path, migrations=newer)
    assert db.execute("SELECT count(*) FROM extra").fetchone() == (0,)
    assert db.execute("SELECT body FROM records").fetchone() == ('{"a":1}',)
    assert db.execute("PRAGMA user_version").fetchone() == (len(newer),)
    db.close()


def test_a_migration_that_fails_leaves_the_old_version(tmp_path: Path) -> None:
    SqliteStore(tmp_path).close()
    db = sqlite3.connect(tmp_path / DATABASE, isolation_level=None)
    broken = (*migrations.MIGRATIONS, ("CREATE TABLE extra (n INTEGER)", "NOT SQL"))
    with pytest.raises(sqlite3.OperationalError):
        migrations.migrate(db, where=tmp_path, migrations=broken)
    assert db.execute("PRAGMA user_version").fetchone() == (len(migrations.MIGRATIONS),)
    assert db.execute("SELECT name FROM sqlite_master WHERE name = 'extra'").fetchall() == []
    db.close()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE events SET who = 'eve'",
        "DELETE FROM events",
        "UPDATE records SET body = '{}' WHERE kind = 'decision'",
        "DELETE FROM records WHERE kind = 'decision'",
    ],
)
def test_the_trail_and_decisions_cannot_be_rewritten_even_by_sql(
    tmp_path: Path, statement: str
) -> None:
    store = SqliteStore(tmp_path)
    store.add("decision", "d", {}, phase="given")
    now = store.get("decision", "d")
    assert now is not None
    store.record(Event(at=now.created_at, kind="k", id="i", what="w", who="ada"))
    store.close()
    db = sqlite3.connect(tmp_path / DATABASE)
    with pytest.raises(sqlite3.IntegrityError) as caught:
        db.execute(statement)
    assert caught.value.sqlite_errorname == "SQLITE_CONSTRAINT_TRIGGER"
    db.close()


def test_a_state_folder_that_cannot_be_made_is_wrong_usage(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with raises_naming(UsageError, "state_dir", os.strerror(errno.ENOTDIR)):
        SqliteStore(tmp_path / "file" / "state")


def test_orders_and_decisions_of_an_older_state_are_found_by_their_proposal(tmp_path: Path) -> None:
    db = sqlite3.connect(tmp_path / DATABASE, isolation_level=None)
    migrations.migrate(db, where=tmp_path, migrations=migrations.MIGRATIONS[:1])
    for kind in ("order", "decision", "finding"):
        db.execute(
            "INSERT INTO records (kind, id, phase, body, created_at, updated_at) "
            "VALUES (?, 'i', 'done', '{\"proposal\":\"p1\"}', '2026-01-05T12:00:00+00:00', "
            "'2026-01-05T12:00:00+00:00')",
            (kind,),
        )
    db.close()
    store = SqliteStore(tmp_path)
    assert [each.id for each in store.list("order", proposal="p1")] == ["i"]
    assert [each.id for each in store.list("decision", proposal="p1")] == ["i"]
    store.close()
    db = sqlite3.connect(tmp_path / DATABASE, isolation_level=None)
    with pytest.raises(sqlite3.IntegrityError) as caught:
        db.execute("UPDATE records SET phase = 'x' WHERE kind = 'decision'")
    assert caught.value.sqlite_errorname == "SQLITE_CONSTRAINT_TRIGGER"
    db.close()

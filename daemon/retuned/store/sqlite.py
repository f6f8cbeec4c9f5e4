"""The Store on disk: one SQLite file and a folder of blobs, shared by the daemon and the commands.

Write-ahead log with full synchronisation: what returned is on disk, and a kill at any moment leaves
the state before or after a write, never between. Blobs lie outside transactions: they are written
before the record that names them, so the worst a crash leaves behind is an unreferenced file.
"""

from __future__ import annotations

import errno
import json
import os
import sqlite3
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from retuned.clock import SystemClock
from retuned.contract import Digest
from retuned.errors import TemporaryError, UnreadableInput, UsageError
from retuned.ports import Clock, Event, Stored
from retuned.store.blobs import BlobFolder, no_hook
from retuned.store.memory import (
    check_limit,
    check_mutable,
    check_name,
    check_proposal,
    encode,
    proposal_of,
)
from retuned.store.migrations import COLUMNS, migrate, stored_row, where_clause, write_ahead

DATABASE = "state.sqlite3"
"""Name of the file inside the state folder."""

_BUSY_S = 10.0
"""How long a write waits for another process's write."""
_AT_ONCE = 200
"""Most records that are forgotten in one write."""


class SqliteStore:
    """Durable state in one folder.

    Parameters
    ----------
    state_dir
        Folder; made if absent, readable by its owner only.
    clock
        Dates the records.
    hook
        Called with a name at every boundary that a crash could fall on.
    carried
        Names the span that records are written in; see `Spans.carried`.

    Raises
    ------
    UnreadableInput
        If the database is damaged or of a newer version.
    UsageError
        If the folder cannot be made or written.
    """

    def __init__(
        self,
        state_dir: Path,
        *,
        clock: Clock | None = None,
        hook: Callable[[str], None] = no_hook,
        carried: Callable[[], str] = str,
    ) -> None:
        self.path = state_dir / DATABASE
        self._clock = clock or SystemClock()
        self._hook = hook
        self._carried = carried
        self._lock = threading.RLock()
        self._in_transaction = False
        try:
            state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
            _create(self.path)
            self._blobs = BlobFolder(state_dir / "blobs", hook=hook)
        except OSError as error:
            raise UsageError(
                f"{error.filename or state_dir}: cannot keep state here ({error.strerror}); "
                "name another state_dir or fix its owner"
            ) from error
        with self._translated():
            self._db = self._connect()

    def close(self) -> None:
        """Let go of the file."""
        with self._lock:
            self._db.close()

    def add(self, kind: str, id: str, body: Mapping[str, Any], *, phase: str) -> bool:
        """Insert; False if the id is already there, which is left as it was."""
        for what, value in (("kind", kind), ("id", id), ("phase", phase)):
            check_name(what, value)
        now = self._clock.now().isoformat()
        row = (kind, id, phase, encode(body), now, now, proposal_of(kind, body))
        with self._write():
            known = "SELECT 1 FROM records WHERE kind = ? AND id = ?"
            if self._db.execute(known, (kind, id)).fetchone() is not None:
                return False  # checked first: without a write, record no span
            self._db.execute(
                "INSERT INTO records (kind, id, phase, body, created_at, updated_at, proposal, "
                "traceparent) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (*row, self._carried()),
            )
            return True

    def advance(
        self, kind: str, id: str, *, expect: str, to: str, body: Mapping[str, Any] | None = None
    ) -> bool:
        """Compare and set the phase (and body); False if the phase is not `expect`."""
        check_mutable(kind)
        check_name("phase", to)
        text = None if body is None else encode(body)
        proposal = None if body is None else proposal_of(kind, body)
        with self._write():
            done = self._db.execute(
                "UPDATE records SET phase = ?, body = coalesce(?, body), updated_at = ?, "
                "proposal = CASE WHEN ? IS NULL THEN proposal ELSE ? END "
                "WHERE kind = ? AND id = ? AND phase = ?",
                (to, text, self._clock.now().isoformat(), text, proposal, kind, id, expect),
            )
            if done.rowcount == 1 and (carried := self._carried()):
                self._db.execute(
                    "UPDATE records SET traceparent = ? WHERE kind = ? AND id = ?",
                    (carried, kind, id),
                )
            return done.rowcount == 1

    def get(self, kind: str, id: str) -> Stored | None:
        """Return one record."""
        rows = self._read(
            f"SELECT {COLUMNS} FROM records WHERE kind = ? AND id = ?",
            (kind, id),
        )
        return stored_row(rows[0]) if rows else None

    def list(
        self,
        kind: str,
        *,
        phase: str | None = None,
        prefix: str = "",
        above: str = "",
        proposal: str = "",
        limit: int | None = None,
    ) -> Sequence[Stored]:
        """Return records of a kind, oldest first; see `Store.list`."""
        check_limit(limit)
        check_proposal(kind, proposal)
        values: tuple[object, ...]
        where, values = where_clause(kind, phase, prefix, above, proposal)
        if limit is not None:  # chosen by an index alone: bodies of older ones are not read
            where = f"seq IN (SELECT seq FROM records WHERE {where} ORDER BY seq DESC LIMIT ?)"
            values = (*values, limit)
        rows = self._read(f"SELECT {COLUMNS} FROM records WHERE {where} ORDER BY seq", values)
        return [stored_row(row) for row in rows]

    def ids(
        self, kind: str, *, phase: str | None = None, prefix: str = "", above: str = ""
    ) -> Sequence[str]:
        """Return what `list` would, as ids only; bodies are not read from the disk."""
        where, values = where_clause(kind, phase, prefix, above, "")
        rows = self._read(f"SELECT id FROM records WHERE {where} ORDER BY seq", values)
        return [id for (id,) in rows]

    def page(
        self, kind: str, *, phases: Sequence[str], before: str = "", limit: int
    ) -> Sequence[Stored]:
        """Return the newest records in any of some phases, newest first; see `Store.page`."""
        check_limit(limit)
        below = 2**63 - 1
        if before:
            rows = self._read("SELECT seq FROM records WHERE kind = ? AND id = ?", (kind, before))
            if not rows:
                return []
            below = int(rows[0][0])
        found: list[tuple[Any, ...]] = []
        for phase in dict.fromkeys(phases):  # each by itself is a part of the index, in its order
            found += self._read(
                f"SELECT seq, {COLUMNS} FROM records "
                "WHERE kind = ? AND phase = ? AND seq < ? ORDER BY seq DESC LIMIT ?",
                (kind, phase, below, limit),
            )
        found.sort(key=lambda row: -int(row[0]))
        return [stored_row(row[1:]) for row in found[:limit]]

    def counts(self, kind: str) -> Mapping[str, int]:
        """Return how many records of a kind are in each phase."""
        rows = self._read(
            "SELECT phase, count(*) FROM records WHERE kind = ? GROUP BY phase", (kind,)
        )
        return {str(phase): int(count) for phase, count in rows}

    def forget(self, kind: str, *, phase: str, before: datetime, keep: Collection[str] = ()) -> int:
        """Remove old records of a phase for good; see `Store.forget`."""
        check_mutable(kind)
        rows = self._read(
            "SELECT id FROM records WHERE kind = ? AND phase = ? AND created_at < ? ORDER BY seq",
            (kind, phase, before.astimezone(UTC).isoformat()),
        )
        kept = frozenset(keep)
        old = [(kind, id, phase) for (id,) in rows if id not in kept]
        gone = 0
        for start in range(0, len(old), _AT_ONCE):
            with self._write():
                gone += self._db.executemany(
                    "DELETE FROM records WHERE kind = ? AND id = ? AND phase = ?",
                    old[start : start + _AT_ONCE],
                ).rowcount
        return gone

    def record(self, event: Event) -> None:
        """Append to the audit trail."""
        row = (
            event.at.isoformat(),
            event.kind,
            event.id,
            event.what,
            event.who,
            encode(event.detail),
        )
        with self._write():
            self._db.execute(
                "INSERT INTO events (at, kind, id, what, who, detail) VALUES (?, ?, ?, ?, ?, ?)",
                row,
            )

    def events(self, *, id: str | None = None, limit: int | None = None) -> Sequence[Event]:
        """Return the trail, oldest first (`limit` keeps the newest)."""
        check_limit(limit)
        rows = self._read(
            "SELECT at, kind, id, what, who, detail FROM events "
            "WHERE (? IS NULL OR id = ?) ORDER BY seq DESC LIMIT ?",
            (id, id, -1 if limit is None else limit),
        )
        return [
            Event(
                at=datetime.fromisoformat(at),
                kind=kind,
                id=about,
                what=what,
                who=who,
                detail=json.loads(detail),
            )
            for at, kind, about, what, who, detail in reversed(rows)
        ]

    def put_blob(self, data: bytes) -> Digest:
        """Keep bytes under their digest."""
        return self._blobs.put(data)

    def get_blob(self, digest: Digest) -> bytes:
        """Return bytes; verifies them.

        Raises
        ------
        UnreadableInput
            If they are absent or do not match their digest.
        """
        return self._blobs.get(digest)

    def drop_blob(self, digest: Digest) -> bool:
        """Forget bytes for good; see `Store.drop_blob`."""
        return self._blobs.drop(digest)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All writes inside happen together or not at all; other threads wait.

        Raises
        ------
        RuntimeError
            If one is already open on this thread.
        TemporaryError
            If another process holds the database for too long, or the disk is full.
        """
        with self._lock:
            if self._in_transaction:
                raise RuntimeError("transactions do not nest")
            with self._translated():
                self._db.execute("BEGIN IMMEDIATE")
            self._in_transaction = True
            try:
                self._hook("begun")
                yield
                self._hook("before-commit")
                with self._translated():
                    self._db.execute("COMMIT")
                self._hook("after-commit")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise
            finally:
                self._in_transaction = False

    def _connect(self) -> sqlite3.Connection:
        db = sqlite3.connect(
            self.path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
        )
        try:
            write_ahead(db, within_s=_BUSY_S)
            db.execute("PRAGMA synchronous = FULL")
            db.execute("PRAGMA trusted_schema = OFF")
            problems = db.execute("PRAGMA quick_check(1)").fetchone()
            if problems != ("ok",):
                raise sqlite3.DatabaseError(str(problems[0]))
            migrate(db, where=self.path)
        except BaseException:
            db.close()
            raise
        return db

    @contextmanager
    def _write(self) -> Iterator[None]:
        with self._lock:
            if self._in_transaction:
                with self._translated():
                    yield
                self._hook("written")
            else:
                with self.transaction(), self._translated():
                    yield
                    self._hook("written")

    def _read(self, query: str, values: tuple[object, ...]) -> Sequence[tuple[Any, ...]]:
        with self._lock, self._translated():
            return self._db.execute(query, values).fetchall()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Turn SQLite's errors into ours, with what to do."""
        try:
            yield
        except sqlite3.OperationalError as error:
            text = str(error)
            if "malformed" in text or "not a database" in text:
                raise _damaged(self.path, text) from error
            raise TemporaryError(
                f"{self.path}: {text}; another process holds it for long, the disk is full, or it "
                "cannot be written",
                delay_s=5.0,
            ) from error
        except sqlite3.DatabaseError as error:
            if type(error) is not sqlite3.DatabaseError:  # a constraint or a closed file: our fault
                raise
            raise _damaged(self.path, str(error)) from error


def _create(path: Path) -> None:
    """Make the file for its owner alone; one that exists is never opened here.

    To close any descriptor of the file would drop the locks of every connection that this process
    has to it. The next process that leaves the database would then remove the log in use.
    """
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError:
        if not os.access(path, os.R_OK | os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path)) from None


def _damaged(path: Path, text: str) -> UnreadableInput:
    return UnreadableInput(
        "state-corrupt",
        where=str(path),
        message=f"the database is damaged ({text}); stop the daemon, move {path.name} and its "
        "-wal and -shm files aside (or put back a copy) and start again. The server keeps "
        "serving what it runs now",
    )

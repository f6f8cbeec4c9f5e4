"""The state database: its versions, the way from each to the next, and how rows are asked for."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from retuned.errors import UnreadableInput
from retuned.ports import Stored
from retuned.store.memory import past_prefix
from retuned.store.proposal_migration import migrate_proposals

COLUMNS = "kind, id, phase, body, created_at, updated_at, traceparent"
"""What `stored_row` reads."""
_LOOK_S = 0.01

Step = str | Callable[[sqlite3.Connection], None]
"""A statement, or a function for what SQL cannot say."""

MIGRATIONS: tuple[tuple[Step, ...], ...] = (
    (
        """
        CREATE TABLE records (
            seq INTEGER PRIMARY KEY AUTOINCREMENT,
            kind TEXT NOT NULL,
            id TEXT NOT NULL,
            phase TEXT NOT NULL,
            body TEXT NOT NULL,
            created_at TEXT NOT NULL,
            updated_at TEXT NOT NULL,
            UNIQUE (kind, id)
        ) STRICT
        """,
        "CREATE INDEX records_by_phase ON records (kind, phase, seq)",
        """
        CREATE TABLE events (
            seq INTEGER PRIMARY KEY AUTOINCREMENT,
            at TEXT NOT NULL,
            kind TEXT NOT NULL,
            id TEXT NOT NULL,
            what TEXT NOT NULL,
            who TEXT NOT NULL,
            detail TEXT NOT NULL
        ) STRICT
        """,
        "CREATE INDEX events_by_id ON events (id, seq)",
        # the trail and people's words cannot be rewritten, not even by a fault of ours
        """
        CREATE TRIGGER events_stay BEFORE UPDATE ON events
        BEGIN SELECT raise(ABORT, 'the trail is never changed'); END
        """,
        """
        CREATE TRIGGER events_are_kept BEFORE DELETE ON events
        BEGIN SELECT raise(ABORT, 'the trail is never removed'); END
        """,
        """
        CREATE TRIGGER decisions_stay BEFORE UPDATE ON records WHEN old.kind = 'decision'
        BEGIN SELECT raise(ABORT, 'decisions are never changed'); END
        """,
        """
        CREATE TRIGGER decisions_are_kept BEFORE DELETE ON records WHEN old.kind = 'decision'
        BEGIN SELECT raise(ABORT, 'decisions are never removed'); END
        """,
    ),
    (
        # a column, since a schema that is not trusted must not call functions in an index
        "ALTER TABLE records ADD COLUMN proposal TEXT",
        "DROP TRIGGER decisions_stay",
        """
        UPDATE records SET proposal = json_extract(body, '$.proposal')
        WHERE kind IN ('decision', 'order')
        """,
        """
        CREATE TRIGGER decisions_stay BEFORE UPDATE ON records WHEN old.kind = 'decision'
        BEGIN SELECT raise(ABORT, 'decisions are never changed'); END
        """,
        "CREATE INDEX records_by_proposal ON records (kind, proposal, seq)",
    ),
    (
        # the span in which a row was last written
        "ALTER TABLE records ADD COLUMN traceparent TEXT NOT NULL DEFAULT ''",
    ),
    # one state machine for one machine and for a cluster
    (migrate_proposals,),
)
"""Statements that lead from version i to i + 1; what is here is never edited, only added to."""


def write_ahead(db: sqlite3.Connection, *, within_s: float) -> None:
    """Have a database keep a write-ahead log.

    For the change SQLite needs the file alone, and does not wait by itself until others who have
    just begun with it let it go.

    Raises
    ------
    sqlite3.OperationalError
        If the file is held for longer, or cannot be written.
    """
    until_s = time.monotonic() + within_s
    while True:
        try:
            db.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            is_held = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
            if not is_held or time.monotonic() > until_s:
                raise
        time.sleep(_LOOK_S)


def migrate(
    db: sqlite3.Connection,
    *,
    where: Path,
    migrations: tuple[tuple[Step, ...], ...] = MIGRATIONS,
) -> None:
    """Bring a database to the newest version, in one transaction, safe for concurrent processes.

    Raises
    ------
    UnreadableInput
        If it was written by a newer Retuned.
    """
    if _version(db) == len(migrations):
        return
    db.execute("BEGIN IMMEDIATE")
    try:
        found = _version(db)  # another process may have been first
        if found > len(migrations):
            raise UnreadableInput(
                "state-too-new",
                where=str(where),
                message=f"written by a newer Retuned (version {found}, this one knows "
                f"{len(migrations)}); upgrade, or name another state_dir",
            )
        for statements in migrations[found:]:
            for step in statements:
                if isinstance(step, str):
                    db.execute(step)
                else:
                    step(db)
        db.execute(f"PRAGMA user_version = {len(migrations)}")
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def where_clause(
    kind: str, phase: str | None, prefix: str, above: str, proposal: str
) -> tuple[str, tuple[str, ...]]:
    """Say which rows are meant, with only the conditions that hold: an index serves each."""
    conditions = [
        ("kind = ?", kind),
        ("phase = ?", phase),
        ("id >= ?", prefix or None),
        ("id < ?", past_prefix(prefix)),
        ("id > ?", above or None),
        ("proposal = ?", proposal or None),
    ]
    held = [(text, value) for text, value in conditions if value is not None]
    return " AND ".join(text for text, _ in held), tuple(value for _, value in held)


def stored_row(row: tuple[Any, ...]) -> Stored:
    """Return the record that a row of all columns but its number is."""
    kind, id, phase, body, created_at, updated_at, traceparent = row
    return Stored(
        kind=kind,
        id=id,
        phase=phase,
        body=json.loads(body),
        created_at=datetime.fromisoformat(created_at),
        updated_at=datetime.fromisoformat(updated_at),
        traceparent=traceparent,
    )


def _version(db: sqlite3.Connection) -> int:
    (version,) = db.execute("PRAGMA user_version").fetchone()
    return int(version)

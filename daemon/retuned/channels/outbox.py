"""What is to be said to channels, in a SQLite file of its own: lost in no crash, kept once.

A message is written before anything is sent and marked after it was taken. Per channel and subject
they go in their order, so that nothing is closed before it was opened; of several subjects the one
that presses most goes first. What was neither sent nor tried is dropped with what closes it. A kill
between sending and marking sends again, under the same key: channels that know keys take it once.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from pydantic import ValidationError

from retuned.channels.records import Notice, Standing
from retuned.errors import TemporaryError, UnreadableInput, UsageError
from retuned.store.migrations import write_ahead

FILE = "channels.sqlite3"
"""Name of the file inside the state folder."""
MAX_WAITING = 10_000
"""Messages of one channel that wait; more are refused, and said again by the next look."""
_VERSION = 1
_BUSY_S = 10.0
_KEEP_S = 90 * 86_400.0
_SCHEMA = (
    """
    CREATE TABLE messages (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        channel TEXT NOT NULL,
        key TEXT NOT NULL,
        subject TEXT NOT NULL,
        standing TEXT NOT NULL,
        body TEXT NOT NULL,
        phase TEXT NOT NULL,
        attempts INTEGER NOT NULL DEFAULT 0,
        next_s REAL NOT NULL,
        until_s REAL NOT NULL,
        changed_s REAL NOT NULL,
        error TEXT NOT NULL DEFAULT '',
        UNIQUE (channel, key)
    ) STRICT
    """,
    "CREATE INDEX messages_by_phase ON messages (phase, next_s)",
    "CREATE INDEX messages_by_subject ON messages (channel, subject, seq)",
    "CREATE TABLE subjects (subject TEXT PRIMARY KEY, open INTEGER NOT NULL, "
    "rounds INTEGER NOT NULL) STRICT",
    "CREATE TABLE tokens (token TEXT PRIMARY KEY, until_s REAL NOT NULL) STRICT",
    "CREATE TABLE begun (at TEXT NOT NULL) STRICT",
)
_NEXT = """
    SELECT seq, body, attempts FROM messages AS m
    WHERE channel = ? AND phase IN ('waiting', 'standing') AND next_s <= ? AND NOT EXISTS (
        SELECT 1 FROM messages AS o WHERE o.channel = m.channel AND o.subject = m.subject
        AND o.seq < m.seq AND o.phase = 'waiting'
    )
    ORDER BY CASE CASE WHEN json_valid(body) THEN json_extract(body, '$.severity') END
        WHEN 'critical' THEN 0 WHEN 'warning' THEN 1 ELSE 2 END, next_s, seq
    LIMIT 1
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A message that is due."""

    seq: int
    """Its number."""
    channel: str
    """Where it goes."""
    notice: Notice
    """What it says."""
    attempts: int
    """How often it was tried."""


class Outbox:
    """Messages to channels, and tokens that were used.

    Parameters
    ----------
    folder
        The state folder.
    now
        When this is.

    Raises
    ------
    UnreadableInput
        If the file is damaged or of a newer version.
    UsageError
        If it cannot be made.
    """

    def __init__(self, folder: Path, *, now: datetime) -> None:
        self.path = folder / FILE
        self._lock = threading.RLock()
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            os.close(os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600))
        except OSError as error:
            raise UsageError(f"{self.path}: cannot be made ({error.strerror})") from error
        with self._translated():
            self._db = sqlite3.connect(
                self.path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
            )
            write_ahead(self._db, within_s=_BUSY_S)
            self._db.execute("PRAGMA synchronous = FULL")
            self._db.execute("PRAGMA trusted_schema = OFF")
            self._migrate(now)

    def close(self) -> None:
        """Let go of the file."""
        with self._lock:
            self._db.close()

    def begun(self) -> datetime:
        """Return when this outbox was made: what happened before is not told."""
        found = self._one("SELECT at FROM begun")
        assert found is not None, "written with the tables"
        return datetime.fromisoformat(str(found[0]))

    def rounds(self, subject: str) -> int:
        """Return how often a subject was closed."""
        found = self._one("SELECT rounds FROM subjects WHERE subject = ?", subject)
        return int(str(found[0])) if found else 0

    def opened(self) -> Sequence[str]:
        """Return the subjects that are open."""
        with self._lock, self._translated():
            rows = self._db.execute("SELECT subject FROM subjects WHERE open = 1").fetchall()
        return [str(subject) for (subject,) in rows]

    def last_opening(self, subject: str) -> Notice | None:
        """Return what opened a subject last; None where nothing did that can be read."""
        found = self._one(
            "SELECT body FROM messages WHERE subject = ? AND standing = 'open' "
            "ORDER BY seq DESC LIMIT 1",
            subject,
        )
        try:
            return Notice.model_validate_json(str(found[0])) if found else None
        except ValidationError:
            return None

    def put(self, notice: Notice, *, channels: Sequence[str], now: datetime) -> int:
        """Keep what is to be said, and on which channels; return on how many it is new."""
        if self.knows(notice.key, channels=channels):
            return 0
        with self._transaction():
            if notice.standing is not Standing.TELL:
                self._mark(notice)
            return sum(self._put(notice, channel, now_s=now.timestamp()) for channel in channels)

    def knows(self, key: str, *, channels: Sequence[str]) -> bool:
        """Whether something was kept under this key for each of some channels."""
        with self._lock, self._translated():
            rows = self._db.execute("SELECT channel FROM messages WHERE key = ?", (key,)).fetchall()
        return set(channels) <= {str(channel) for (channel,) in rows}

    def due(self, channel: str, *, now: datetime) -> Waiting | None:
        """Return what is to be sent next, of each subject its oldest; None where nothing is due."""
        while True:
            found = self._one(_NEXT, channel, now.timestamp())
            if found is None:
                return None
            seq, body, attempts = (int(str(found[0])), str(found[1]), int(str(found[2])))
            try:
                notice = Notice.model_validate_json(body)
            except ValidationError:
                self.give_up(seq, error="unreadable", now=now)
                continue
            return Waiting(seq=seq, channel=channel, notice=notice, attempts=attempts)

    def give_up_unset(self, channels: Sequence[str], *, now: datetime) -> dict[str, int]:
        """Give up what is for other channels than these; return how many messages, by channel."""
        lost = {
            channel: 0
            for channel, phase in self.counts()
            if phase in ("waiting", "standing") and channel not in channels
        }
        for name in lost:
            with self._transaction():
                done = self._db.execute(
                    "UPDATE messages SET phase = 'given-up', error = 'channel-not-set', "
                    "changed_s = ? WHERE channel = ? AND phase IN ('waiting', 'standing')",
                    (now.timestamp(), name),
                )
                lost[name] = done.rowcount
        return lost

    def trying(self, seq: int) -> None:
        """Note that a message is about to be sent: from here on it may have arrived."""
        self._set("attempts = attempts + 1", seq)

    def sent(self, seq: int, *, now: datetime, again_s: float | None = None) -> None:
        """Note that a message was taken.

        Parameters
        ----------
        again_s
            Say it again after so long, while nothing closes it; None says it once.
        """
        now_s = now.timestamp()
        if again_s is None:
            self._set("phase = 'sent', error = '', changed_s = ?", seq, now_s)
        else:
            self._set(
                "phase = 'standing', error = '', attempts = 0, changed_s = ?, next_s = ?",
                seq, now_s, now_s + again_s,
            )  # fmt: skip

    def failed(self, seq: int, *, error: str, again_s: float, now: datetime) -> None:
        """Note that a message was not taken, and when to try again."""
        self._set("error = ?, next_s = ?", seq, error[:300], now.timestamp() + again_s)

    def give_up(self, seq: int, *, error: str, now: datetime) -> None:
        """Note that a message is of no use any more."""
        self._set("phase = 'given-up', error = ?, changed_s = ?", seq, error[:300], now.timestamp())

    def use(self, token: str, *, until: datetime, now: datetime) -> bool:
        """Note that something was used; False where it was before."""
        with self._transaction():
            self._db.execute("DELETE FROM tokens WHERE until_s < ?", (now.timestamp(),))
            done = self._db.execute(
                "INSERT INTO tokens (token, until_s) VALUES (?, ?) ON CONFLICT DO NOTHING",
                (token, until.timestamp()),
            )
            return done.rowcount == 1

    def forget(self, *, now: datetime) -> None:
        """Remove what was over long ago."""
        with self._transaction():
            self._db.execute(
                "DELETE FROM messages WHERE phase IN ('sent', 'dropped', 'given-up') "
                "AND changed_s < ?",
                (now.timestamp() - _KEEP_S,),
            )

    def counts(self) -> dict[tuple[str, str], int]:
        """Return how many messages there are, by channel and phase."""
        with self._lock, self._translated():
            rows = self._db.execute(
                "SELECT channel, phase, count(*) FROM messages GROUP BY channel, phase"
            ).fetchall()
        return {(str(channel), str(phase)): int(count) for channel, phase, count in rows}

    def waiting(self) -> dict[str, tuple[int, datetime]]:
        """Return how many messages wait, and since when the oldest does, by channel."""
        with self._lock, self._translated():
            rows = self._db.execute(
                "SELECT channel, count(*), min(changed_s) FROM messages WHERE phase = 'waiting' "
                "GROUP BY channel"
            ).fetchall()
        return {
            str(channel): (int(count), datetime.fromtimestamp(since_s, UTC))
            for channel, count, since_s in rows
        }

    # --- within -----------------------------------------------------------------------------------

    def _mark(self, notice: Notice) -> None:
        opens = notice.standing is Standing.OPEN
        self._db.execute(
            "INSERT INTO subjects (subject, open, rounds) VALUES (?, ?, 0) "
            "ON CONFLICT (subject) DO UPDATE SET open = excluded.open, rounds = rounds + ?",
            (notice.subject, int(opens), int(not opens)),
        )

    def _put(self, notice: Notice, channel: str, *, now_s: float) -> bool:
        (waiting,) = self._db.execute(
            "SELECT count(*) FROM messages WHERE channel = ? AND phase = 'waiting'", (channel,)
        ).fetchone()
        if waiting >= MAX_WAITING:
            raise TemporaryError(f"{channel}: {waiting} messages wait already", delay_s=60.0)
        about = (channel, notice.subject)
        phase = "waiting"
        if notice.standing is not Standing.TELL:  # what it overtakes is of no use any more
            self._db.execute(
                "UPDATE messages SET phase = 'dropped', changed_s = ? WHERE channel = ? AND "
                "subject = ? AND phase = 'waiting' AND standing != 'tell' AND attempts = 0",
                (now_s, *about),
            )
            self._db.execute(
                "UPDATE messages SET phase = 'sent', changed_s = ? WHERE channel = ? AND "
                "subject = ? AND phase = 'standing'",
                (now_s, *about),
            )
        if notice.standing is Standing.CLOSE and not self._may_stand(about):
            phase = "dropped"
        done = self._db.execute(
            "INSERT INTO messages (channel, key, subject, standing, body, phase, next_s, until_s, "
            "changed_s) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (channel, key) DO NOTHING",
            (
                channel, notice.key, notice.subject, str(notice.standing),
                notice.model_dump_json(), phase, now_s, notice.until.timestamp(), now_s,
            ),
        )  # fmt: skip
        return done.rowcount == 1 and phase == "waiting"

    def _may_stand(self, about: tuple[str, str]) -> bool:
        """Whether the channel may have taken what opens a subject, and nothing that closes it."""
        last = self._db.execute(
            "SELECT standing FROM messages WHERE channel = ? AND subject = ? AND "
            "standing != 'tell' AND (phase = 'sent' OR attempts > 0) ORDER BY seq DESC LIMIT 1",
            about,
        ).fetchone()
        return last is not None and last[0] == str(Standing.OPEN)

    def _set(self, what: str, seq: int, *values: object) -> None:
        with self._transaction():
            self._db.execute(f"UPDATE messages SET {what} WHERE seq = ?", (*values, seq))

    def _one(self, query: str, *values: object) -> tuple[object, ...] | None:
        with self._lock, self._translated():
            found: tuple[object, ...] | None = self._db.execute(query, values).fetchone()
            return found

    def _migrate(self, now: datetime) -> None:
        with self._transaction():
            (found,) = self._db.execute("PRAGMA user_version").fetchone()
            if found > _VERSION:
                raise UnreadableInput(
                    "state-too-new",
                    where=str(self.path),
                    message="written by a newer Retuned; upgrade, or move it aside: what waits in "
                    "it is then not sent",
                )
            if found == _VERSION:
                return
            for statement in _SCHEMA:
                self._db.execute(statement)
            self._db.execute("INSERT INTO begun (at) VALUES (?)", (now.isoformat(),))
            self._db.execute(f"PRAGMA user_version = {_VERSION}")

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._lock, self._translated():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            raise TemporaryError(f"{self.path}: {error}", delay_s=5.0) from error
        except sqlite3.DatabaseError as error:
            if type(error) is not sqlite3.DatabaseError:
                raise
            raise UnreadableInput(
                "state-corrupt",
                where=str(self.path),
                message=f"is damaged ({error}); move it aside, and what waits in it is not sent",
            ) from error

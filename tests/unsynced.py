"""Stores that do not wait for the disk, for tests that write thousands of records.

A commit then outlives the end of a process and not a power cut. No virtual world has a power cut:
its kills are exceptions. Programs that a test starts and the tests of the store wait as users'
daemons do.
"""

from __future__ import annotations

import sqlite3

import pytest

from retuned.store.sqlite import SqliteStore


@pytest.fixture(autouse=True)
def unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let stores of this process return from a commit before the disk has it."""
    connect = SqliteStore._connect

    def connected(store: SqliteStore) -> sqlite3.Connection:
        db = connect(store)
        db.execute("PRAGMA synchronous = OFF")
        return db

    monkeypatch.setattr(SqliteStore, "_connect", connected)

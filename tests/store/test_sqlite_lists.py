"""What a list of the store reads from the disk."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from retuned.store.sqlite import SqliteStore


def test_a_list_with_a_limit_chooses_its_rows_without_reading_any_other(tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path)) as store:
        for n in range(9):
            store.add("kind", f"serving/chat/{n}", {"large": "x" * 5000}, phase="new")
        asked: list[str] = []
        store._db.set_trace_callback(asked.append)
        found = store.list("kind", prefix="serving/chat/", limit=2)
        store._db.set_trace_callback(None)
        assert [each.id for each in found] == ["serving/chat/7", "serving/chat/8"]
        (query,) = asked
        steps = [row[3] for row in store._db.execute(f"EXPLAIN QUERY PLAN {query}")]
    searched = [step for step in steps if "records" in step]
    assert len(searched) == 2
    assert all("PRIMARY KEY" in step or "COVERING INDEX" in step for step in searched)

"""Wherever the text of a trace is cut for reading, the events are the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from retuned.errors import UnreadableInput
from retuned.traces.events import EventStream
from retuned.traces.source import ByteSource, ReadLimits

EVENTS: list[dict[str, Any]] = [
    {"name": "é]{}, ", "dur": 1.25, "ts": -12.5e3},
    {"name": "b", "args": {"a": {"b": {"c": [{}, {"d": 1}]}}}, "dur": 100.0625},
    {"name": "c", "args": {n: {"x": [{"y": {}}]} for n in "pqrstuvw"}, "dur": 7.125},
]
TEXT = json.dumps({"schemaVersion": 1, "traceEvents": EVENTS, "last": 1}, ensure_ascii=False)


def read(path: Path, *, chunk_bytes: int) -> list[dict[str, Any]]:
    limits = ReadLimits(chunk_bytes=chunk_bytes)
    source = ByteSource(path, limits=limits)
    try:
        stream = EventStream(source, b"", event=dict[str, Any], limits=limits)
        return [event for events in stream for event in events]
    finally:
        source.close()


@pytest.mark.parametrize("chunk_bytes", range(1, len(TEXT.encode()) + 2))
def test_cut_anywhere_the_events_are_the_same(tmp_path: Path, chunk_bytes: int) -> None:
    path = tmp_path / "trace.json"
    path.write_text(TEXT, "utf-8")
    assert read(path, chunk_bytes=chunk_bytes) == EVENTS


@pytest.mark.parametrize("chunk_bytes", [1, 7, 64, 10_000])
@pytest.mark.parametrize("number", ["1.", "-", "1e", "1.2.3"])
def test_a_number_that_is_none_is_refused_wherever_it_is_cut(
    tmp_path: Path, number: str, chunk_bytes: int
) -> None:
    path = tmp_path / "trace.json"
    path.write_text(TEXT.replace("100.0625", number), "utf-8")
    with pytest.raises(UnreadableInput) as caught:
        read(path, chunk_bytes=chunk_bytes)
    assert caught.value.code == "damaged-json"

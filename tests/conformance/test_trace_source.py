"""One suite over both trace sources: folders and the fake mean the same."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from retuned.clock import FakeClock
from retuned.ports import TraceSource
from retuned.traces import read_trace
from retuned.traces.folder import FakeTraceSource, TraceFolders, WatchSettings

DATA = Path(__file__).resolve().parents[1] / "data" / "traces"


@dataclass
class Subject:
    """A source, and how something outside happens to it."""

    source: TraceSource
    land: Callable[[str, str, float], None]
    """Let a file of ours complete under a name, at a time."""
    spoil: Callable[[str], None]
    """Let an unreadable file complete under a name."""


@pytest.fixture(params=["folders", "fake"])
def subject(request: pytest.FixtureRequest, tmp_path: Path) -> Subject:
    if request.param == "fake":
        fake = FakeTraceSource()

        def hand_in(file: str, name: str, at_s: float) -> None:
            path = tmp_path / name
            shutil.copyfile(DATA / file, path)
            os.utime(path, (at_s, at_s))
            fake.add(read_trace(path))

        return Subject(
            fake, hand_in, lambda name: fake.refuse(str(tmp_path / name), f"{tmp_path / name}: no")
        )
    folders = TraceFolders([tmp_path], clock=FakeClock())

    def write(file: str, name: str, at_s: float) -> None:
        shutil.copyfile(DATA / file, tmp_path / name)
        os.utime(tmp_path / name, (at_s, at_s))

    def junk(name: str) -> None:
        (tmp_path / name).write_text("hello\n")
        os.utime(tmp_path / name, (1.0, 1.0))

    return Subject(folders, write, junk)


def test_nothing_landed_is_no_batch_and_no_failure(subject: Subject) -> None:
    assert list(subject.source.poll()) == []
    assert list(subject.source.failures()) == []


def test_a_complete_file_comes_once(subject: Subject) -> None:
    subject.land("rocpd.db", "a.db", 100.0)
    (batch,) = subject.source.poll()
    assert batch.format == "rocpd"
    assert len(batch.launches) == 3
    assert batch.completed_at_ns == 100 * 10**9
    assert list(subject.source.poll()) == []


def test_batches_come_oldest_first(subject: Subject) -> None:
    subject.land("rocpd.db", "a.db", 300.0)
    subject.land("rocprofv3_7_2.csv", "b.csv", 100.0)
    subject.land("kineto_cpu.json", "c.json", 200.0)
    assert [Path(batch.origin).name for batch in subject.source.poll()] == [
        "b.csv",
        "c.json",
        "a.db",
    ]


def test_the_same_content_under_another_name_is_not_counted_again(subject: Subject) -> None:
    subject.land("rocpd.db", "a.db", 100.0)
    subject.land("rocpd.db", "b.db", 200.0)
    assert len(subject.source.poll()) == 1
    subject.land("rocpd.db", "c.db", 300.0)
    assert list(subject.source.poll()) == []
    assert list(subject.source.failures()) == []


def test_an_unreadable_file_is_a_failure_once_and_stops_no_other(subject: Subject) -> None:
    subject.spoil("bad.csv")
    subject.land("rocpd.db", "good.db", 100.0)
    assert len(subject.source.poll()) == 1
    ((path, message),) = subject.source.failures()
    assert path.endswith("bad.csv")
    assert "bad.csv" in message
    subject.source.poll()
    assert list(subject.source.failures()) == []


def test_what_could_not_be_kept_is_handed_out_again(subject: Subject) -> None:
    subject.land("rocprofv3_7_2.csv", "a.csv", 1.0)
    subject.land("kineto_rocm.json", "b.json", 2.0)
    first, second = subject.source.poll()
    subject.source.give_back([second])
    assert [batch.digest for batch in subject.source.poll()] == [second.digest]
    assert list(subject.source.poll()) == []
    assert first.digest != second.digest


def test_the_newest_files_are_read_however_many_lie_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(5):
        (tmp_path / f"old{number}.csv").write_text("hello\n")
        os.utime(tmp_path / f"old{number}.csv", (1.0 + number, 1.0 + number))
    shutil.copyfile(DATA / "rocprofv3_7_2.csv", tmp_path / "zzz.csv")
    os.utime(tmp_path / "zzz.csv", (100.0, 100.0))
    source = TraceFolders([tmp_path], clock=FakeClock(), settings=WatchSettings(max_files=3))
    assert [Path(batch.origin).name for batch in source.poll()] == ["zzz.csv"]
    source.poll()
    assert caplog.text.count("more than 3 files") == 1, "said once, not at every look"


def test_a_file_name_that_is_no_text_is_read_and_named_with_escapes(tmp_path: Path) -> None:
    hostile = os.fsencode(tmp_path) + b"/bad\xff.csv"
    shutil.copyfile(DATA / "rocprofv3_7_2.csv", hostile)
    os.utime(hostile, (1.0, 1.0))
    (batch,) = TraceFolders([tmp_path], clock=FakeClock()).poll()
    assert batch.origin.endswith("bad\\udcff.csv")
    assert batch.origin.encode("utf-8")

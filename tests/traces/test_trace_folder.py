"""When a file in a watched folder counts as complete."""

from __future__ import annotations

import os
import shutil
from datetime import timedelta
from pathlib import Path

import pytest

from retuned.clock import FakeClock
from retuned.traces import ReadLimits
from retuned.traces.folder import TraceFolders, WatchSettings
from retuned.traces.source import content_digest

SETTINGS = WatchSettings(settle_s=2.0, patience_s=60.0)


class Folder:
    """A folder, a clock that stands still until moved, and who watches."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = FakeClock()
        self.source = TraceFolders([path], clock=self.clock, settings=SETTINGS)

    def write(self, name: str, content: bytes) -> Path:
        """Write as a profiler does: the time of change is now."""
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        self.touch(path)
        return path

    def touch(self, path: Path) -> None:
        now_s = self.clock.now().timestamp()
        os.utime(path, (now_s, now_s))

    def names(self) -> list[str]:
        return [Path(batch.origin).name for batch in self.source.poll()]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "watched")


def test_a_folder_that_does_not_exist_yet_is_waited_for(folder: Folder, data: Path) -> None:
    assert folder.names() == []
    folder.write("a.db", (data / "rocpd.db").read_bytes())
    folder.clock.advance(3)
    assert folder.names() == ["a.db"]


def test_a_file_is_taken_only_when_it_has_stood_still(folder: Folder, data: Path) -> None:
    whole = (data / "kineto_rocm.json").read_bytes()
    for cut in (500, 900, len(whole)):
        path = folder.write("a.json", whole[:cut])
        folder.clock.advance(1.9)
        assert folder.names() == []
    folder.touch(path)
    folder.clock.advance(1.9)
    assert folder.names() == []
    folder.clock.advance(0.2)
    assert folder.names() == ["a.json"]


def test_a_file_moved_in_whole_is_taken_at_once(folder: Folder, data: Path) -> None:
    path = folder.write("a.tmp", (data / "rocpd.db").read_bytes())
    folder.clock.advance(30)
    assert folder.names() == []
    path.rename(folder.path / "a.db")
    assert folder.names() == ["a.db"]


def test_a_file_from_the_future_is_taken_when_it_has_been_seen_to_stand_still(
    folder: Folder, data: Path
) -> None:
    """A node whose clock is ahead, or ours that was put back."""
    path = folder.write("a.db", (data / "rocpd.db").read_bytes())
    folder.clock.set_wall(folder.clock.now() - timedelta(days=1))
    assert folder.names() == []
    folder.clock.advance(2.1)
    assert folder.names() == [path.name]


@pytest.mark.parametrize("name", ["kineto_rocm.json", "kineto_rocm.json.gz", "rocpd.db"])
def test_a_writer_that_pauses_mid_file_costs_nothing(name: str, folder: Folder, data: Path) -> None:
    whole = (data / name).read_bytes()
    folder.write(name, whole[: len(whole) // 2])
    folder.clock.advance(30)
    assert folder.names() == []
    assert list(folder.source.failures()) == []
    folder.write(name, whole)
    folder.clock.advance(3)
    assert folder.names() == [name]
    assert list(folder.source.failures()) == []


def test_a_file_that_stays_half_is_refused_when_patience_ends(folder: Folder, data: Path) -> None:
    whole = (data / "kineto_rocm.json.gz").read_bytes()
    folder.write("a.json.gz", whole[:300])
    folder.clock.advance(3)
    assert folder.names() == []
    folder.clock.advance(61)
    assert folder.names() == []
    ((path, message),) = folder.source.failures()
    assert path.endswith("a.json.gz")
    assert "truncated-gzip" in message
    assert "byte 300" in message


def test_a_refused_file_that_is_written_again_gets_another_chance(
    folder: Folder, data: Path
) -> None:
    folder.write("a.csv", b"hello\n")
    folder.clock.advance(3)
    assert folder.names() == []
    assert len(folder.source.failures()) == 1
    folder.write("a.csv", (data / "rocprofv3_7_2.csv").read_bytes())
    folder.clock.advance(3)
    assert folder.names() == ["a.csv"]


def test_contents_known_from_an_earlier_life_are_not_counted(tmp_path: Path, data: Path) -> None:
    shutil.copyfile(data / "rocpd.db", tmp_path / "a.db")
    os.utime(tmp_path / "a.db", (1, 1))
    known = {content_digest(data / "rocpd.db")}
    source = TraceFolders([tmp_path], clock=FakeClock(), known=known)
    assert list(source.poll()) == []
    assert list(source.failures()) == []


def test_folders_below_are_watched_links_and_hidden_files_are_not(
    folder: Folder, data: Path, tmp_path: Path
) -> None:
    content = (data / "rocpd.db").read_bytes()
    folder.write("host/77_results.db", content)
    (tmp_path / "secret.csv").write_bytes((data / "rocprofv3_7_2.csv").read_bytes())
    (folder.path / "link.csv").symlink_to(tmp_path / "secret.csv")
    (folder.path / "up").symlink_to(tmp_path)
    os.mkfifo(folder.path / "pipe")
    folder.write(".hidden.csv", (data / "rocprofv3_6_4.csv").read_bytes())
    folder.clock.advance(3)
    assert folder.names() == ["77_results.db"]
    assert list(folder.source.failures()) == []


def test_a_poll_takes_no_more_launches_than_it_may_and_the_rest_comes_next(
    tmp_path: Path, data: Path
) -> None:
    names = ("rocprofv3_6_2_0.csv", "rocprofv3_6_4.csv", "rocprofv3_7_2.csv")
    for at, name in enumerate(names, start=1):
        shutil.copyfile(data / name, tmp_path / name)
        os.utime(tmp_path / name, (at, at))
    settings = WatchSettings(max_launches=4)
    source = TraceFolders([tmp_path], clock=FakeClock(), settings=settings)
    assert [len(batch.launches) for batch in source.poll()] == [3, 3]
    assert [len(batch.launches) for batch in source.poll()] == [3]
    assert list(source.poll()) == []


def test_a_file_beyond_the_limits_is_a_failure_that_says_so(tmp_path: Path, data: Path) -> None:
    shutil.copyfile(data / "rocprofv3.json", tmp_path / "big.json")
    os.utime(tmp_path / "big.json", (1, 1))
    source = TraceFolders(
        [tmp_path], clock=FakeClock(), limits=ReadLimits(document_bytes=100, rows=10)
    )
    assert list(source.poll()) == []
    assert "too-large" in source.failures()[0][1]


def test_a_folder_nobody_may_read_is_no_crash(tmp_path: Path) -> None:
    source = TraceFolders([Path("/proc/1/task/1/fd"), tmp_path / "absent"], clock=FakeClock())
    assert list(source.poll()) == []


def test_what_is_forgotten_when_files_are_deleted_is_only_their_state(
    folder: Folder, data: Path
) -> None:
    content = (data / "rocpd.db").read_bytes()
    path = folder.write("a.db", content)
    folder.clock.advance(3)
    assert folder.names() == ["a.db"]
    path.unlink()
    assert folder.names() == []
    folder.write("a.db", content)
    folder.clock.advance(3)
    assert folder.names() == []  # the same content, though the file is new

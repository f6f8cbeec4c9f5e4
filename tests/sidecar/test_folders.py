"""A pod's disk stays small: traces that were read go, and so does what is over in the store."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.sidecar.sidecar_world import PodWorld

from retuned.api.agent import DriftPost, ProfileReport
from retuned.clock import FakeClock
from retuned.ports import TraceBatch
from retuned.sidecar.store import kept_of
from retuned.sidecar.trace_folders import EmptiedFolders
from retuned.traces.folder import FakeTraceSource


class Folder:
    def __init__(self, path: Path, *, max_bytes: int = 1 << 20) -> None:
        self.path = path
        self.clock = FakeClock()
        self.source = FakeTraceSource()
        self.emptied = EmptiedFolders(
            [path], source=self.source, clock=self.clock, max_bytes=max_bytes
        )

    def write(self, name: str, *, size: int = 10, read: bool = True) -> Path:
        path = self.path / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_bytes(b"x" * size)
        at = self.clock.now().timestamp()
        os.utime(path, (at, at))
        if read:
            self.source.add(
                TraceBatch(
                    origin=str(path),
                    digest=f"sha256:{name:0>64}",
                    format="test",
                    launches=(),
                    span_ns=0,
                    completed_at_ns=path.stat().st_mtime_ns,
                )
            )
        return path

    def names(self) -> list[str]:
        return sorted(path.name for path in self.path.rglob("*") if path.is_file())


def test_a_file_goes_once_what_it_says_is_kept(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.write("host/1")
    assert len(folder.emptied.poll()) == 1
    assert folder.names() == ["1"], "it might be given back"
    folder.emptied.poll()
    assert folder.names() == []


def test_a_file_that_could_not_be_kept_stays_and_comes_again(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.write("1")
    batches = folder.emptied.poll()
    folder.emptied.give_back(batches)
    assert len(folder.emptied.poll()) == 1
    assert folder.names() == ["1"]


def test_a_file_that_was_written_to_again_is_not_lost(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    path = folder.write("1")
    folder.emptied.poll()
    later = folder.clock.now().timestamp() + 5.0
    path.write_bytes(b"more")
    os.utime(path, (later, later))
    folder.emptied.poll()
    assert folder.names() == ["1"]


def test_too_much_goes_oldest_first_and_what_is_young_stays(tmp_path: Path) -> None:
    folder = Folder(tmp_path, max_bytes=2_500)
    for number in range(5):
        folder.write(str(number), size=1_000, read=False)
        folder.clock.advance(20.0)
    folder.write("young", size=5_000, read=False)
    folder.emptied.poll()
    assert folder.names() == ["young"]


def test_what_was_refused_goes_after_a_while(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.write("refused", read=False)
    folder.clock.advance(500.0)
    folder.emptied.poll()
    assert folder.names() == ["refused"]
    folder.clock.advance(200.0)
    folder.emptied.poll()
    assert folder.names() == []


def test_links_out_of_the_folder_are_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_bytes(b"x" * 10_000)
    watched = tmp_path / "watched"
    watched.mkdir()
    (watched / "link").symlink_to(outside)
    folder = Folder(watched, max_bytes=10)
    folder.clock.set_wall(datetime.now(UTC))
    folder.clock.advance(10_000.0)
    folder.emptied.poll()
    assert (outside / "precious").exists()


@pytest.mark.slow
def test_hundreds_of_windows_leave_a_small_store_and_each_is_told_once(tmp_path: Path) -> None:
    world = PodWorld(tmp_path)
    windows = 400
    for number in range(windows):
        world.trace(launches=60, number=number)
        world.turn(60.0)
    world.turn(60.0)
    told = world.said(ProfileReport)
    assert len({each.id for each in told}) == len(told) >= windows - 1
    assert not world.said(DriftPost), "nothing changed"
    kept = sum(kept_of(3).values())
    counts = {kind: len(world.ctx.store.ids(kind)) for kind in ("batch", "window", "drift", "told")}
    assert sum(counts.values()) < kept
    assert counts["window"] <= 80
    size = (tmp_path / "state" / "state.sqlite3").stat().st_size
    assert size < 8 << 20, f"{size} bytes"

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest
from tests.expect import raises_code

from retuned.runtime.profiler.folder import SUFFIX, FolderUnusable, check, plain_path, publish

KERNEL = b'{"ph": "X", "cat": "kernel", "name": "k"},\n'
ROOM = 1 << 30


def test_a_file_appears_whole_readable_by_all_and_its_kernels_are_counted(tmp_path: Path) -> None:
    plain = plain_path(tmp_path, "retuned-1-ab-000001" + SUFFIX)
    content = KERNEL * 30_000  # some lie across two pieces
    plain.write_bytes(content)
    target = tmp_path / ("retuned-1-ab-000001" + SUFFIX)
    before = os.umask(0o077)
    try:
        assert publish(plain, target, max_bytes=ROOM) == 30_000
    finally:
        os.umask(before)
    assert gzip.decompress(target.read_bytes()) == content
    assert target.stat().st_mode & 0o777 == 0o644, "a sidecar is another user"
    assert list(tmp_path.iterdir()) == [target]


def test_what_is_too_large_leaves_nothing_behind(tmp_path: Path) -> None:
    plain = plain_path(tmp_path, "x")
    plain.write_bytes(KERNEL * 10)
    with raises_code(FolderUnusable, "too-large"):
        publish(plain, tmp_path / "x", max_bytes=100)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_holds_its_share_takes_no_more_until_somebody_has_read_it(
    tmp_path: Path,
) -> None:
    (tmp_path / "read-me").write_bytes(bytes(2000))
    check(tmp_path, 2000)
    with raises_code(FolderUnusable, "folder-full"):
        check(tmp_path, 1999)


def test_a_disk_without_room_counts_as_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = os.statvfs_result((4096, 4096, 100, 1, 1, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: full)
    with raises_code(FolderUnusable, "folder-full"):
        check(tmp_path, 1 << 20)


def test_a_folder_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    with raises_code(FolderUnusable, "folder-missing"):
        check(tmp_path / "nowhere", 1000)
    assert list(tmp_path.iterdir()) == []


def test_half_a_file_of_a_process_that_was_killed_is_removed_and_a_fresh_one_is_not(
    tmp_path: Path,
) -> None:
    old, fresh = plain_path(tmp_path, "old"), plain_path(tmp_path, "fresh")
    for path in (old, fresh):
        path.write_bytes(b"x")
    os.utime(old, (1.0, 1.0))
    check(tmp_path, ROOM)
    assert [path.name for path in tmp_path.iterdir()] == [fresh.name]

"""A folder of rows is there whole or not at all."""

from __future__ import annotations

import errno
import hashlib
import io
import os
from pathlib import Path

import pytest
from tests.expect import raises_naming

from retuned.errors import UsageError
from retuned_bench.dataset.folder import draft


def test_a_folder_appears_when_all_of_it_is_written(tmp_path: Path) -> None:
    target = tmp_path / "set"
    with draft(target, ["a.jsonl", "b.jsonl"]) as made:
        made.files["a.jsonl"].add('{"x":"\u00e4"}')
        made.put("manifest.json", "{}\n")
        assert not target.exists()
    assert sorted(path.name for path in target.iterdir()) == ["a.jsonl", "b.jsonl", "manifest.json"]
    data = (target / "a.jsonl").read_bytes()
    assert data == '{"x":"\u00e4"}\n'.encode()
    lines = made.files["a.jsonl"]
    assert (lines.rows, lines.bytes) == (1, len(data))
    assert lines.sha256 == "sha256:" + hashlib.sha256(data).hexdigest()
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("kind", [RuntimeError, KeyboardInterrupt])
def test_what_goes_wrong_inside_leaves_nothing(tmp_path: Path, kind: type[BaseException]) -> None:
    def fail() -> None:
        with draft(tmp_path / "set", ["a.jsonl"]) as made:
            made.files["a.jsonl"].add("{}")
            raise kind

    with pytest.raises(kind):
        fail()
    assert list(tmp_path.iterdir()) == []


class Full(io.BytesIO):
    """A stream on a disk without room."""

    def write(self, data: object) -> int:
        raise OSError(28, "No space left on device")


def test_a_full_disk_is_told_with_the_file_and_leaves_nothing(tmp_path: Path) -> None:
    def fill() -> None:
        with draft(tmp_path / "set", ["a.jsonl"]) as made:
            made.files["a.jsonl"].stream.close()
            made.files["a.jsonl"].stream = Full()
            made.files["a.jsonl"].add("{}")

    with raises_naming(UsageError, "set/a.jsonl", os.strerror(errno.ENOSPC)):
        fill()
    assert list(tmp_path.iterdir()) == []


def test_an_error_of_the_block_is_not_blamed_on_the_folder(tmp_path: Path) -> None:
    def broken() -> None:
        with draft(tmp_path / "set", ["a.jsonl"]):
            raise ConnectionResetError("the store")

    with raises_naming(ConnectionResetError, "the store"):
        broken()
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_is_told_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for target in (tmp_path / "no" / "set", tmp_path / "file" / "set", tmp_path / ("x" * 300)):
        with (
            raises_naming(UsageError, str(target), "another folder"),
            draft(target, ["a.jsonl"]),
        ):
            pass
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(("mask", "folder", "file"), [(0o022, 0o755, 0o644), (0o077, 0o700, 0o600)])
def test_rights_are_those_that_the_process_gives(
    tmp_path: Path, mask: int, folder: int, file: int
) -> None:
    before = os.umask(mask)
    try:
        with draft(tmp_path / "set", ["a.jsonl"]) as made:
            made.put("manifest.json", "{}")
            assert made.folder.parent.stat().st_mode & 0o777 == 0o700, "nobody sees it yet"
    finally:
        os.umask(before)
    assert (tmp_path / "set").stat().st_mode & 0o777 == folder
    for name in ("a.jsonl", "manifest.json"):
        assert (tmp_path / "set" / name).stat().st_mode & 0o777 == file


def test_a_folder_that_somebody_made_meanwhile_is_left_alone(tmp_path: Path) -> None:
    target = tmp_path / "set"

    def lose() -> None:
        with draft(target, ["a.jsonl"]):
            target.mkdir()
            (target / "theirs").write_text("x")

    with raises_naming(UsageError, str(target), os.strerror(errno.ENOTEMPTY)):
        lose()
    assert [path.name for path in target.iterdir()] == ["theirs"]
    assert list(tmp_path.iterdir()) == [target]

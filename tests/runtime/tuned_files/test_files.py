"""Files are replaced whole or not at all, and go back to exactly the bytes that were there."""

from __future__ import annotations

import fcntl
import json
import os
import stat
from pathlib import Path

import pytest
from tests.expect import raises_code

from retuned.runtime.schema import Refused
from retuned.runtime.tuned_files import files
from retuned.runtime.tuned_files.files import (
    FileChange,
    entries,
    kept_before,
    read_file,
    replace,
    restore,
)
from retuned.runtime.tuned_files.strict import digest_of

A, B, C = b'{"1": 1}', b'{"1": 2}\n', b'{"1": 3}'


def entry(before: bytes | None, after: bytes, *, order: str = "o1") -> FileChange:
    return FileChange(
        order=order,
        epoch=3,
        who="daemon",
        when="2026-11-22T10:00:00Z",
        before=digest_of(before),
        after=digest_of(after) or "",
        rows=("M=1: replaced",),
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "E=8,N=16,device_name=X.json"
    found.write_bytes(A)
    return found


def beside(path: Path) -> set[str]:
    return {each.name.removeprefix(path.name) for each in path.parent.iterdir()}


def test_a_change_and_its_way_back_are_byte_for_byte(path: Path) -> None:
    path.chmod(0o640)
    assert replace(path, B, expected=A, entry=entry(A, B))
    assert path.read_bytes() == B
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert entries(path) == [entry(A, B)]
    assert kept_before(path, entries(path)[0]) == A
    said = json.loads(path.with_name(path.name + ".retuned.json").read_bytes())
    assert said["entries"][0]["before"] == digest_of(A)
    assert restore(path, order="o1")
    assert path.read_bytes() == A
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert beside(path) == {"", ".retuned.lock"}


def test_the_same_order_again_changes_nothing(path: Path) -> None:
    assert replace(path, B, expected=A, entry=entry(A, B))
    assert not replace(path, B, expected=A, entry=entry(A, B))
    with raises_code(Refused, "changed-by-others"):
        replace(path, B, expected=A, entry=entry(A, B, order="o2"))


def test_a_file_that_was_not_there_is_gone_again_afterwards(tmp_path: Path) -> None:
    path = tmp_path / "new.json"
    assert replace(path, B, expected=None, entry=entry(None, B))
    assert restore(path, order="o1")
    assert not path.exists()


def test_changes_go_back_in_reverse_order(path: Path) -> None:
    replace(path, B, expected=A, entry=entry(A, B))
    replace(path, C, expected=B, entry=entry(B, C, order="o2"))
    with raises_code(Refused, "not-the-newest"):
        restore(path, order="o1")
    assert restore(path, order="o2")
    assert path.read_bytes() == B
    assert restore(path, order="o1")
    assert path.read_bytes() == A
    with raises_code(Refused, "nothing-to-restore"):
        restore(path, order="o1")


def test_a_file_that_somebody_else_has_changed_is_left_alone_both_ways(path: Path) -> None:
    replace(path, B, expected=A, entry=entry(A, B))
    path.write_bytes(C)
    for _ in range(2):
        with raises_code(Refused, "changed-by-others"):
            restore(path, order="o1")
        with raises_code(Refused, "changed-by-others"):
            replace(path, A, expected=B, entry=entry(B, A, order="o2"))
    assert path.read_bytes() == C
    assert kept_before(path, entries(path)[0]) == A  # a person can still have it


def test_a_file_that_somebody_else_has_removed_is_not_made_again(path: Path) -> None:
    replace(path, B, expected=A, entry=entry(A, B))
    path.unlink()
    with raises_code(Refused, "changed-by-others", "no file"):
        restore(path, order="o1")
    assert not path.exists()


def test_what_others_have_put_there_is_where_the_next_change_begins(path: Path) -> None:
    replace(path, B, expected=A, entry=entry(A, B))
    path.write_bytes(C)
    assert replace(path, A, expected=C, entry=entry(C, A, order="o2"))
    assert [each.order for each in entries(path)] == ["o2"]
    assert restore(path, order="o2")
    assert path.read_bytes() == C


def test_a_file_that_was_put_back_by_hand_counts_as_restored(path: Path) -> None:
    replace(path, B, expected=A, entry=entry(A, B))
    path.write_bytes(A)
    assert not restore(path, order="o1")
    assert beside(path) == {"", ".retuned.lock"}


@pytest.mark.parametrize("dies_at", [0, 1, 2])
def test_a_writer_that_dies_leaves_the_old_file_or_the_new_and_a_way_on(
    path: Path, dies_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = os.replace, []

    def dying(source: Path, target: Path) -> None:
        calls.append(target)
        if len(calls) == dies_at + 1:
            raise KeyboardInterrupt
        real(source, target)

    monkeypatch.setattr(os, "replace", dying)
    with pytest.raises(KeyboardInterrupt):
        replace(path, B, expected=A, entry=entry(A, B))
    monkeypatch.undo()
    assert path.read_bytes() == A
    assert replace(path, B, expected=A, entry=entry(A, B))
    assert [each.order for each in entries(path)] == ["o1"]
    assert restore(path, order="o1")
    assert path.read_bytes() == A


def test_a_disk_that_fails_leaves_what_was_there(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with raises_code(Refused, "file-unwritable", "No space", "unchanged"):
        replace(path, B, expected=A, entry=entry(A, B))
    monkeypatch.undo()
    assert path.read_bytes() == A
    assert beside(path) == {"", ".retuned.lock"}


def test_links_devices_and_folders_are_no_files(path: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.json"
    link.symlink_to(path)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for odd in (link, pipe, tmp_path):
        with raises_code(Refused, "file-not-regular"):
            read_file(odd)
        with raises_code(Refused, "file-not-regular"):
            replace(odd, B, expected=A, entry=entry(A, B))
    assert path.read_bytes() == A
    assert link.is_symlink()


def test_a_file_beyond_all_measure_is_refused(path: Path) -> None:
    with raises_code(Refused, "file-too-large", "more than 4 bytes"):
        read_file(path, limit=4)


def test_a_second_writer_waits_for_its_turn(path: Path) -> None:
    with path.with_name(path.name + ".retuned.lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with raises_code(Refused, "tuned-busy"):
            replace(path, B, expected=A, entry=entry(A, B))
        with raises_code(Refused, "tuned-busy"):
            restore(path, order="o1")
    assert replace(path, B, expected=A, entry=entry(A, B))


def test_a_lock_that_is_a_link_is_not_followed(path: Path, tmp_path: Path) -> None:
    target = tmp_path / "elsewhere"
    path.with_name(path.name + ".retuned.lock").symlink_to(target)
    with raises_code(Refused, "file-unwritable"):
        replace(path, B, expected=A, entry=entry(A, B))
    assert not target.exists()


@pytest.mark.parametrize(
    "text", ["", "[]", '{"entries": 7}', '{"entries": [{"order": 1}]}', '{"entries": [null]}']
)
def test_provenance_that_cannot_be_read_stops_every_change(path: Path, text: str) -> None:
    path.with_name(path.name + ".retuned.json").write_text(text)
    with raises_code(Refused, "provenance-invalid"):
        replace(path, B, expected=A, entry=entry(A, B))
    with raises_code(Refused, "provenance-invalid"):
        restore(path, order="o1")
    assert path.read_bytes() == A


def test_kept_bytes_that_were_changed_are_not_put_back(path: Path) -> None:
    replace(path, B, expected=A, entry=entry(A, B))
    (kept,) = path.parent.glob("*.retuned-before.*")
    kept.write_bytes(C)
    with raises_code(Refused, "before-lost"):
        restore(path, order="o1")
    assert path.read_bytes() == B


def test_an_entry_about_other_bytes_is_refused(path: Path) -> None:
    with raises_code(Refused, "provenance-invalid"):
        replace(path, C, expected=A, entry=entry(A, B))


def test_of_many_changes_the_last_ones_can_be_taken_back(path: Path) -> None:
    count = files.MAX_ENTRIES + 4
    for number in range(count):
        before, after = path.read_bytes(), b"%d" % number
        replace(path, after, expected=before, entry=entry(before, after, order=f"o{number}"))
    assert len(entries(path)) == files.MAX_ENTRIES
    assert len(list(path.parent.glob("*.retuned-before.*"))) == files.MAX_ENTRIES
    for number in reversed(range(4, count)):
        assert restore(path, order=f"o{number}")
    assert path.read_bytes() == b"3"
    assert beside(path) == {"", ".retuned.lock"}

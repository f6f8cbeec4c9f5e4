"""A folder of rows is there whole or not at all."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from retuned.adapters.dataset_folder import draft
from retuned.errors import UsageError


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


def test_a_full_disk_is_told_and_leaves_nothing(tmp_path: Path) -> None:
    with (
        pytest.raises(UsageError, match="cannot be written: No space left"),
        draft(tmp_path / "set", ["a.jsonl"]),
    ):
        raise OSError(28, "No space left on device")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_somebody_made_meanwhile_is_left_alone(tmp_path: Path) -> None:
    target = tmp_path / "set"

    def lose() -> None:
        with draft(target, ["a.jsonl"]):
            target.mkdir()
            (target / "theirs").write_text("x")

    with pytest.raises(UsageError, match="cannot be written"):
        lose()
    assert [path.name for path in target.iterdir()] == ["theirs"]
    assert list(tmp_path.iterdir()) == [target]

"""Files that arrive in pieces: kept under their digests, or not at all."""

from __future__ import annotations

import base64
import hashlib
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.expect import raises_code

from retuned.runtime.artifacts import delivery
from retuned.runtime.artifacts.delivery import MAX_PIECE_BYTES, ArtifactCache
from retuned.runtime.schema import Refused


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def piece(
    data: bytes, /, *, begin: int = 0, end: int | None = None, **changed: Any
) -> dict[str, Any]:
    part = data[begin:end]
    return {
        "sha256": sha(data),
        "size": len(data),
        "offset": begin,
        "data": base64.b64encode(part).decode(),
    } | changed


@pytest.fixture
def cache(tmp_path: Path) -> ArtifactCache:
    return ArtifactCache(tmp_path / "cache")


def refusal(cache: ArtifactCache, request: dict[str, Any]) -> str:
    with pytest.raises(Refused) as caught:
        cache.take(request)
    return caught.value.reason


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.binary(max_size=400), size=st.integers(1, 90))
def test_a_file_arrives_whole_whatever_its_pieces(tmp_path: Path, data: bytes, size: int) -> None:
    cache = ArtifactCache(tmp_path / "cache")
    answer: dict[str, Any] = {}
    for offset in range(0, len(data) or 1, size):
        answer = cache.take(piece(data, begin=offset, end=offset + size))
    assert answer == {"have": len(data), "complete": True}
    folder = cache.folder_of({"kernel.so": sha(data)})
    assert (folder / "kernel.so").read_bytes() == data


def test_a_piece_that_is_not_the_next_one_changes_nothing(cache: ArtifactCache) -> None:
    data = b"0123456789"
    assert cache.take(piece(data, begin=4)) == {"have": 0, "complete": False}
    assert cache.take(piece(data, end=4)) == {"have": 4, "complete": False}
    assert cache.take(piece(data, end=4)) == {"have": 4, "complete": False}, "told twice"
    assert cache.take(piece(data, begin=4)) == {"have": 10, "complete": True}
    assert cache.take(piece(data)) == {"have": 10, "complete": True}, "here already"


def test_bytes_of_another_digest_are_thrown_away(cache: ArtifactCache, tmp_path: Path) -> None:
    wrong = piece(b"right", data=base64.b64encode(b"wrong").decode())
    assert refusal(cache, wrong) == "delivery-corrupt"
    assert list((tmp_path / "cache").iterdir()) == []
    assert cache.take(piece(b"right"))["complete"] is True


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"sha256": "../../etc/passwd"}, "delivery-invalid"),
        ({"sha256": "A" * 64}, "delivery-invalid"),
        ({"sha256": None}, "delivery-invalid"),
        ({"size": -1}, "delivery-invalid"),
        ({"size": True}, "delivery-invalid"),
        ({"size": 10**12}, "delivery-too-large"),
        ({"offset": "0"}, "delivery-invalid"),
        ({"data": "%%%%"}, "delivery-invalid"),
        ({"data": 7}, "delivery-invalid"),
        ({"data": base64.b64encode(bytes(MAX_PIECE_BYTES + 1)).decode()}, "delivery-too-large"),
        ({"size": 2}, "delivery-invalid"),
    ],
)
def test_a_piece_that_is_nonsense_is_refused(
    changed: dict[str, Any], reason: str, cache: ArtifactCache
) -> None:
    assert refusal(cache, piece(b"right", **changed)) == reason
    assert cache.take(piece(b"right"))["complete"] is True


@pytest.mark.parametrize(
    "files",
    [
        None,
        [],
        {},
        {"../x": "0" * 64},
        {"a/b": "0" * 64},
        {".hidden": "0" * 64},
        {"x": "0" * 63},
        {f"f{n}": "0" * 64 for n in range(9)},
    ],
)
def test_a_listing_that_is_nonsense_is_refused(files: object, cache: ArtifactCache) -> None:
    with raises_code(Refused, "delivery-invalid"):
        cache.folder_of(files)


def test_what_has_not_arrived_is_named(cache: ArtifactCache) -> None:
    cache.take(piece(b"manifest"))
    with raises_code(Refused, "delivery-missing", "kernel.so"):
        cache.folder_of({"artifact.json": sha(b"manifest"), "kernel.so": sha(b"code")})


def test_a_file_that_has_changed_on_the_disk_is_not_used(
    cache: ArtifactCache, tmp_path: Path
) -> None:
    cache.take(piece(b"code"))
    kept = tmp_path / "cache" / sha(b"code")
    kept.write_bytes(b"evil")
    with raises_code(Refused, "delivery-corrupt"):
        cache.folder_of({"kernel.so": sha(b"code")})
    assert not kept.exists(), "it is asked for again"


def test_the_cache_is_ours_alone(cache: ArtifactCache, tmp_path: Path) -> None:
    cache.take(piece(b"code"))
    folder = cache.folder_of({"kernel.so": sha(b"code")})
    assert stat.S_IMODE((tmp_path / "cache").stat().st_mode) == 0o700
    assert folder.parent == tmp_path / "cache"
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    other = ArtifactCache(shared)
    other.take(piece(b"code"))
    assert list(shared.iterdir()) == [], "a folder that others may write is not used"


def test_what_was_not_used_for_longest_makes_room(tmp_path: Path) -> None:
    cache = ArtifactCache(tmp_path / "cache", max_bytes=250)
    for number in range(4):
        data = bytes([number]) * 100
        cache.take(piece(data))
        os.utime(tmp_path / "cache" / sha(data), (number, number))
    kept = {path.name for path in (tmp_path / "cache").iterdir()}
    assert kept == {sha(bytes([2]) * 100), sha(bytes([3]) * 100)}


def test_files_that_never_end_take_no_more_than_a_few_places(
    cache: ArtifactCache, tmp_path: Path
) -> None:
    for number in range(50):
        cache.take(piece(b"%d" % number + bytes(99), end=10))
    assert len(cache._arriving) == delivery.MAX_OPEN
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_forked_child_waits_for_nobody_elses_lock(cache: ArtifactCache) -> None:
    cache.take(piece(b"0123456789", end=4))
    with cache._lock:  # as it is copied while another thread works
        cache.restart()
        assert cache.take(piece(b"0123456789", end=4)) == {"have": 4, "complete": False}
    assert cache.take(piece(b"0123456789", begin=4)) == {"have": 10, "complete": True}

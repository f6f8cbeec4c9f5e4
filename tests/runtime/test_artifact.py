from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.expect import raises_code

from retuned.runtime.artifacts import artifact as artifact_module
from retuned.runtime.artifacts.artifact import read_artifact
from retuned.runtime.core.orders import parse_order
from retuned.runtime.schema import Refused


def refusal(folder: Path, digest: str, *, within: Path | None = None) -> str:
    with pytest.raises(Refused) as caught:
        read_artifact(folder, digest=digest, within=within)
    return caught.value.reason


def test_a_delivered_artifact_is_read(build: Any) -> None:
    built = build(panel=8, parts=2, scratch_bytes=64)
    artifact = read_artifact(built.folder, digest=built.digest, within=built.folder.parent)
    assert artifact.entry == "linear"
    assert (artifact.layouts, artifact.parts, artifact.scratch_bytes) == ({"wq": "panels-8"}, 2, 64)
    assert artifact.binary == (built.folder / "kernel.so").read_bytes()


def test_one_changed_byte_of_the_binary_is_refused(build: Any) -> None:
    built = build()
    path = built.folder / "kernel.so"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    assert refusal(built.folder, built.digest) == "artifact-tampered"


def test_another_artifact_than_ordered_is_refused(build: Any) -> None:
    assert refusal(build().folder, "sha256:" + "0" * 64) == "digest-mismatch"


@pytest.mark.parametrize(
    "fields",
    [
        {"binary": "../kernel.so"},
        {"binary": "/etc/passwd"},
        {"binary": "."},
        {"binary": "a/b.so"},
        {"binary": "kernel.so\0"},
        {"binary": None},
        {"entry": "linear; system"},
        {"entry": ""},
        {"language": "../cpu"},
        {"parts": 0},
        {"parts": 10**6},
        {"parts": True},
        {"scratch_bytes": -1},
        {"scratch_bytes": 2**40},
        {"layouts": ["wq"]},
        {"layouts": {"x": "panels-8"}},
        {"layouts": {"wq": 8}},
        {"layouts": {"nothing": "transposed"}},
    ],
)
def test_a_manifest_with_odd_fields_is_refused(build: Any, fields: dict[str, Any]) -> None:
    built = build()
    built.edit(**fields)
    assert refusal(built.folder, built.digest) == "artifact-invalid"


def test_a_broken_manifest_is_refused(build: Any) -> None:
    built = build()
    for text in ("", "{", "[]", '"x"', "[" * 100_000):
        (built.folder / "artifact.json").write_text(text)
        assert refusal(built.folder, built.digest) == "artifact-invalid"


def test_links_pipes_and_folders_are_not_followed(build: Any, tmp_path: Path) -> None:
    built = build()
    binary = built.folder / "kernel.so"
    binary.rename(tmp_path / "elsewhere.so")
    binary.symlink_to(tmp_path / "elsewhere.so")
    assert refusal(built.folder, built.digest) == "artifact-missing"
    binary.unlink()
    os.mkfifo(binary)
    assert refusal(built.folder, built.digest) == "artifact-invalid"
    binary.unlink()
    binary.mkdir()
    assert refusal(built.folder, built.digest) == "artifact-invalid"


def test_a_folder_outside_the_delivery_folder_is_refused(build: Any, tmp_path: Path) -> None:
    built = build()
    allowed = tmp_path / "allowed"
    allowed.mkdir()
    (allowed / "link").symlink_to(built.folder)
    for folder in (built.folder, allowed / "link", allowed / ".." / "artifacts"):
        assert refusal(folder, built.digest, within=allowed) == "artifact-outside"
    assert refusal(tmp_path / "nowhere", built.digest) == "artifact-missing"


def test_files_over_the_limit_are_refused(build: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    built = build()
    monkeypatch.setattr(artifact_module, "MAX_BINARY_BYTES", 100)
    assert refusal(built.folder, built.digest) == "artifact-too-large"
    monkeypatch.setattr(artifact_module, "MAX_MANIFEST_BYTES", 10)
    assert refusal(built.folder, built.digest) == "artifact-too-large"


ORDER_FIELDS = (
    *("id", "kind", "definition", "artifact", "previous"),
    *("guard", "epoch", "shadow_every", "shadow_tolerance"),
)
VALUES = (
    st.none()
    | st.booleans()
    | st.integers(-3, 2**64)
    | st.floats()
    | st.text(max_size=300)
    | st.lists(st.integers(), max_size=2)
    | st.dictionaries(st.text(max_size=3), st.integers(), max_size=2)
)


@given(
    st.sampled_from(ORDER_FIELDS),
    VALUES,
)
def test_an_order_from_a_stranger_is_read_within_its_limits_or_refused(
    field: str, value: Any
) -> None:
    body: dict[str, Any] = {
        "id": "x",
        "kind": "rollback",
        "definition": "d",
        "artifact": None,
        "previous": None,
        "guard": {},
        "epoch": 1,
    }
    try:
        order = parse_order(body | {field: value})
    except Refused:
        return
    assert 1 <= order.epoch <= 2**53
    assert order.shadow_every >= 1
    assert 0 < order.shadow_tolerance <= 1
    assert order.kind in ("swap", "rollback")


def test_the_verified_bytes_are_the_loaded_bytes(
    build: Any, compiled: Callable[..., bytes]
) -> None:
    """Changing the delivered file after it was verified changes nothing."""
    built = build()
    artifact = read_artifact(built.folder, digest=built.digest)
    (built.folder / "kernel.so").write_bytes(compiled(1, 1))
    library = artifact_module.LibraryFile(artifact.binary, name="test")
    artifact_module.check_symbol(library.path, "linear")
    assert library.path.read_bytes() == compiled(0, 1)
    library.clean()


def test_without_anonymous_files_a_private_folder_serves(
    build: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unavailable(_: str) -> int:
        raise OSError("not here")

    monkeypatch.setattr(os, "memfd_create", unavailable)
    library = artifact_module.LibraryFile((build().folder / "kernel.so").read_bytes(), name="test")
    assert library.path.parent.stat().st_mode & 0o777 == 0o700
    artifact_module.check_symbol(library.path, "linear")
    library.clean()
    assert not library.path.parent.exists()


def test_a_binary_that_does_not_load_or_lacks_the_entry_is_refused(
    tmp_path: Path, build: Any
) -> None:
    library = artifact_module.LibraryFile(b"not a library", name="test")
    with raises_code(Refused, "load-failed"):
        artifact_module.check_symbol(library.path, "linear")
    library = artifact_module.LibraryFile((build().folder / "kernel.so").read_bytes(), name="test")
    with raises_code(Refused, "entry-missing"):
        artifact_module.check_symbol(library.path, "square")

"""Compiled code in an artifact: read strictly, and refused before anything is loaded."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retuned.runtime.artifacts.artifact import read_artifact
from retuned.runtime.artifacts.precompiled import (
    MAX_ENTRIES,
    PRECOMPILED_FILE,
    PrecompiledEntry,
    pack,
    parse_precompiled,
)
from retuned.runtime.schema import Refused

DIGEST = "sha256:" + "5" * 64
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


def entry(code: bytes = b"code", *, key: str = "a" * 64, **meta: Any) -> PrecompiledEntry:
    return PrecompiledEntry(
        key=key,
        entry="rows",
        arch="sm_90",
        triton="3.9.0",
        kind="cubin",
        lengths=(64, 128),
        sha256=hashlib.sha256(code).hexdigest(),
        code=code,
        meta={
            "hash": key,
            "name": "rows",
            "triton_version": "3.9.0",
            "target": {"backend": "cuda", "arch": 90, "warp_size": 32},
            "shared": 0,
            "num_warps": 4,
            "extern_libs": [],
        }
        | meta,
    )


def test_a_forked_child_that_ends_leaves_its_parents_code_where_it_is() -> None:
    code = """
import os
from pathlib import Path
from tests.runtime.test_precompiled import entry
from retuned.runtime.triton.precompiled import Shipped

shipped = Shipped((entry(),))
(path, *_) = shipped._place("a" * 64).values()
child = os.fork()
if child == 0:
    raise SystemExit(0)  # with all that Python does at the end of a process
os.waitpid(child, 0)
print(Path(path).exists())
print(Path(path).parent.parent)
"""
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    there, folder = ran.stdout.split()
    assert there == "True"
    assert not Path(folder).exists(), "its own process removes it"


def refusal(body: Any, data: bytes) -> str:
    with pytest.raises(Refused) as refused:
        parse_precompiled(body, data)
    return refused.value.reason


def test_what_is_packed_is_what_is_read() -> None:
    made = (entry(b"one"), entry(b"other", key="b" * 64))
    body, data = pack(made)
    assert parse_precompiled(json.loads(json.dumps(body)), data) == made


def test_a_code_that_was_changed_is_refused_by_its_digest() -> None:
    body, data = pack((entry(b"one"), entry(b"other", key="b" * 64)))
    assert refusal(body, data.replace(b"other", b"Other")) == "entry-digest-differs"
    assert refusal(body, data[:-1]) == "entry-digest-differs"


def test_bytes_that_no_entry_describes_are_refused() -> None:
    body, data = pack((entry(),))
    assert refusal(body, data + b"\x90") == "artifact-invalid"
    body["entries"][0]["offset"] = 1
    body["entries"][0]["sha256"] = hashlib.sha256(data[1:] + b"x").hexdigest()
    assert refusal(body, data + b"x") == "artifact-invalid"


def test_two_codes_of_one_key_are_refused() -> None:
    body, data = pack((entry(b"one"), entry(b"two", key="b" * 64)))
    body["entries"][1] |= {"key": "a" * 64, "meta": body["entries"][0]["meta"]}
    assert refusal(body, data) == "artifact-invalid"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("key", "A" * 64),
        ("key", None),
        ("entry", "rows; import os"),
        ("arch", "sm_90/../.."),
        ("triton", "../3.9"),
        ("kind", "so"),
        ("kind", "hsaco"),
        ("arch", "sm_80"),
        ("lengths", [64, -1]),
        ("lengths", [1] * 65),
        ("lengths", [True]),
        ("offset", -1),
        ("bytes", 0),
        ("bytes", True),
        ("meta", []),
    ],
)
def test_a_field_that_is_not_as_it_must_be_is_refused(field: str, value: object) -> None:
    body, data = pack((entry(),))
    body["entries"][0][field] = value
    assert refusal(body, data) == "artifact-invalid"


@pytest.mark.parametrize(
    "meta",
    [
        {"hash": "b" * 64},
        {"name": "other"},
        {"triton_version": "3.8.0"},
        {"target": None},
        {"target": {"backend": "hip", "arch": 90, "warp_size": 32}},
        {"target": {"backend": "cuda", "arch": 90, "warp_size": 10**9}},
        {"shared": -1},
        {"shared": 1 << 30},
        {"shared": None},
        {"num_warps": 1 << 20},
        {"num_warps": 4.0},
        {"global_scratch_size": 1 << 40},
        {"class": 1},
        {"_fields": []},
        {"a b": 1},
        {"nested": [[[[[[1]]]]]]},
        {"text": "x" * 1000},
        {"number": float("nan")},
        {"number": 2**80},
        {f"f{n}": n for n in range(200)},
    ],
)
def test_what_a_launcher_would_read_is_bounded_and_agrees_with_the_entry(
    meta: dict[str, Any],
) -> None:
    body, data = pack((entry(),))
    body["entries"][0]["meta"] |= meta
    assert refusal(body, data) == "artifact-invalid"


def test_more_entries_than_an_artifact_takes_are_refused_unread() -> None:
    body, data = pack((entry(),))
    body["entries"] *= MAX_ENTRIES + 1
    assert refusal(body, data) == "artifact-invalid"


def test_what_cannot_be_read_is_not_written() -> None:
    with pytest.raises(Refused):
        pack((replace(entry(), sha256="0" * 64),))
    with pytest.raises(Refused):
        pack(())


@given(JSON)
def test_whatever_a_manifest_says_is_read_or_refused(body: object) -> None:
    with pytest.raises(Refused):
        parse_precompiled(body, b"code")


@given(st.sampled_from(sorted(pack((entry(),))[0]["entries"][0])), JSON)
def test_whatever_one_field_says_is_read_or_refused(field: str, value: object) -> None:
    body, data = pack((entry(),))
    body["entries"][0][field] = value
    try:
        codes = [each.code for each in parse_precompiled(body, data)]
    except Refused as error:
        codes = [error.reason.encode()]
    assert codes in ([data], [b"artifact-invalid"], [b"entry-digest-differs"])


# --- in an artifact -------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, linear_test_kit: Any) -> Path:
    body, data = pack((entry(),))
    source = b"pass\n"
    manifest = {
        "digest": DIGEST,
        "definition": linear_test_kit.definition(),
        "language": "triton",
        "entry": "rows",
        "binary": "kernel.py",
        "binary_sha256": hashlib.sha256(source).hexdigest(),
        "precompiled": body,
    }
    (tmp_path / "kernel.py").write_bytes(source)
    (tmp_path / PRECOMPILED_FILE).write_bytes(data)
    (tmp_path / "artifact.json").write_text(json.dumps(manifest))
    return tmp_path


def reason(folder: Path) -> str:
    with pytest.raises(Refused) as refused:
        read_artifact(folder, digest=DIGEST)
    return refused.value.reason


def test_an_artifact_brings_its_code_along(folder: Path) -> None:
    assert read_artifact(folder, digest=DIGEST).precompiled == (entry(),)


def test_an_artifact_whose_code_was_changed_is_refused(folder: Path) -> None:
    (folder / PRECOMPILED_FILE).write_bytes(b"c0de")
    assert reason(folder) == "entry-digest-differs"


def test_an_artifact_whose_code_is_missing_or_a_link_is_refused(folder: Path) -> None:
    (folder / PRECOMPILED_FILE).rename(folder / "elsewhere")
    assert reason(folder) == "artifact-missing"
    (folder / PRECOMPILED_FILE).symlink_to(folder / "elsewhere")
    assert reason(folder) == "artifact-missing"

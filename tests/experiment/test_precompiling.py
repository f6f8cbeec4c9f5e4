"""Compiled code on its way: from the lab into an artifact, over the socket, to a server."""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.expect import raises_naming

from retuned.contract import Definition, Solution, Workload
from retuned.errors import CompileFailed, HarnessError
from retuned.experiment import local
from retuned.experiment.local import MAX_SHAPES, SHAPES, Precompiler
from retuned.lab.harness.variant import variant_of
from retuned.lab.toolchain import Artifact as Built
from retuned.runtime.artifacts.artifact import read_artifact
from retuned.runtime.artifacts.delivery import ArtifactCache
from retuned.runtime.artifacts.precompiled import (
    MAX_PRECOMPILED_BYTES,
    PRECOMPILED_FILE,
    PrecompiledEntry,
)
from retuned.runtime.artifacts.trust import Trust, message_of
from retuned.runtime.schema import Refused
from retuned.store.artifact_folder import bundle_of, keep_artifact, sign_artifact

SOURCE = """import triton
import triton.language as tl


@triton.jit
def rows(x, y, M, N: tl.constexpr):
    at = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(y + at, tl.load(x + at) * 2)
"""
DEFINITION = Definition.model_validate(
    {
        "name": "doubled",
        "op_type": "elementwise",
        "axes": {"M": {"type": "var"}, "N": {"type": "var"}},
        "inputs": {"x": {"shape": ["M", "N"], "dtype": "float32"}},
        "outputs": {"y": {"shape": ["M", "N"], "dtype": "float32"}},
        "reference": "def run(x):\n    return x * 2\n",
    }
)
SOLUTION = Solution.model_validate(
    {
        "name": "doubled.rows",
        "definition": "doubled",
        "language": "triton",
        "entry": "rows",
        "sources": [{"path": "kernel.py", "content": SOURCE}],
        "structure": "rows",
        "grid": ["M"],
    }
)
ENTRY = PrecompiledEntry(
    key="a" * 64,
    entry="rows",
    arch="gfx942",
    triton="3.9.0",
    kind="hsaco",
    lengths=(8, 64),
    sha256=hashlib.sha256(b"code").hexdigest(),
    code=b"code",
    meta={
        "hash": "a" * 64,
        "name": "rows",
        "triton_version": "3.9.0",
        "target": {"backend": "hip", "arch": "gfx942", "warp_size": 64},
        "shared": 0,
        "num_warps": 4,
    },
)


def workloads(*rows: dict[str, int]) -> list[Workload]:
    return [Workload(definition="doubled", axes=axes) for axes in rows]


# --- what is compiled -----------------------------------------------------------------------------


def test_shapes_of_the_latest_plan_are_known_to_another_process(tmp_path: Path) -> None:
    first = Precompiler(tmp_path)
    first.remember("doubled", workloads({"M": 1, "N": 64}))
    first.remember("doubled", workloads({"M": 2, "N": 32}, {"M": 3, "N": 16}))
    assert Precompiler(tmp_path).shapes_of(DEFINITION) == [{"M": 2, "N": 32}, {"M": 3, "N": 16}]


def test_more_shapes_than_are_kept_are_left_out(tmp_path: Path) -> None:
    here = Precompiler(tmp_path)
    here.remember("doubled", workloads(*({"M": n, "N": 8} for n in range(1, MAX_SHAPES + 9))))
    assert len(here.shapes_of(DEFINITION)) == MAX_SHAPES


@pytest.mark.parametrize(
    "text",
    ["", "{", "{}", "[1]", '[{"M": 1}]', '[{"M": 1, "N": true}]', '[{"M": -1, "N": 2}]', "[[]]"],
)
def test_shapes_that_cannot_be_read_are_none(tmp_path: Path, text: str) -> None:
    here = Precompiler(tmp_path)
    here.remember("doubled", workloads({"M": 1, "N": 64}))
    (path,) = (tmp_path / SHAPES).iterdir()
    path.write_text(text)
    assert here.shapes_of(DEFINITION) == []


def test_code_is_compiled_for_each_length_that_decides_it(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    here = Precompiler(tmp_path, arch="gfx942")
    assert here.entries_for(SOLUTION, DEFINITION, manifest={}) == (), "no shape is known"
    here.remember("doubled", workloads({"M": 4, "N": 64}, {"M": 9, "N": 64}, {"M": 4, "N": 32}))
    made = here.entries_for(SOLUTION, DEFINITION, manifest={})
    assert [entry.lengths for entry in made] == [(4, 64), (4, 32)]
    assert {(entry.arch, entry.kind) for entry in made} == {("gfx942", "hsaco")}
    assert all(entry.code.startswith(b"\x7fELF") for entry in made)
    assert str(tmp_path.home()) not in json.dumps([dict(entry.meta) for entry in made])


def test_parameters_of_a_servers_own_code_are_compiled_there(tmp_path: Path) -> None:
    here = Precompiler(tmp_path, arch="gfx942")
    here.remember("doubled", workloads({"M": 4, "N": 64}))
    live = {"intercept": {"code": "live"}}
    assert here.entries_for(SOLUTION, DEFINITION, manifest=live) == ()


def test_what_does_not_compile_for_servers_is_left_to_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def failing(*_: Any, **__: Any) -> Any:
        raise CompileFailed("compile-failed", detail="took more than 90 s")

    monkeypatch.setattr(local, "precompile", failing)
    here = Precompiler(tmp_path, arch="gfx942")
    assert here.entries_for(SOLUTION, DEFINITION, manifest={}) == ()
    assert "code not precompiled" in caplog.text


def test_without_a_gpu_there_is_no_server_to_compile_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "find_gpu", lambda: None)
    assert Precompiler(tmp_path).entries_for(SOLUTION, DEFINITION, manifest={}) == ()


# --- on its way -----------------------------------------------------------------------------------


def kept(folder: Path, *entries: PrecompiledEntry) -> Path:
    source = folder / "source.py"
    source.write_text(SOURCE)
    built = Built(
        variant=variant_of(SOLUTION, DEFINITION, library=source),
        sha256=hashlib.sha256(SOURCE.encode()).hexdigest(),
        file_name="kernel.py",
        manifest={"grid": ["M"]},
    )
    target = folder / "artifact"
    keep_artifact(
        target, built, solution=SOLUTION, definition=DEFINITION, precompiled=tuple(entries)
    )
    return target


def test_an_artifact_is_read_with_the_code_it_was_written_with(tmp_path: Path) -> None:
    artifact = read_artifact(kept(tmp_path, ENTRY), digest=SOLUTION.digest)
    assert artifact.precompiled == (ENTRY,)


def test_an_artifact_without_code_is_as_it_was(tmp_path: Path) -> None:
    folder = kept(tmp_path)
    assert sorted(path.name for path in folder.iterdir()) == ["artifact.json", "kernel.py"]
    assert read_artifact(folder, digest=SOLUTION.digest).precompiled == ()


def test_code_that_no_server_would_read_is_not_written(tmp_path: Path) -> None:
    with raises_naming(HarnessError, "artifact-invalid", "'precompiled[0]'", "'meta'"):
        kept(tmp_path, replace(ENTRY, entry="another"))
    assert not (tmp_path / "artifact").exists()
    assert not list(tmp_path.glob(".partial-*"))


def test_code_travels_over_the_socket_and_arrives_as_it_left(tmp_path: Path) -> None:
    files = bundle_of(kept(tmp_path, ENTRY))
    assert sorted(files) == ["artifact.json", "kernel.py", PRECOMPILED_FILE]
    cache = ArtifactCache(tmp_path / "cache")
    listing = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    for name, data in files.items():
        said = cache.take(
            {
                "sha256": listing[name],
                "size": len(data),
                "offset": 0,
                "data": base64.b64encode(data).decode(),
            }
        )
        assert said["complete"]
    artifact = read_artifact(cache.folder_of(listing), digest=SOLUTION.digest)
    assert artifact.precompiled == (ENTRY,)


def test_the_largest_code_fits_into_a_delivery() -> None:
    from retuned.runtime.artifacts.delivery import MAX_CACHE_BYTES, MAX_FILE_BYTES

    assert MAX_PRECOMPILED_BYTES <= MAX_FILE_BYTES <= MAX_CACHE_BYTES


def test_the_signature_is_over_what_the_code_must_be(tmp_path: Path) -> None:
    crypto = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.ed25519")
    key = crypto.Ed25519PrivateKey.generate()
    public = key.public_key().public_bytes_raw()
    name = f"ed25519:{hashlib.sha256(public).hexdigest()[:32]}"

    class Notary:
        def sign(self, statement: bytes) -> tuple[str, bytes]:
            purpose, _, said = statement.partition(b"\0")
            assert purpose == b"retuned artifact 1"
            return name, key.sign(message_of(name, said))

    folder = kept(tmp_path, ENTRY)
    sign_artifact(
        folder,
        notary=Notary(),  # type: ignore[arg-type]
        artifact=SOLUTION.digest,
        definition="doubled",
        target="server",
    )
    trusted: dict[str, Any] = {
        "trust": Trust(public.hex()),
        "definition": "doubled",
        "target": "server",
    }
    assert read_artifact(folder, digest=SOLUTION.digest, **trusted).precompiled == (ENTRY,)
    other = hashlib.sha256(b"evil").hexdigest()
    text = (folder / "artifact.json").read_text().replace(ENTRY.sha256, other)
    (folder / PRECOMPILED_FILE).write_bytes(b"evil")
    with pytest.raises(Refused) as refused:
        read_artifact(folder, digest=SOLUTION.digest, **trusted)
    assert refused.value.reason == "entry-digest-differs"
    (folder / "artifact.json").write_text(text)
    with pytest.raises(Refused) as refused:
        read_artifact(folder, digest=SOLUTION.digest, **trusted)
    assert refused.value.reason == "signature-mismatch"

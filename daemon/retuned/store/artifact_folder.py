"""The folder of a compiled variant, or of a table's text, as a server's runtime reads it."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retuned.contract import Definition, Digest, Solution
from retuned.errors import HarnessError
from retuned.ports import Notary
from retuned.runtime.artifacts.artifact import MANIFEST_FILE as MANIFEST
from retuned.runtime.artifacts.precompiled import PRECOMPILED_FILE, PrecompiledEntry, pack
from retuned.runtime.artifacts.trust import PURPOSE, SIGNATURE_FILE
from retuned.runtime.schema import Refused

if TYPE_CHECKING:  # who only reads such folders, as a sidecar does, needs no compilers
    from retuned.lab.toolchain import Artifact

__all__ = ["MANIFEST", "bundle_of", "is_table", "keep_artifact", "manifest_of", "sign_artifact"]


def keep_artifact(
    target: Path,
    built: Artifact,
    *,
    solution: Solution,
    definition: Definition,
    precompiled: Sequence[PrecompiledEntry] = (),
) -> None:
    """Write the folder; a kill leaves all of it or nothing, and the first of several wins.

    Parameters
    ----------
    target
        The folder.
    built
        Compiled and audited.
    solution, definition
        What it was built from.
    precompiled
        Code that its servers need not compile.

    Raises
    ------
    OSError
        If it cannot be written.
    HarnessError
        If what was compiled is not as a server reads it.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=".partial-", dir=target.parent))
    try:
        shutil.copyfile(built.variant.library, partial / built.file_name)
        body = manifest_of(
            solution,
            definition.model_dump(mode="json"),
            built.sha256,
            file_name=built.file_name,
        )
        body |= built.manifest
        if precompiled:
            body["precompiled"], codes = pack(tuple(precompiled))
            (partial / PRECOMPILED_FILE).write_bytes(codes)
        (partial / MANIFEST).write_text(
            json.dumps(body, indent=1),
            encoding="utf-8",  # the order of axes means something
        )
        partial.chmod(0o755)
        os.rename(partial, target)
    except Refused as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise HarnessError(f"compiled code that no server would read: {error}") from error
    except OSError:
        shutil.rmtree(partial, ignore_errors=True)
        if not (target / MANIFEST).exists():  # else: another process was first
            raise


def sign_artifact(
    folder: Path, *, notary: Notary, artifact: Digest, definition: str, target: str
) -> None:
    """Publish an artifact for one server: sign which it is, what for, and its manifest's digest.

    The signature replaces an earlier one atomically, as after a rotation of the key. It contains no
    epoch, because an artifact that may be loaded once may be loaded again by a rollback.

    Raises
    ------
    OSError
        If the folder cannot be read or written.
    TemporaryError, UnreadableInput
        As `Notary.sign`.
    """
    manifest = (folder / MANIFEST).read_bytes()
    said = {
        "artifact": artifact,
        "definition": definition,
        "target": target,
        "manifest_sha256": hashlib.sha256(manifest).hexdigest(),
    }
    statement = json.dumps(said, sort_keys=True, separators=(",", ":"))
    key, signature = notary.sign(b"\0".join((PURPOSE, statement.encode())))
    body = {"key": key, "statement": statement, "signature": signature.hex()}
    partial = folder / f".{secrets.token_hex(8)}.partial"
    try:
        partial.write_text(json.dumps(body), encoding="utf-8")
        os.replace(partial, folder / SIGNATURE_FILE)
    finally:
        partial.unlink(missing_ok=True)


def bundle_of(folder: Path) -> dict[str, bytes]:
    """Return what a server needs of an artifact, by file name: manifest, codes, signature.

    The manifest of a table is its text, and it has no codes.

    Raises
    ------
    OSError
        If it cannot be read.
    ValueError
        If the manifest is invalid.
    """
    manifest = (folder / MANIFEST).read_bytes()
    files = {MANIFEST: manifest}
    body = json.loads(manifest)
    if not is_table(body):
        name = body.get("binary") if isinstance(body, dict) else None
        if not isinstance(name, str) or Path(name).name != name:
            raise ValueError(f"{folder / MANIFEST} names no binary beside it")
        files[name] = (folder / name).read_bytes()
        if "precompiled" in body:
            files[PRECOMPILED_FILE] = (folder / PRECOMPILED_FILE).read_bytes()
    if (folder / SIGNATURE_FILE).exists():
        files[SIGNATURE_FILE] = (folder / SIGNATURE_FILE).read_bytes()
    return files


def is_table(manifest: object) -> bool:
    """Whether a parsed manifest is the text of a table."""
    return isinstance(manifest, dict) and manifest.get("format") == "table"


def manifest_of(
    solution: Solution,
    definition: Mapping[str, Any],
    sha256: str,
    *,
    file_name: str = "kernel.so",
) -> dict[str, Any]:
    """Return what the manifest of every language holds.

    Parameters
    ----------
    solution
        The variant.
    definition
        What it computes, as JSON.
    sha256
        Hex digest of the binary.
    file_name
        Name of the binary.
    """
    threads = solution.params.get("THREADS", 1)
    return {
        "digest": solution.digest,
        "definition": definition,
        "language": str(solution.language),
        "entry": solution.entry,
        "params": solution.params,
        "layouts": solution.layouts,
        "scratch_bytes": solution.scratch_bytes,
        "parts": threads if isinstance(threads, int) else 1,
        "binary": file_name,
        "binary_sha256": sha256,
    }

"""Artifacts on the wire: one header line, and the bytes. They are checked before they are sent.

A server trusts only the signature in the bundle. The checks here report a damaged store in one
place, before a thousand pods refuse its artifacts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping

from pydantic import ValidationError

from retuned.api.agent import MAX_ARTIFACT_BYTES, MAX_ARTIFACT_FILES, Bundle, BundleFile
from retuned.contract import Digest
from retuned.errors import Refused, UnreadableInput
from retuned.store.artifact_folder import is_table

MANIFEST = "artifact.json"
"""The file that describes the other files."""
SIGNATURE = "artifact.sig"
"""The file that a server verifies it by."""
_PIECE_BYTES = 256 << 10


def bundle_of(digest: Digest, files: Mapping[str, bytes]) -> Bundle:
    """Return the first line of an artifact, once its files are what they should be.

    Raises
    ------
    UnreadableInput
        ``artifact-damaged``: another artifact's manifest, or a file that differs from it.
    Refused
        ``artifact-too-large``.
    """
    size = sum(len(data) for data in files.values())
    if size > MAX_ARTIFACT_BYTES or len(files) > MAX_ARTIFACT_FILES:
        error = Refused(f"{digest} has {len(files)} files and {size} bytes")
        error.code = "artifact-too-large"
        raise error
    _check(digest, files)
    try:
        return Bundle(
            digest=digest,
            files={
                name: BundleFile(size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
                for name, data in files.items()
            },
        )
    except ValidationError as error:
        raise _damaged(digest, "a file has a name that no artifact has") from error


def pieces(bundle: Bundle, files: Mapping[str, bytes]) -> Iterator[bytes]:
    """Yield what goes over the wire."""
    yield bundle.model_dump_json().encode() + b"\n"
    for name in bundle.files:
        data = memoryview(files[name])
        for start in range(0, len(data), _PIECE_BYTES):
            yield bytes(data[start : start + _PIECE_BYTES])


def _check(digest: Digest, files: Mapping[str, bytes]) -> None:
    try:
        manifest = json.loads(files[MANIFEST])
    except (KeyError, ValueError, RecursionError) as error:
        raise _damaged(digest, f"its manifest cannot be read ({error!r:.80})") from error
    if is_table(manifest):
        _check_table(digest, files)
        return
    try:
        named, binary, expected = (
            manifest["digest"],
            files[manifest["binary"]],
            str(manifest["binary_sha256"]).removeprefix("sha256:"),
        )
    except (KeyError, TypeError) as error:
        raise _damaged(digest, f"its manifest cannot be read ({error!r:.80})") from error
    if named != digest:
        raise _damaged(digest, "its manifest names another")
    if hashlib.sha256(binary).hexdigest() != expected:
        raise _damaged(digest, "its binary is not the one that the manifest names")


def _check_table(digest: Digest, files: Mapping[str, bytes]) -> None:
    """Verify that a table's text has the digest, and that nothing comes with it."""
    if "sha256:" + hashlib.sha256(files[MANIFEST]).hexdigest() != digest:
        raise _damaged(digest, "its text has another digest")
    if files.keys() - {MANIFEST, SIGNATURE}:
        raise _damaged(digest, "a table has no other files")


def _damaged(digest: Digest, what: str) -> UnreadableInput:
    message = f"{what}; build it again from its experiment"
    return UnreadableInput("artifact-damaged", where=digest, message=message)

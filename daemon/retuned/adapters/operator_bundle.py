"""An artifact as it comes over the wire, written to files; nothing of it is believed yet."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from pydantic import ValidationError

from retuned.agent_wire import MAX_ARTIFACT_BYTES, MAX_BUNDLE_LINE_BYTES, Bundle
from retuned.contract import Digest
from retuned.errors import Refused, UnreadableInput


def take_bundle(digest: Digest, chunks: Iterable[bytes], *, folder: Path) -> Bundle:
    """Write the files of a bundle into an empty folder; never more than was announced.

    Parameters
    ----------
    digest
        The artifact that was asked for.
    chunks
        The answer, in pieces of any size.
    folder
        Empty, this user's.

    Raises
    ------
    UnreadableInput
        ``bundle-invalid`` (its first line), ``bundle-corrupt`` (its bytes) or ``bundle-cut-off``.
    Refused
        ``artifact-too-large``.
    OSError
        If a file cannot be written.
    """
    pieces = iter(chunks)
    line, rest = _line(pieces, digest)
    try:
        bundle = Bundle.model_validate_json(line, strict=True)
    except ValidationError as error:
        raise _bad("bundle-invalid", digest, f"first line: {error.error_count()} faults") from None
    if bundle.digest != digest:
        raise _bad("bundle-invalid", digest, f"another came, {bundle.digest}")
    if bundle.size_bytes > MAX_ARTIFACT_BYTES:
        refused = Refused(f"{digest} has {bundle.size_bytes} bytes")
        refused.code = "artifact-too-large"
        raise refused
    source = _Bytes(rest, pieces)
    for name, said in bundle.files.items():
        _write(folder / name, source, size=said.size_bytes, sha256=said.sha256, digest=digest)
    if source.take(1):
        raise _bad("bundle-corrupt", digest, "more bytes came than were announced")
    return bundle


class _Bytes:
    """What comes, in pieces that are asked for."""

    def __init__(self, first: bytes, pieces: Iterator[bytes]) -> None:
        self._held = first
        self._pieces = pieces

    def take(self, most: int) -> bytes:
        """Return some bytes, at most so many; empty at the end."""
        while not self._held:
            following = next(self._pieces, None)
            if following is None:
                return b""
            self._held = following
        taken, self._held = self._held[:most], self._held[most:]
        return taken


def _line(pieces: Iterator[bytes], digest: Digest) -> tuple[bytes, bytes]:
    held = b""
    while b"\n" not in held:
        following = next(pieces, None)
        if following is None or len(held) > MAX_BUNDLE_LINE_BYTES:
            raise _bad("bundle-invalid", digest, "it does not begin with a line of JSON")
        held += following
    line, _, rest = held.partition(b"\n")
    if len(line) > MAX_BUNDLE_LINE_BYTES:
        raise _bad("bundle-invalid", digest, "its first line is too long")
    return line, rest


def _write(path: Path, source: _Bytes, *, size: int, sha256: str, digest: Digest) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    found, left = hashlib.sha256(), size
    with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
        while left:
            piece = source.take(left)
            if not piece:
                text = f"{path.name} ends {left} bytes too early"
                raise _bad("bundle-cut-off", digest, text)
            file.write(piece)
            found.update(piece)
            left -= len(piece)
        file.flush()
        os.fsync(file.fileno())
    if found.hexdigest() != sha256:
        raise _bad("bundle-corrupt", digest, f"{path.name} is not what was announced")


def _bad(code: str, digest: Digest, message: str) -> UnreadableInput:
    return UnreadableInput(code, where=digest, message=message)

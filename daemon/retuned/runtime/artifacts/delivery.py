"""Delivery of artifacts over the control socket, where daemon and server share no other folder.

A cache stores files under the SHA-256 of their bytes. They arrive in pieces, in order. A file is
complete only when its bytes have the announced digest; until then nothing reads it. Sizes are
bounded per file and for the whole cache, and the least recently used files are removed first. The
cache belongs to the server's user alone; workers of one server may share it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import logging
import os
import re
import secrets
import shutil
import stat
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from retuned.runtime.schema import Refused

log = logging.getLogger(__name__)

MAX_FILE_BYTES = 64 << 20
MAX_PIECE_BYTES = 160 << 10
"""Largest piece, before base64 encoding."""
MAX_FILES = 8
MAX_OPEN = 4
"""Files that may arrive at the same time; a new one ends the oldest."""
MAX_CACHE_BYTES = 512 << 20

_SHA256 = re.compile(r"[0-9a-f]{64}\Z")
_FILE = re.compile(r"[a-zA-Z0-9_][a-zA-Z0-9_.-]{0,127}\Z")


@dataclass(slots=True)
class _Arriving:
    size: int
    data: bytearray = field(default_factory=bytearray)


class ArtifactCache:
    """Files by digest, in a folder that only this user may enter.

    Parameters
    ----------
    folder
        Where to store them; created on first use. If it cannot be created, or others may enter it,
        a temporary folder replaces it. None uses ``RETUNED_ARTIFACT_CACHE``, or the user's cache
        folder.
    """

    def __init__(self, folder: Path | None = None, *, max_bytes: int = MAX_CACHE_BYTES) -> None:
        self._wanted = folder
        self._folder: Path | None = None
        self._max_bytes = max_bytes
        self._arriving: dict[str, _Arriving] = {}
        self._lock = threading.Lock()

    def take(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Store one piece of a file: ``sha256``, ``size``, ``offset`` and ``data`` in base64.

        A piece that is not the next one is ignored; the answer gives how many bytes are stored, and
        whether the file is complete.

        Raises
        ------
        Refused
            ``delivery-invalid``, ``delivery-too-large``, ``delivery-corrupt`` (the bytes have
            another digest and are discarded) or ``delivery-failed`` (the disk).
        """
        digest, size, offset = _announced(request)
        piece = _piece(request)
        with self._lock:
            if self._has(digest):
                return {"have": size, "complete": True}
            arriving = self._arriving_of(digest, size)
            if offset != len(arriving.data):
                return {"have": len(arriving.data), "complete": False}
            if offset + len(piece) > size:
                del self._arriving[digest]
                raise Refused("delivery-invalid", detail="more bytes arrived than announced")
            arriving.data += piece
            if len(arriving.data) < size:
                return {"have": len(arriving.data), "complete": False}
            del self._arriving[digest]
            self._keep(digest, bytes(arriving.data))
        return {"have": size, "complete": True}

    def folder_of(self, files: object) -> Path:
        """Return a folder with these files, complete and unchanged: file name -> SHA-256.

        Raises
        ------
        Refused
            ``delivery-invalid``, ``delivery-missing`` naming the files that have not arrived,
            ``delivery-corrupt`` or ``delivery-failed``.
        """
        wanted = _listing(files)
        listing = "\n".join(f"{name} {digest}" for name, digest in sorted(wanted.items()))
        name = hashlib.sha256(listing.encode()).hexdigest()
        with self._lock:
            target = self._home() / f"artifact-{name}"
            try:
                if not target.is_dir():
                    self._assemble(target, wanted)
                os.utime(target)
            except OSError as error:
                raise _failed(error) from error
        return target

    def restart(self) -> None:
        """Forget incomplete files.

        In a forked child also replace the lock, whose holder may not exist.
        """
        self._lock = threading.Lock()
        self._arriving = {}

    # --- under the lock ---------------------------------------------------------------------------

    def _arriving_of(self, digest: str, size: int) -> _Arriving:
        known = self._arriving.get(digest)
        if known is None or known.size != size:
            self._arriving.pop(digest, None)
            while len(self._arriving) >= MAX_OPEN:
                self._arriving.pop(next(iter(self._arriving)))
            known = self._arriving[digest] = _Arriving(size)
        return known

    def _has(self, digest: str) -> bool:
        return (self._home() / digest).is_file()

    def _keep(self, digest: str, data: bytes) -> None:
        if hashlib.sha256(data).hexdigest() != digest:
            raise Refused("delivery-corrupt", detail=f"the bytes are not {digest}; send them again")
        home = self._home()
        partial = home / f".partial-{secrets.token_hex(8)}"
        try:
            self._make_room(len(data))
            with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(data)
            os.replace(partial, home / digest)
        except OSError as error:
            partial.unlink(missing_ok=True)
            raise _failed(error) from error

    def _assemble(self, target: Path, wanted: Mapping[str, str]) -> None:
        missing = [name for name, digest in wanted.items() if not self._has(digest)]
        if missing:
            raise Refused("delivery-missing", detail=f"{missing} have not arrived")
        partial = target.with_name(f".partial-{secrets.token_hex(8)}")
        partial.mkdir(mode=0o700)
        try:
            for name, digest in wanted.items():
                data = (self._home() / digest).read_bytes()
                if hashlib.sha256(data).hexdigest() != digest:  # a disk fault, or another program
                    (self._home() / digest).unlink(missing_ok=True)
                    raise Refused("delivery-corrupt", detail=f"'{name}' has changed; send it again")
                (partial / name).write_bytes(data)
            try:
                os.rename(partial, target)
            except OSError:
                if not target.is_dir():  # otherwise another worker of this server was first
                    raise
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    def _make_room(self, coming: int) -> None:
        entries = [each for each in self._home().iterdir() if not each.name.startswith(".")]
        sizes = {each: _bytes_of(each) for each in entries}
        left = self._max_bytes - coming - sum(sizes.values())
        for entry in sorted(entries, key=_used_at):
            if left >= 0:
                return
            left += sizes[entry]
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink(missing_ok=True)

    def _home(self) -> Path:
        if self._folder is None:
            self._folder = _private(self._wanted or _usual_folder())
        return self._folder


def _announced(request: Mapping[str, Any]) -> tuple[str, int, int]:
    digest = request.get("sha256")
    if not isinstance(digest, str) or not _SHA256.match(digest):
        raise Refused("delivery-invalid", detail="'sha256' is not a digest of 64 hex digits")
    numbers = [request.get(name) for name in ("size", "offset")]
    for number in numbers:
        if not isinstance(number, int) or isinstance(number, bool) or number < 0:
            raise Refused("delivery-invalid", detail="'size' and 'offset' must be whole numbers")
    size, offset = numbers
    assert isinstance(size, int) and isinstance(offset, int), "checked above"  # noqa: PT018
    if size > MAX_FILE_BYTES:
        detail = f"{size} bytes; a file has at most {MAX_FILE_BYTES}"
        raise Refused("delivery-too-large", detail=detail)
    return digest, size, offset


def _piece(request: Mapping[str, Any]) -> bytes:
    text = request.get("data")
    if not isinstance(text, str) or len(text) > 2 * MAX_PIECE_BYTES:
        raise Refused("delivery-invalid", detail="'data' is not base64 text of the allowed length")
    try:
        piece = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise Refused("delivery-invalid", detail="'data' is not base64") from error
    if len(piece) > MAX_PIECE_BYTES:
        raise Refused("delivery-too-large", detail=f"a piece has at most {MAX_PIECE_BYTES} bytes")
    return piece


def _listing(files: object) -> dict[str, str]:
    if not isinstance(files, Mapping) or not 0 < len(files) <= MAX_FILES:
        raise Refused("delivery-invalid", detail=f"'files' must have 1 to {MAX_FILES} entries")
    for name, digest in files.items():
        if not isinstance(name, str) or not _FILE.match(name):
            raise Refused("delivery-invalid", detail=f"{name!r:.80} is not a plain file name")
        if not isinstance(digest, str) or not _SHA256.match(digest):
            raise Refused("delivery-invalid", detail=f"{name} has no digest of 64 hex digits")
    return dict(files)


def _usual_folder() -> Path:
    named = os.environ.get("RETUNED_ARTIFACT_CACHE")
    if named:
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "retuned" / "artifacts"


def _private(folder: Path) -> Path:
    """Create a folder that only this user may enter; a temporary one if that is not possible."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        facts = folder.lstat()
        if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.geteuid():
            raise PermissionError(f"{folder} belongs to another user")
        if facts.st_mode & 0o077:
            raise PermissionError(f"{folder} is open to others; chmod 700 it")
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(f"{folder} cannot be written")
        return folder
    except (OSError, RuntimeError) as error:
        log.warning("delivered artifacts are stored in a temporary folder: %s", error)
    try:
        return Path(tempfile.mkdtemp(prefix="retuned-artifacts-"))
    except OSError as error:
        raise _failed(error) from error


def _bytes_of(entry: Path) -> int:
    try:
        if entry.is_dir():
            return sum(each.stat().st_size for each in entry.iterdir())
        return entry.stat().st_size
    except OSError:  # another worker has removed it
        return 0


def _used_at(entry: Path) -> float:
    try:
        return entry.stat().st_mtime
    except OSError:
        return 0.0


def _failed(error: OSError) -> Refused:
    return Refused("delivery-failed", detail=f"the artifact cache: {error}"[:400])

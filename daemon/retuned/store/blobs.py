"""A folder of bytes under their digest: written whole or not at all, verified on every read."""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path

from retuned.contract import Digest
from retuned.errors import TemporaryError, UnreadableInput
from retuned.store.memory import check_digest

_STALE_S = 3_600.0
"""A temporary file this old belongs to a process that died."""


def no_hook(_where: str) -> None:
    """Do nothing; tests pass a hook that dies here."""


class BlobFolder:
    """Content-addressed files; several processes may write at the same time.

    Parameters
    ----------
    root
        Folder; made if absent, readable by its owner only.
    hook
        Called with a name at every boundary that a crash could fall on.
    """

    def __init__(self, root: Path, *, hook: Callable[[str], None] = no_hook) -> None:
        self._root = root
        self._temporary = root / "tmp"
        self._hook = hook
        for folder in (root, self._temporary):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._sweep()

    def put(self, data: bytes) -> Digest:
        """Keep bytes and return their digest; on disk when it returns.

        Raises
        ------
        TemporaryError
            If the disk is full or cannot be written.
        """
        name = hashlib.sha256(data).hexdigest()
        path = self._path(name)
        if self._read(path) != data:  # absent, or damaged and healed by this write
            try:
                self._write(path, data)
            except OSError as error:
                raise TemporaryError(
                    f"{self._root}: cannot keep {len(data)} bytes ({error.strerror}); "
                    "free space or fix the folder's owner",
                    delay_s=30.0,
                ) from error
        return "sha256:" + name

    def get(self, digest: Digest) -> bytes:
        """Return bytes; verifies them.

        Raises
        ------
        UnreadableInput
            If they are absent or do not match.
        """
        name = check_digest(digest)
        path = self._path(name)
        data = self._read(path)
        if data is None:
            raise UnreadableInput(
                "blob-missing", where=str(path), message="the file is gone; repeat what made it"
            )
        if hashlib.sha256(data).hexdigest() != name:
            raise UnreadableInput(
                "blob-corrupt",
                where=str(path),
                message="the bytes do not match their digest; delete the file and repeat "
                "what made it",
            )
        return data

    def drop(self, digest: Digest) -> bool:
        """Remove bytes; False if they are not here. Gone from the disk when it returns.

        Raises
        ------
        TemporaryError
            If they cannot be removed.
        UnreadableInput
            If it is not a digest.
        """
        path = self._path(check_digest(digest))
        self._hook("blob-going")
        try:
            path.unlink()
            self._hook("blob-gone")
            _sync_folder(path.parent)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise TemporaryError(
                f"{path}: cannot be removed ({error.strerror}); fix the folder's owner",
                delay_s=3600.0,
            ) from error
        return True

    def _path(self, name: str) -> Path:
        return self._root / name[:2] / name

    def _read(self, path: Path) -> bytes | None:
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise UnreadableInput(
                "blob-unreadable", where=str(path), message=f"{error.strerror}; fix the file"
            ) from error

    def _write(self, path: Path, data: bytes) -> None:
        new_folder = not path.parent.exists()
        path.parent.mkdir(exist_ok=True, mode=0o700)
        temporary = self._temporary / f"{path.name}.{os.getpid()}.{time.monotonic_ns()}"
        try:
            with open(temporary, "xb", opener=_private) as file:
                self._hook("blob-opened")
                file.write(data)
                file.flush()
                self._hook("blob-written")
                os.fsync(file.fileno())
            self._hook("blob-synced")
            temporary.replace(path)
            self._hook("blob-renamed")
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
        _sync_folder(path.parent)
        if new_folder:
            _sync_folder(self._root)
        self._hook("blob-kept")

    def _sweep(self) -> None:
        for leftover in self._temporary.iterdir():
            with contextlib.suppress(OSError):
                if time.time() - leftover.stat().st_mtime > _STALE_S:
                    leftover.unlink()


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

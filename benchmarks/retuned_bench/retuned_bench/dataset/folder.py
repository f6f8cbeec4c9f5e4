"""A folder of JSON lines that is there whole or not at all; rows are written as they come."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from retuned.errors import UsageError

_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


@dataclass(slots=True)
class Lines:
    """One file while it is written."""

    stream: BinaryIO
    place: Path
    """Where it will be, for messages."""
    rows: int = 0
    """Lines so far."""
    bytes: int = 0
    """Length so far."""
    _hasher: hashlib._Hash = field(default_factory=hashlib.sha256)

    def add(self, text: str) -> None:
        """Append one line.

        Raises
        ------
        UsageError
            If it cannot be written.
        """
        data = text.encode() + b"\n"
        with _told(self.place):
            self.stream.write(data)
        self._hasher.update(data)
        self.rows += 1
        self.bytes += len(data)

    @property
    def sha256(self) -> str:
        """Digest of what was written so far."""
        return "sha256:" + self._hasher.hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A folder under a hidden name, until it is complete."""

    folder: Path
    """Where it is made, beside its place."""
    target: Path
    """Its place."""
    files: dict[str, Lines]
    """Its files by name."""

    def put(self, name: str, text: str) -> None:
        """Write a small file.

        Raises
        ------
        UsageError
            If it cannot be written.
        """
        with _told(self.target / name), (self.folder / name).open("xb") as stream:
            stream.write(text.encode())
            stream.flush()
            os.fsync(stream.fileno())


@contextmanager
def draft(target: Path, names: Sequence[str]) -> Iterator[Draft]:
    """Open a folder's files; when the block ends without an error, the folder is in its place.

    Folder and files have the rights of this process's umask. Until they are in their place, only
    this user can read them. Errors of the block itself pass unchanged.

    Raises
    ------
    UsageError
        If the place is taken or cannot be written, now or at any later moment.
    """
    if os.path.lexists(target):
        raise UsageError(f"{target}: is already there; name a folder that is not")
    with _told(target):
        hidden = Path(tempfile.mkdtemp(prefix=f".{target.name[:100]}-", dir=target.parent))
    try:
        partial = hidden / "set"
        with ExitStack() as stack:
            with _told(target):
                partial.mkdir()
                streams = {n: (partial / n).open("xb") for n in names}
            files = {}
            for name, stream in streams.items():
                stack.callback(_let_go, stream)
                files[name] = Lines(stream, target / name)
            yield Draft(folder=partial, target=target, files=files)
            for lines in files.values():
                with _told(lines.place):
                    lines.stream.flush()
                    os.fsync(lines.stream.fileno())
        with _told(target):
            _place(partial, target)
    finally:
        shutil.rmtree(hidden, ignore_errors=True)


def _let_go(stream: BinaryIO) -> None:
    """Close a file that is whole already, or not wanted; errors of closing do not matter."""
    with suppress(OSError):
        stream.close()


@contextmanager
def _told(place: Path) -> Iterator[None]:
    """Turn what the system says into what cannot be written, and what to do."""
    try:
        yield
    except OSError as error:
        what = "free some space, or name another folder"
        if error.errno not in _SPACE:
            what = "name another folder, or make one where this can be written"
        why = error.strerror or error
        raise UsageError(f"{place}: cannot be written: {why}; {what}") from error


def _place(partial: Path, target: Path) -> None:
    os.rename(partial, target)  # an empty folder made meanwhile is replaced, a full one is not
    folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)

"""A folder of JSON lines that is there whole or not at all; rows are written as they come."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from retuned.errors import UsageError


@dataclass(slots=True)
class Lines:
    """One file while it is written."""

    stream: BinaryIO
    rows: int = 0
    """Lines so far."""
    bytes: int = 0
    """Length so far."""
    _hasher: hashlib._Hash = field(default_factory=hashlib.sha256)

    def add(self, text: str) -> None:
        """Append one line."""
        data = text.encode() + b"\n"
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
    """A folder that nobody sees yet."""

    folder: Path
    """Where it is made, beside its place."""
    files: dict[str, Lines]
    """Its files by name."""

    def put(self, name: str, text: str) -> None:
        """Write a small file."""
        with (self.folder / name).open("xb") as stream:
            stream.write(text.encode())
            stream.flush()
            os.fsync(stream.fileno())


@contextmanager
def draft(target: Path, names: Sequence[str]) -> Iterator[Draft]:
    """Open a folder's files; when the block ends without an error, the folder is in its place.

    Raises
    ------
    UsageError
        If the place is taken or cannot be written, now or at any later moment.
    """
    if os.path.lexists(target):
        raise UsageError(f"{target}: is already there; name a folder that is not")
    try:
        partial = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    except OSError as error:
        raise UsageError(f"{target}: cannot be written: {error.strerror}") from error
    try:
        with ExitStack() as stack:
            streams = {n: stack.enter_context((partial / n).open("xb")) for n in names}
            made = Draft(folder=partial, files={n: Lines(s) for n, s in streams.items()})
            yield made
            for stream in streams.values():
                stream.flush()
                os.fsync(stream.fileno())
        _place(partial, target)
    except OSError as error:
        raise UsageError(f"{target}: cannot be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _place(partial: Path, target: Path) -> None:
    partial.chmod(0o755)
    os.rename(partial, target)  # an empty folder made meanwhile is replaced, a full one is not
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)

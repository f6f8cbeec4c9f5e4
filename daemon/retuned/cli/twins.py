"""Files given twice: the same content would count twice as traffic."""

from __future__ import annotations

import hashlib
import stat
from pathlib import Path

from retuned.plain_files import open_plain


class DuplicateFiles:
    """Remembers files and finds the earlier one with the same content.

    Content is read only where two files are of one size; pipes and devices are nobody's twin.
    """

    def __init__(self) -> None:
        self._sizes: dict[int, list[Path]] = {}
        self._digests: dict[Path, bytes] = {}

    def earlier(self, path: Path) -> Path | None:
        """Return the file of this content that was remembered first; None where there is none."""
        size = _size_bytes(path)
        if size is None:
            return None
        for other in self._sizes.get(size, ()):
            try:
                if self._digest(other) == self._digest(path):
                    return other
            except OSError:  # it says so itself when it is read
                return None
        return None

    def remember(self, path: Path) -> None:
        """Keep a file that was read."""
        size = _size_bytes(path)
        if size is not None:
            self._sizes.setdefault(size, []).append(path)

    def _digest(self, path: Path) -> bytes:
        if path not in self._digests:
            with open_plain(path) as file:
                self._digests[path] = hashlib.file_digest(file, "sha256").digest()
        return self._digests[path]


def _size_bytes(path: Path) -> int | None:
    try:
        found = path.stat()
    except (OSError, ValueError):
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None

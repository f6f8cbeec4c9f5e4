"""A pod's trace folders: read like any, and emptied. What is read is removed, and so is too much.

The folder is a volume of bounded size. A profiler that fills it would have the server evicted.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from retuned.ports import Clock, TraceBatch, TraceSource

log = logging.getLogger(__name__)

_DEPTH = 4
_MAX_FILES = 20_000
_YOUNG_S = 10.0
"""Younger files are being written; removing one frees nothing."""
_LEFT_S = 600.0
"""How long a refused file stays for people to read, seconds."""


class EmptiedFolders:
    """The `TraceSource` port over folders whose files are removed once they are kept.

    Parameters
    ----------
    folders
        Where profilers write.
    source
        Reads them.
    clock
        Compared with the times of files.
    max_bytes
        Most bytes of all files; beyond, the oldest go unread.
    """

    def __init__(
        self,
        folders: Sequence[Path],
        *,
        source: TraceSource,
        clock: Clock,
        max_bytes: int,
    ) -> None:
        self._folders = tuple(folders)
        self._source = source
        self._clock = clock
        self._max_bytes = max_bytes
        self._read: list[tuple[Path, int]] = []

    def poll(self) -> Sequence[TraceBatch]:
        """Remove the files of the last call that were not given back; return new batches."""
        for path, changed_ns in self._read:
            _remove(path, unless_changed_after_ns=changed_ns)
        batches = self._source.poll()
        self._read = [(Path(batch.origin), batch.completed_at_ns) for batch in batches]
        self._make_room(all_read=not batches)
        return batches

    def give_back(self, batches: Sequence[TraceBatch]) -> None:
        """Take batches back; their files stay."""
        kept = {batch.origin for batch in batches}
        self._read = [each for each in self._read if str(each[0]) not in kept]
        self._source.give_back(batches)

    def failures(self) -> Sequence[tuple[str, str]]:
        """Return what could not be read; it stays until there is too much."""
        return self._source.failures()

    def _make_room(self, *, all_read: bool) -> None:
        """Remove files that no step will read, and the oldest files above the limit of size.

        An old file that remains after all were read was refused, or was counted under another
        name.
        """
        now_ns = int(self._clock.now().timestamp() * 1e9)
        found = sorted(self._files(), key=lambda each: each[0])
        total = sum(size for _, size, _ in found)
        for changed_ns, size, path in found:
            age_s = (now_ns - changed_ns) / 1e9
            full = total > self._max_bytes and age_s > _YOUNG_S
            if full:
                log.warning("%s is removed unread: its folder is too full", path)
            if full or (all_read and age_s > _LEFT_S):
                _remove(path, unless_changed_after_ns=changed_ns)
                total -= size

    def _files(self) -> Iterator[tuple[int, int, Path]]:
        seen = 0
        for folder in self._folders:
            for path in _walk(folder, _DEPTH):
                seen += 1
                if seen > _MAX_FILES:
                    return
                try:
                    facts = path.lstat()
                except OSError:
                    continue
                if stat.S_ISREG(facts.st_mode):
                    yield facts.st_mtime_ns, facts.st_size, path


def _walk(folder: Path, depth: int) -> Iterator[Path]:
    try:
        with os.scandir(folder) as entries:
            found = list(entries)
    except OSError:
        return
    for entry in found:
        if entry.is_dir(follow_symlinks=False):
            if depth > 0:
                yield from _walk(Path(entry.path), depth - 1)
        else:
            yield Path(entry.path)


def _remove(path: Path, *, unless_changed_after_ns: int) -> None:
    """Remove a file that is still the one that was read."""
    try:
        if path.lstat().st_mtime_ns <= unless_changed_after_ns:
            path.unlink()
    except FileNotFoundError:
        return
    except OSError as error:
        log.warning("%s cannot be removed: %s", path, error.strerror)

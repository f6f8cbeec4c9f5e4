"""Watched folders: any profiler writes, complete files become batches, each content once."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import nlargest
from pathlib import Path

from retuned.contract import Digest
from retuned.errors import UnreadableInput
from retuned.ports import Clock, TraceBatch
from retuned.traces import ReadLimits, read_trace
from retuned.traces.source import check_size, content_digest, printable

log = logging.getLogger(__name__)

_UNFINISHED = frozenset(
    {
        "truncated-csv",
        "truncated-gzip",
        "truncated-json",
        "unfinished-database",
        "damaged-database",
        "empty-database",
        "empty-file",
    }
)
"""Refusals that a file still being written also meets."""
_TEMPORARY = (".tmp", ".temp", ".part", ".partial", ".swp", ".lock", "-wal", "-shm", "-journal")


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchSettings:
    """When a file counts as complete, and how much is taken at once."""

    settle_s: float = 2.0
    """A file is looked at when size and time of change have stood still so long."""
    patience_s: float = 60.0
    """A file that stands still but stops early is refused after this."""
    max_launches: int = 200_000
    """Launches read per poll; a larger file is cut there and marked (``over-limit``)."""
    depth: int = 4
    """Folders below a watched one: rocprofv3 writes ``HOST/PID_kernel_trace.csv``."""
    max_files: int = 10_000
    """Files remembered, the newest ones."""


@dataclass(frozen=True, slots=True)
class _FileState:
    """One file as it was when last looked at."""

    size: int
    mtime_ns: int
    inode: int
    since_s: float
    retry_s: float = 0.0
    """It stopped early: not worth another look before then, unless it changes."""
    done: bool = False

    def same(self, status: os.stat_result) -> bool:
        return (self.size, self.mtime_ns, self.inode) == _identity(status)


class TraceFolders:
    """The `TraceSource` port over folders.

    Parameters
    ----------
    folders
        Where profilers write; one that does not exist yet is waited for.
    clock
        Time.
    known
        Digests of contents already counted, such as those in the store.
    settings
        When a file is complete.
    limits
        Bounds of one read; by default what the machine's memory allows at that time.
    """

    def __init__(
        self,
        folders: Sequence[Path],
        *,
        clock: Clock,
        known: Collection[Digest] = (),
        settings: WatchSettings | None = None,
        limits: ReadLimits | None = None,
    ) -> None:
        self._folders = tuple(folders)
        self._clock = clock
        self._known = set(known)
        self._settings = settings or WatchSettings()
        self._limits = limits
        self._seen: dict[str, _FileState] = {}
        self._failures: list[tuple[str, str]] = []
        self._taken: dict[Digest, str] = {}
        self._crowded = False

    def poll(self) -> Sequence[TraceBatch]:
        """Return batches completed since the last call, oldest first.

        A file that cannot be read becomes a `failures` entry, never an exception.
        """
        found = dict(self._files())
        for path in self._seen.keys() - found.keys():
            del self._seen[path]
        self._taken.clear()  # what the last poll returned was kept, or given back by now
        ready = [path for path, status in found.items() if self._settled(path, status)]
        ready.sort(key=lambda path: (found[path].st_mtime_ns, path))
        batches: list[TraceBatch] = []
        room = self._settings.max_launches
        for path in ready:
            batch = self._take(path, room=self._settings.max_launches)
            if batch is not None:
                batches.append(batch)
                room -= len(batch.launches)
            if room <= 0:
                break  # the others stay settled and come with the next poll
        return batches

    def give_back(self, batches: Sequence[TraceBatch]) -> None:
        """Take batches back that could not be kept; the next `poll` reads their files again."""
        for batch in batches:
            self._known.discard(batch.digest)
            path = self._taken.get(batch.digest)
            seen = self._seen.get(path) if path is not None else None
            if path is not None and seen is not None:
                self._seen[path] = replace(seen, done=False)

    def failures(self) -> Sequence[tuple[str, str]]:
        """Return (path, message) of files refused since the last call."""
        failures, self._failures = self._failures, []
        return failures

    def _files(self) -> list[tuple[str, os.stat_result]]:
        """Return the newest files: a profiler that never tidies up must not hide what it writes."""
        depth, most = self._settings.depth, self._settings.max_files
        everything = (found for folder in self._folders for found in _walk(folder, depth=depth))
        newest = nlargest(most + 1, everything, key=lambda found: found[1].st_mtime_ns)
        if len(newest) > most and not self._crowded:
            log.warning(
                "more than %d files in the watched folders: the newest are read; remove old ones",
                most,
            )
        self._crowded = len(newest) > most
        return newest[:most]

    def _settled(self, path: str, status: os.stat_result) -> bool:
        """Whether a file is worth a look now; remembers it."""
        now_s = self._clock.monotonic_s()
        seen = self._seen.get(path)
        if seen is None or not seen.same(status):
            seen = self._seen[path] = _FileState(*_identity(status), since_s=now_s)
        if seen.done or now_s < seen.retry_s:
            return False
        age_s = self._clock.now().timestamp() - status.st_mtime
        return max(age_s, now_s - seen.since_s) >= self._settings.settle_s

    def _take(self, path: str, *, room: int) -> TraceBatch | None:
        seen = self._seen[path]
        try:
            limits = self._limits or ReadLimits()
            check_size(Path(path), limits=limits)
            digest = content_digest(Path(path))
            if digest in self._known:
                self._seen[path] = replace(seen, done=True)
                return None
            batch = read_trace(Path(path), max_launches=room, limits=limits, digest=digest)
            status = os.lstat(path)
        except UnreadableInput as error:
            self._refused(path, seen, error)
            return None
        except OSError:
            return None  # gone between listing and reading
        if not seen.same(status):
            return None  # it changed while it was read: it was not complete
        self._known.add(digest)
        self._taken[digest] = path
        self._seen[path] = replace(seen, done=True)
        return replace(batch, size_bytes=status.st_size)

    def _refused(self, path: str, seen: _FileState, error: UnreadableInput) -> None:
        retry_s = seen.since_s + self._settings.patience_s
        if error.code in _UNFINISHED and self._clock.monotonic_s() < retry_s:
            self._seen[path] = replace(seen, retry_s=retry_s)
            return
        if error.code == "not-found":
            return
        self._seen[path] = replace(seen, done=True)
        self._failures.append((printable(path), printable(str(error))))


class FakeTraceSource:
    """The same port over batches handed in by a test or a replay."""

    def __init__(
        self, batches: Iterable[TraceBatch] = (), *, known: Collection[Digest] = ()
    ) -> None:
        self._batches = list(batches)
        self._known = set(known)
        self._failures: list[tuple[str, str]] = []

    def add(self, batch: TraceBatch) -> None:
        """Let a file complete."""
        self._batches.append(batch)

    def refuse(self, path: str, message: str) -> None:
        """Let a file be unreadable."""
        self._failures.append((path, message))

    def poll(self) -> Sequence[TraceBatch]:
        """Return what was added since the last call, oldest first, each content once."""
        fresh: list[TraceBatch] = []
        for batch in sorted(self._batches, key=lambda b: (b.completed_at_ns, b.origin)):
            if batch.digest not in self._known:
                self._known.add(batch.digest)
                fresh.append(batch)
        self._batches = []
        return fresh

    def give_back(self, batches: Sequence[TraceBatch]) -> None:
        """Hand them out again."""
        for batch in batches:
            self._known.discard(batch.digest)
            self._batches.append(batch)

    def failures(self) -> Sequence[tuple[str, str]]:
        """Return what was refused since the last call."""
        failures, self._failures = self._failures, []
        return failures


def _identity(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_size, status.st_mtime_ns, status.st_ino


def _walk(folder: Path, *, depth: int) -> Iterator[tuple[str, os.stat_result]]:
    """Regular files that may be traces; links are not followed, since anyone may plant them."""
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return  # not there yet, or not ours to read
    for entry in entries:
        if entry.name.startswith(".") or entry.name.endswith(_TEMPORARY):
            continue
        try:
            status = entry.stat(follow_symlinks=False)
        except OSError:
            continue
        if stat.S_ISDIR(status.st_mode) and depth > 0:
            yield from _walk(Path(entry.path), depth=depth - 1)
        elif stat.S_ISREG(status.st_mode):
            yield entry.path, status

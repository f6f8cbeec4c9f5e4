"""Folder that a sidecar watches: files appear complete, and the folder never fills up.

A file is written under a hidden name and renamed. The reader may be another user, as a sidecar is.
So all users may read the files, and a user who may write to the folder may remove them.
"""

from __future__ import annotations

import gzip
import os
import stat
import time
from itertools import islice
from pathlib import Path

SUFFIX = ".pt.trace.json.gz"
_PREFIX = ".retuned-"
_HIDDEN = ".part"
MAX_FILES = 4096
"""Files examined; a folder with more counts as full."""
_STALE_S = 600.0
"""An incomplete file of this age is removed, seconds."""
_PIECE = 1 << 18
_KERNEL = b'"cat": "kernel"'


class FolderUnusable(Exception):
    """The folder accepts no file now; the reason is a stable code."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def check(folder: Path, max_bytes: int, *, now_s: float | None = None) -> None:
    """Raise `FolderUnusable` if nothing may be written: ``folder-missing``, ``folder-full``.

    Incomplete files of processes that ended are removed first.
    """
    now_s = time.time() if now_s is None else now_s
    total = 0
    try:
        with os.scandir(folder) as entries:
            found = list(islice(entries, MAX_FILES + 1))
        for entry in found:
            status = entry.stat(follow_symlinks=False)
            if not stat.S_ISREG(status.st_mode):
                continue
            is_half = entry.name.startswith(_PREFIX) and entry.name.endswith(_HIDDEN)
            if is_half and now_s - status.st_mtime > _STALE_S:
                os.unlink(entry.path)
            else:
                total += status.st_size
        room = os.statvfs(folder)
    except FileNotFoundError as error:
        if not folder.is_dir():
            raise FolderUnusable("folder-missing") from error
        return  # the reader has removed a file during the scan
    except OSError as error:
        raise FolderUnusable("folder-missing") from error
    if len(found) > MAX_FILES or total > max_bytes:
        raise FolderUnusable("folder-full")
    if room.f_bavail * room.f_frsize < max_bytes // 4:
        raise FolderUnusable("folder-full")


def plain_path(folder: Path, name: str) -> Path:
    return folder / f"{_PREFIX}{name}.json{_HIDDEN}"


def publish(plain: Path, target: Path, *, max_bytes: int) -> int:
    """Compress the profiler's file and rename it; return the number of GPU kernels in it.

    Compression releases the interpreter lock. `plain` is removed in any case.

    Raises
    ------
    FolderUnusable
        ``too-large``: the file alone would have more than `max_bytes` before it is compressed.
    OSError
        If it cannot be written; no file remains.
    """
    hidden = target.with_name(f"{_PREFIX}{target.name}{_HIDDEN}")
    kernels, tail = 0, b""
    try:
        if plain.stat().st_size > max_bytes:
            raise FolderUnusable("too-large")
        with open(plain, "rb") as source, gzip.open(hidden, "wb", 1) as file:
            while piece := source.read(_PIECE):
                seen = tail + piece
                kernels += seen.count(_KERNEL)
                tail = seen[-(len(_KERNEL) - 1) :]
                file.write(piece)
        os.chmod(hidden, 0o644)
        os.replace(hidden, target)
    finally:
        for path in (plain, hidden):
            path.unlink(missing_ok=True)
    return kernels

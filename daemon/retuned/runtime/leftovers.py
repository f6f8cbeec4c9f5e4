"""Sockets in a shared folder: a name that nobody else uses, and those of the dead removed.

Every process has ``<pid>.sock``. Containers of one pod count their processes alike and may share
the folder, so a name that somebody else answers to is not taken. Who was killed leaves a socket
behind; nothing can listen on it again. It is removed if it is ours, old enough to be no socket that
is about to listen, refuses connections, and is still the same file when it is taken away.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import stat
import struct
import time
from pathlib import Path

log = logging.getLogger(__name__)

MIN_AGE_S = 10.0
"""A socket that was made later may not listen yet."""
MOST = 512
"""Files looked at in one sweep."""
_NAME = re.compile(r"[0-9]{1,10}(-[0-9a-f]{8})?\.sock")
_WAIT_S = 0.2
_ASIDE = ".retuned-gone-"


def own_path(path: Path) -> Path:
    """Return where this process may listen: `path`, unless another process answers there.

    Examples
    --------
    >>> own_path(Path("/nowhere/1.sock"))
    PosixPath('/nowhere/1.sock')
    """
    listener = _listener(path)
    if listener is None or listener == os.getpid():
        return path
    return path.with_name(f"{path.stem}-{os.urandom(4).hex()}{path.suffix}")


def sweep(folder: Path, *, now: float | None = None) -> int:
    """Remove the sockets of processes that are gone; return how many. Never raises."""
    now = time.time() if now is None else now
    removed = 0
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry, _ in zip(entries, range(MOST), strict=False)]
    except OSError as error:
        log.debug("%s: not swept: %s", folder, error)
        return 0
    for name in names:
        if _NAME.fullmatch(name):
            try:
                removed += _remove_if_dead(folder / name, now=now)
            except OSError as error:
                log.debug("%s: left as it is: %s", folder / name, error)
    if removed:
        log.info("%s: removed %d sockets of processes that are gone", folder, removed)
    return removed


def _remove_if_dead(path: Path, *, now: float) -> bool:
    before = path.lstat()
    if not stat.S_ISSOCK(before.st_mode) or before.st_uid != os.geteuid():
        return False
    if now - max(before.st_mtime, before.st_ctime) < MIN_AGE_S or not _refuses(path):
        return False
    aside = path.with_name(f"{_ASIDE}{os.urandom(8).hex()}")
    os.rename(path, aside)  # whatever lies under the name now, nobody connects to it meanwhile
    after = aside.lstat()
    if _which(after) != _which(before):
        os.rename(aside, path)  # a new process has taken the name in this very moment: its own
        return False
    aside.unlink()
    return True


def _which(found: os.stat_result) -> tuple[int, int, int]:
    """Tell one file from another: numbers of files are used again at once, so its age belongs."""
    return found.st_dev, found.st_ino, found.st_mtime_ns


def _refuses(path: Path) -> bool:
    """Whether nobody listens; a listener that is busy or slow is one."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_WAIT_S)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False


def _listener(path: Path) -> int | None:
    """Process that listens there, 0 for one of another container; None if there is none."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(_WAIT_S)
            probe.connect(str(path))
            size = struct.calcsize("3i")
            credentials = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    except OSError as error:  # whatever else is wrong with it, who binds finds out
        return 0 if isinstance(error, (BlockingIOError, TimeoutError)) else None
    return int(struct.unpack("3i", credentials)[0])

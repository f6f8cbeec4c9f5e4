"""Where the control socket is made, and who may connect to it."""

from __future__ import annotations

import logging
import os
import socket
import stat
import struct
from collections.abc import Callable
from pathlib import Path

log = logging.getLogger(__name__)

_BACKLOG = 128
"""Peers that may wait to be let in; who finds no room is told to try again."""
_MAX_PATH_BYTES = 107

PeerUid = Callable[[socket.socket], int]


def peer_uid(connection: socket.socket) -> int:
    """User id of the process at the other end, from the kernel."""
    size = struct.calcsize("3i")
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    return int(struct.unpack("3i", credentials)[1])


def allowed_uids() -> frozenset[int]:
    """Users beside this one and root that ``RETUNED_ALLOWED_UIDS`` names; none that is no number.

    Server and sidecar read the same variable, each for the other's user.
    """
    named = os.environ.get("RETUNED_ALLOWED_UIDS", "").split(",")
    return frozenset(int(each) for each in named if each.strip().isdecimal() and len(each) < 12)


def bind(path: Path) -> tuple[socket.socket, tuple[int, int] | None]:
    """Bind a socket that nobody else may connect to, from its first moment on; and say which it is.

    Only a socket is replaced: any other file there is somebody's.

    Raises
    ------
    OSError
        If it cannot be there, or not safely.
    """
    if len(os.fsencode(path)) > _MAX_PATH_BYTES:
        raise OSError(f"{path} is longer than the {_MAX_PATH_BYTES} bytes a socket may have")
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    _check_folder(path.parent)
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise OSError(f"{path} is no socket, and not replaced; remove it or name another path")
        path.unlink(missing_ok=True)
    except FileNotFoundError:
        pass
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        os.fchmod(listener.fileno(), 0o600)  # the file takes this mode when it is made
        listener.bind(str(path))  # follows no link, unlike a chmod afterwards
        if allowed_uids():
            _let_others_connect(path)
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener, identity_of(path)


def _let_others_connect(path: Path) -> None:
    """Open a socket to all users: the kernel says who connects, and only named ones are answered.

    By a handle that follows no link; the process's umask is the server's, and stays.
    """
    handle = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if stat.S_ISSOCK(os.fstat(handle).st_mode):
            os.chmod(f"/proc/self/fd/{handle}", 0o666)
    finally:
        os.close(handle)


def _check_folder(folder: Path) -> None:
    """Refuse a folder of another user's; say where others may put a socket in place of ours.

    Pods share folders that everybody may write to: the daemon asks the kernel who answers.
    """
    found = folder.stat()
    if found.st_uid not in (0, os.geteuid()):
        raise OSError(f"{folder} belongs to user {found.st_uid}, who could replace the socket")
    if found.st_mode & 0o022 and not found.st_mode & stat.S_ISVTX:
        log.warning("control socket: others may write to %s; chmod 700 it if it is not shared on "
                    "purpose", folder)  # fmt: skip


def identity_of(path: Path) -> tuple[int, int] | None:
    """Return what tells a file from one that is put in its place; None where there is none."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino

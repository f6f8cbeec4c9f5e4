"""Control socket: the daemon sends requests, the runtime answers, one JSON object a line.

It runs inside another project's server, so it has narrow limits. Only this user, root and
configured users may connect. Lines, connections and every wait are bounded. Its threads are daemon
threads that log unexpected exceptions and continue. Serving never waits for it. A new connection
replaces the one that has been silent longest, so that idle peers cannot exclude the daemon.

Sockets in a shared folder get unique names, and those of processes that ended are removed.
"""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import stat
import struct
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from retuned.runtime.schema import Refused

log = logging.getLogger(__name__)

_BACKLOG = 128
"""Peers that may wait to be accepted; the kernel returns EAGAIN to further ones."""
_MAX_PATH_BYTES = 107

PeerUid = Callable[[socket.socket], int]


def peer_uid(connection: socket.socket) -> int:
    """Return the user id of the process at the other end, from the kernel."""
    size = struct.calcsize("3i")
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    return int(struct.unpack("3i", credentials)[1])


def allowed_uids() -> frozenset[int]:
    """User ids in ``RETUNED_ALLOWED_UIDS``, allowed besides this user and root.

    Entries that are not numbers are ignored. Server and sidecar read the same variable, each for
    the user of the other.
    """
    named = os.environ.get("RETUNED_ALLOWED_UIDS", "").split(",")
    return frozenset(int(each) for each in named if each.strip().isdecimal() and len(each) < 12)


def bind(path: Path) -> tuple[socket.socket, tuple[int, int] | None]:
    """Bind a socket that other users can never connect to, and return it with its identity.

    Only a socket is replaced; any other file at the path is left alone.

    Raises
    ------
    OSError
        If the socket cannot be bound there, or not safely.
    """
    if len(os.fsencode(path)) > _MAX_PATH_BYTES:
        raise OSError(f"{path} is longer than the {_MAX_PATH_BYTES} bytes a socket may have")
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    _check_folder(path.parent)
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise OSError(f"{path} exists and is not a socket; remove it or choose another path")
        path.unlink(missing_ok=True)
    except FileNotFoundError:
        pass
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        os.fchmod(listener.fileno(), 0o600)  # the file gets this mode when it is created
        listener.bind(str(path))  # follows no link, unlike a chmod afterwards
        if allowed_uids():
            _let_others_connect(path)
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener, identity_of(path)


def _let_others_connect(path: Path) -> None:
    """Open a socket to all users: the kernel identifies them, and only allowed users get answers.

    The handle does not follow links. The umask of the process is the server's and does not change.
    """
    handle = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if stat.S_ISSOCK(os.fstat(handle).st_mode):
            os.chmod(f"/proc/self/fd/{handle}", 0o666)
    finally:
        os.close(handle)


def _check_folder(folder: Path) -> None:
    """Refuse a folder of another user; warn if other users may replace the socket.

    Pods share folders that everyone may write to: there the daemon verifies the peer by the kernel.
    """
    found = folder.stat()
    if found.st_uid not in (0, os.geteuid()):
        raise OSError(f"{folder} belongs to user {found.st_uid}, who could replace the socket")
    if found.st_mode & 0o022 and not found.st_mode & stat.S_ISVTX:
        log.warning("control socket: others may write to %s; chmod 700 it if it is not shared on "
                    "purpose", folder)  # fmt: skip


def identity_of(path: Path) -> tuple[int, int] | None:
    """Return the identity (device, inode) of a file; None if it does not exist."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


MAX_REQUEST_BYTES = 256 << 10
MAX_CONNECTIONS = 8
"""Connections answered at a time; further ones are closed immediately."""
REQUEST_TIMEOUT_S = 5.0
"""Longest time from the first byte of a request to its end, and for sending the answer."""
IDLE_TIMEOUT_S = 60.0
_TICK_S = 0.05
_LEAVE_S = 0.5
"""Time for a connection that was shut down to free its place."""
_LOG_EVERY_S = 10.0
"""Interval of log lines on rejected peers: a flood of connections must not flood the log."""

Answer = Callable[[Mapping[str, Any]], dict[str, Any]]


class ControlSocket:
    """Listens on a Unix socket and answers.

    Parameters
    ----------
    path
        Where to bind; an existing socket is replaced.
    answer
        Executes a request; raises `Refused` for the daemon.
    idle
        Called about every 50 ms between connections.

    Raises
    ------
    OSError
        If the socket cannot be bound.
    RuntimeError
        If no thread can be started to serve it.
    """

    def __init__(
        self,
        path: Path,
        answer: Answer,
        *,
        idle: Callable[[], None] = lambda: None,
        credentials: PeerUid = peer_uid,
    ) -> None:
        self.path = path
        self._answer = answer
        self._idle = idle
        self._credentials = credentials
        self._places = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._silent: dict[socket.socket, float] = {}
        self._open: set[socket.socket] = set()
        self._turned_away = 0
        self._logged_at = float("-inf")
        self._idled_at = time.monotonic()
        self._listener, self._identity = bind(path)
        self._listener.settimeout(_TICK_S)
        self._thread = threading.Thread(target=self._serve, name="retuned-control", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # no thread available: no socket is better than an unserved one
            self._leave()
            raise

    def close(self) -> None:
        self._closing.set()
        self._thread.join(timeout=2.0)
        self._leave()

    def _leave(self) -> None:
        self._listener.close()
        if identity_of(self.path) == self._identity:  # else another process has replaced it
            self.path.unlink(missing_ok=True)

    def abandon(self) -> None:
        """Close the copies of the parent's sockets in a forked child; leave the file.

        A copy of a connection would keep it open after the parent dies, and the peer would not
        notice. No lock is taken: the thread that held it may not exist in the child.
        """
        self._listener.close()
        for connection in self._open:
            connection.close()

    def _serve(self) -> None:
        while not self._closing.is_set():
            connection: socket.socket | None = None
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                pass  # no connection: time for work that is not urgent
            except OSError as error:
                if self._closing.is_set():
                    return
                log.warning("control socket: cannot accept: %s", error)
                self._closing.wait(_TICK_S)
                continue
            try:
                if connection is not None:
                    self._admit(connection)
                # A stream of peers must not delay idle work without limit.
                if connection is None or time.monotonic() - self._idled_at > 20 * _TICK_S:
                    self._idled_at = time.monotonic()
                    self._idle()
            except Exception:  # main loop of this thread: one failure must not end it
                log.exception("control socket: a turn failed")
                self._closing.wait(_TICK_S)

    def _admit(self, connection: socket.socket) -> None:
        """Admit a peer, if necessary in place of the one that has been silent longest."""
        try:
            uid = self._credentials(connection)
        except OSError:
            connection.close()
            raise
        if uid not in (0, os.geteuid(), *allowed_uids()):
            self._turn_away(connection, f"a peer of user {uid}")
            return
        if not self._places.acquire(blocking=False):
            self._closing.wait(_TICK_S)  # slow down a flood of connections
            if not (self._hang_up_on_one() and self._places.acquire(timeout=_LEAVE_S)):
                self._turn_away(connection, f"more than {MAX_CONNECTIONS} busy connections")
                return
        self._start(connection)

    def _turn_away(self, connection: socket.socket, why: str) -> None:
        connection.close()
        self._turned_away += 1
        now = time.monotonic()
        if now - self._logged_at >= _LOG_EVERY_S:
            log.warning("control socket: rejected %d peers, the last: %s", self._turned_away, why)
            self._logged_at, self._turned_away = now, 0

    def _hang_up_on_one(self) -> bool:
        with self._lock:
            if not self._silent:
                return False
            longest = min(self._silent, key=self._silent.__getitem__)
            del self._silent[longest]
            try:
                longest.shutdown(socket.SHUT_RDWR)  # its thread wakes and ends
            except OSError:
                log.debug("control socket: a silent peer was gone already")
        return True

    def _start(self, connection: socket.socket) -> None:
        with self._lock:
            self._silent[connection] = time.monotonic()
            self._open.add(connection)
        thread = threading.Thread(
            target=self._converse, args=(connection,), name="retuned-control-peer", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:  # no thread available
            self._forget(connection)
            connection.close()
            raise

    def _forget(self, connection: socket.socket) -> None:
        with self._lock:
            self._silent.pop(connection, None)
            self._open.discard(connection)
        self._places.release()

    def _converse(self, connection: socket.socket) -> None:
        try:
            with connection:
                reader = _LineReader(connection)
                while not self._closing.is_set():
                    line = reader.next()
                    with self._lock:
                        shut_down = self._silent.pop(connection, None) is None
                    if line is None or shut_down:
                        return
                    reply = self._reply(line)
                    connection.settimeout(REQUEST_TIMEOUT_S)
                    connection.sendall(reply)
                    with self._lock:
                        self._silent[connection] = time.monotonic()
        except (OSError, ValueError) as error:  # peer gone, too slow or too long
            log.debug("control socket: connection ended: %s", error)
        except Exception:  # main loop of this thread
            log.exception("control socket: a connection failed")
        finally:
            self._forget(connection)

    def _reply(self, line: bytes) -> bytes:
        try:
            request = json.loads(line, parse_constant=_no_number)
        except (ValueError, RecursionError):
            return _encode(_refusal("bad-request", "a line must be one JSON object"))
        if not isinstance(request, dict):
            return _encode(_refusal("bad-request", "a line must be one JSON object"))
        try:
            return _encode({"ok": True} | self._answer(request))
        except Refused as error:
            return _encode(_refusal(error.reason, error.detail))
        except Exception as error:  # whatever an operation raises, the peer gets an answer
            log.exception("control socket: operation failed")
            return _encode(_refusal("runtime-error", repr(error)[:300]))


class _LineReader:
    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._buffer = b""

    def next(self) -> bytes | None:
        """Return the next line, or None if the peer closed the connection.

        Raises
        ------
        OSError
            If the connection failed or the peer is too slow.
        ValueError
            If a line is too long.
        """
        self._connection.settimeout(IDLE_TIMEOUT_S)
        deadline = time.monotonic() + REQUEST_TIMEOUT_S if self._buffer else None
        while b"\n" not in self._buffer:
            if len(self._buffer) > MAX_REQUEST_BYTES:
                raise ValueError("request too long")
            if deadline is not None:
                self._connection.settimeout(max(0.001, deadline - time.monotonic()))
            chunk = self._connection.recv(64 << 10)
            if not chunk:
                return None
            if deadline is None:
                deadline = time.monotonic() + REQUEST_TIMEOUT_S
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        if len(line) > MAX_REQUEST_BYTES:
            raise ValueError("request too long")
        return line


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is not a JSON number")


def _refusal(reason: str, detail: str) -> dict[str, Any]:
    return {"ok": False, "reason": reason, "detail": detail[:2000]}


def _encode(answer: Mapping[str, Any]) -> bytes:
    return json.dumps(answer, separators=(",", ":")).encode() + b"\n"


MIN_AGE_S = 10.0
"""Younger sockets are not removed: their process may not listen yet."""
MOST = 512
_NAME = re.compile(r"[0-9]{1,10}(-[0-9a-f]{8})?\.sock")
_WAIT_S = 0.2
_ASIDE = ".retuned-gone-"


def own_path(path: Path) -> Path:
    """Return `path` if this process may listen there; a unique name if another process listens.

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
    """Remove the sockets of processes that ended; return how many. Never raises."""
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
        log.info("%s: removed %d sockets of processes that ended", folder, removed)
    return removed


def _remove_if_dead(path: Path, *, now: float) -> bool:
    before = path.lstat()
    if not stat.S_ISSOCK(before.st_mode) or before.st_uid != os.geteuid():
        return False
    if now - max(before.st_mtime, before.st_ctime) < MIN_AGE_S or not _refuses(path):
        return False
    moved = path.with_name(f"{_ASIDE}{os.urandom(8).hex()}")
    os.rename(path, moved)  # during the check, no peer can connect to this file
    after = moved.lstat()
    if _which(after) != _which(before):
        os.rename(moved, path)  # a new process has bound the name since the first check
        return False
    moved.unlink()
    return True


def _which(found: os.stat_result) -> tuple[int, int, int]:
    """Return the identity of a file.

    It includes the time, because the kernel reuses inode numbers immediately.
    """
    return found.st_dev, found.st_ino, found.st_mtime_ns


def _refuses(path: Path) -> bool:
    """Whether no process listens; a busy or slow listener counts as listening."""
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
    """Return the process that listens there; 0 for one in another container, None without one."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(_WAIT_S)
            probe.connect(str(path))
            size = struct.calcsize("3i")
            credentials = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    except OSError as error:  # other faults show up when the caller binds
        return 0 if isinstance(error, (BlockingIOError, TimeoutError)) else None
    return int(struct.unpack("3i", credentials)[0])

"""The control socket: one JSON object a line, asked by the daemon, answered by the runtime.

It lives in somebody else's server, so it is narrow: a stream socket that only this user (or root)
may use, lines and connections bounded, every wait bounded, and its threads are daemons that catch
what they do not expect, write it to the log and go on. Serving never waits for it.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from retuned.runtime.spec import Refused

log = logging.getLogger(__name__)

MAX_REQUEST_BYTES = 256 << 10
"""Longest request line."""
MAX_CONNECTIONS = 8
"""Connections answered at a time; more are closed at once."""
REQUEST_TIMEOUT_S = 5.0
"""Longest time from the first byte of a request to its end, and for taking the answer."""
IDLE_TIMEOUT_S = 60.0
"""Longest silence between requests."""
_TICK_S = 0.05
_MAX_PATH_BYTES = 107

Answer = Callable[[Mapping[str, Any]], dict[str, Any]]
PeerUid = Callable[[socket.socket], int]


def peer_uid(connection: socket.socket) -> int:
    """User id of the process at the other end, from the kernel."""
    size = struct.calcsize("3i")
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    return int(struct.unpack("3i", credentials)[1])


class ControlSocket:
    """Listens on a Unix socket and answers.

    Parameters
    ----------
    path
        Where to bind; what lies there is replaced.
    answer
        Carries out a request; raises `Refused` for the daemon.
    idle
        Called about every 50 ms between connections.
    credentials
        Tells the user id of a peer.

    Raises
    ------
    OSError
        If the socket cannot be bound.
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
        self._listener = _bind(path)
        self._thread = threading.Thread(target=self._serve, name="retuned-control", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening and remove the socket; connections end by themselves."""
        self._closing.set()
        self._thread.join(timeout=2.0)
        self._listener.close()
        self.path.unlink(missing_ok=True)

    def abandon(self) -> None:
        """Let go of the parent's socket in a forked child: close the copy, leave the file."""
        self._closing.set()
        self._listener.close()

    def _serve(self) -> None:
        while not self._closing.is_set():
            connection: socket.socket | None = None
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                pass  # nobody came: time for what is not urgent
            except OSError as error:
                if self._closing.is_set():
                    return
                log.warning("control socket: cannot accept: %s", error)
                self._closing.wait(_TICK_S)
                continue
            try:
                if connection is not None:
                    self._start(connection)
                else:
                    self._idle()
            except Exception:  # the program loop of this thread: one bad turn must not end it
                log.exception("control socket: a turn failed")
                self._closing.wait(_TICK_S)

    def _start(self, connection: socket.socket) -> None:
        uid = self._credentials(connection)
        if uid not in (0, os.geteuid()):
            log.warning("control socket: refused a peer of user %d", uid)
            connection.close()
            return
        if not self._places.acquire(blocking=False):
            log.warning("control socket: more than %d connections", MAX_CONNECTIONS)
            connection.close()
            return
        thread = threading.Thread(
            target=self._converse, args=(connection,), name="retuned-control-peer", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:  # no thread to be had
            self._places.release()
            connection.close()
            raise

    def _converse(self, connection: socket.socket) -> None:
        try:
            with connection:
                reader = _LineReader(connection)
                while not self._closing.is_set():
                    line = reader.next()
                    if line is None:
                        return
                    connection.settimeout(REQUEST_TIMEOUT_S)
                    connection.sendall(self._reply(line))
        except (OSError, ValueError) as error:  # peer gone, too slow or too long
            log.debug("control socket: connection ended: %s", error)
        except Exception:  # the program loop of this thread
            log.exception("control socket: a connection failed")
        finally:
            self._places.release()

    def _reply(self, line: bytes) -> bytes:
        try:
            request = json.loads(line)
        except (ValueError, RecursionError):
            return _encode(_refusal("bad-request", "a line must be one JSON object"))
        if not isinstance(request, dict):
            return _encode(_refusal("bad-request", "a line must be one JSON object"))
        try:
            return _encode({"ok": True} | self._answer(request))
        except Refused as error:
            return _encode(_refusal(error.reason, error.detail))
        except Exception as error:  # whatever an operation trips over, the peer gets an answer
            log.exception("control socket: operation failed")
            return _encode(_refusal("runtime-error", repr(error)[:300]))


class _LineReader:
    """Lines of a socket, bounded in length and time."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._buffer = b""

    def next(self) -> bytes | None:
        """Return the next line, or None when the peer is done.

        Raises
        ------
        OSError
            If the peer is gone or too slow.
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


def _bind(path: Path) -> socket.socket:
    """Bind a socket that nobody else may connect to, from its first moment on."""
    if len(os.fsencode(path)) > _MAX_PATH_BYTES:
        raise OSError(f"{path} is longer than the {_MAX_PATH_BYTES} bytes a socket may have")
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        os.fchmod(listener.fileno(), 0o600)  # the file takes this mode when it is made
        listener.bind(str(path))
        path.chmod(0o600)
        listener.listen(MAX_CONNECTIONS)
        listener.settimeout(_TICK_S)
    except OSError:
        listener.close()
        raise
    return listener


def _refusal(reason: str, detail: str) -> dict[str, Any]:
    return {"ok": False, "reason": reason, "detail": detail[:2000]}


def _encode(answer: Mapping[str, Any]) -> bytes:
    return json.dumps(answer, separators=(",", ":")).encode() + b"\n"

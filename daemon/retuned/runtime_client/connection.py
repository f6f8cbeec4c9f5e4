"""Connection for one request to one process of a server, over its control socket."""

from __future__ import annotations

import json
import logging
import os
import socket
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from retuned.errors import CandidateError, RetunedError, TemporaryError
from retuned.runtime.core.control_socket import allowed_uids, peer_uid

log = logging.getLogger(__name__)

MAX_ANSWER_BYTES = 32 << 20
"""Longest accepted answer of a server."""
SLOW_S = 2.0
"""Time after which an answer is logged as slow."""
RETRY_S = 1.0
"""Delay before a process that did not answer gets the next request."""

Said = dict[str, Any] | RetunedError | None
"""An answer, an error, or None if no process listens."""


def told(path: Path, request: Mapping[str, Any], *, timeout_s: float) -> Said:
    """Send a request to one process; return its error, so that the others get the request too.

    None means that no process listens.
    """
    begin_s = time.monotonic()
    try:
        answer = _ask(path, request, timeout_s=timeout_s)
    except (ConnectionRefusedError, FileNotFoundError):
        return None  # its process has ended
    except (OSError, ValueError, RecursionError) as error:
        message = f"{path}: the runtime does not answer: {error}"
        return TemporaryError(message, delay_s=RETRY_S)
    took_s = time.monotonic() - begin_s
    if took_s > SLOW_S:
        log.info("%s: the answer to %s took %.1f s", path.name, request.get("op"), took_s)
    if answer.get("ok") is True:
        return answer
    reason, detail = str(answer.get("reason")), str(answer.get("detail"))
    if reason == "former-daemon":
        message = f"{path}: another daemon drives this server, stop one of the two: {detail[:300]}"
        return TemporaryError(message, delay_s=RETRY_S)
    return CandidateError(reason[:64], detail=detail[:2000])


def _ask(path: Path, request: Mapping[str, Any], *, timeout_s: float) -> dict[str, Any]:
    """Send one request, read one line.

    Raises
    ------
    OSError
        If the runtime does not listen or is too slow.
    ValueError
        If its answer is not a JSON object of allowed size.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout_s)
        connection.connect(str(path))
        _check_peer(connection, allowed=allowed_uids())
        connection.sendall(json.dumps(request, separators=(",", ":")).encode() + b"\n")
        chunks: list[bytes] = []
        size = 0
        while not chunks or b"\n" not in chunks[-1]:
            chunk = connection.recv(1 << 18)
            if not chunk:
                raise ConnectionResetError("closed without an answer")
            chunks.append(chunk)
            size += len(chunk)
            if size > MAX_ANSWER_BYTES:
                raise ValueError(f"answer has more than {MAX_ANSWER_BYTES} bytes")
    answer = json.loads(b"".join(chunks))
    if not isinstance(answer, dict):
        raise ValueError("answer is not a JSON object")
    return answer


def _check_peer(connection: socket.socket, *, allowed: Collection[int]) -> None:
    """Refuse a socket of another user's process in a shared folder.

    A runtime accepts its own user, root and configured users, so a valid one belongs to this user
    or to a user named here. If this program is root, the owner of the socket's process could as
    well be the server.

    Raises
    ------
    PermissionError
        If the process that listens belongs to another user.
    """
    own = os.geteuid()
    uid = peer_uid(connection)
    if own != 0 and uid not in (0, own, *allowed):
        raise PermissionError(f"a process of user {uid}, which is not allowed, listens there")

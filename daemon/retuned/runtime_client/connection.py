"""One request to one process of a server, over its control socket."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from retuned.errors import CandidateError, RetunedError, TemporaryError
from retuned.runtime.core.control_socket import allowed_uids, peer_uid

MAX_ANSWER_BYTES = 32 << 20
"""Longest answer taken from a server."""
RETRY_S = 1.0
"""Delay before a process that did not answer gets the next request."""

Said = dict[str, Any] | RetunedError | None
"""An answer, what went wrong instead, or None where the process is gone."""


def told(path: Path, request: Mapping[str, Any], *, timeout_s: float) -> Said:
    """Ask one process; its error is returned, so that the others are told too. None is gone."""
    try:
        answer = _ask(path, request, timeout_s=timeout_s)
    except (ConnectionRefusedError, FileNotFoundError):
        return None  # its process is gone
    except (OSError, ValueError, RecursionError) as error:
        message = f"{path}: the runtime does not answer: {error}"
        return TemporaryError(message, delay_s=RETRY_S)
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
        If the runtime is gone or too slow.
    ValueError
        If its answer is no JSON object of bearable size.
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
    """Refuse to believe a process of another user's that lies in wait in a shared folder.

    A runtime listens to its own user, to root and to whom it is told, so an honest one is of this
    user or of one that was named here, unless this is root: then whoever owns the socket's process
    could as well be the server.

    Raises
    ------
    PermissionError
        If the process that listens is another user's.
    """
    own = os.geteuid()
    uid = peer_uid(connection)
    if own != 0 and uid not in (0, own, *allowed):
        raise PermissionError(f"a process of user {uid} listens there, not one of ours")

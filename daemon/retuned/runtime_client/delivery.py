"""Delivery of an artifact to one process: from its folder, or with its files over the socket."""

from __future__ import annotations

import base64
import hashlib
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from retuned.errors import CandidateError, RetunedError, TemporaryError
from retuned.runtime.artifacts.delivery import MAX_PIECE_BYTES
from retuned.runtime_client.connection import RETRY_S, Said, told
from retuned.store.artifact_folder import bundle_of

_NOT_THERE = frozenset({"artifact-missing", "artifact-outside"})
"""Refusals of a process that cannot read the folder."""
_PIECE_TIMEOUT_S = 20.0
_TRIES = 3
"""How often a file is sent that arrives damaged, or is removed before it is used."""


class Delivery:
    """One artifact for one order.

    Parameters
    ----------
    request
        The prepare, without the location of the artifact.
    folder
        Folder of the artifact on this side.
    key
        Returns the public key that it is signed with, hex; None sends none.
    """

    def __init__(
        self, request: Mapping[str, Any], *, folder: Path, key: Callable[[], str] | None
    ) -> None:
        self._request = dict(request)
        self._folder = folder
        self._key = key
        self._lock = threading.Lock()
        self._files: dict[str, bytes] | None = None

    def prepare(self, path: Path, *, timeout_s: float) -> Said:
        """Prepare in the process behind a socket; errors are returned."""
        problem = self._show_key(path)
        if problem is not None:
            return problem
        request = self._request | {"artifact_dir": str(self._folder.absolute())}
        said = told(path, request, timeout_s=timeout_s)
        if not (isinstance(said, CandidateError) and said.reason in _NOT_THERE):
            return said
        files = self._bundle()
        if files is None:
            return said  # this side cannot read it either
        for _ in range(_TRIES):
            problem = self._send(path, files)
            if problem is not None:
                return problem
            listing = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
            said = told(path, self._request | {"files": listing}, timeout_s=timeout_s)
            if not (isinstance(said, CandidateError) and said.reason == "delivery-missing"):
                return said
        return said

    def _show_key(self, path: Path) -> Said:
        if self._key is None:
            return None
        return show_key(path, self._key, term=self._request.get("term", 0))

    def _bundle(self) -> dict[str, bytes] | None:
        with self._lock:  # read only once for all processes
            if self._files is None:
                try:
                    self._files = bundle_of(self._folder)
                except (OSError, ValueError):
                    return None
            return self._files

    def _send(self, path: Path, files: Mapping[str, bytes]) -> Said:
        """Send missing files; None if all have arrived."""
        for name, data in files.items():
            for _ in range(_TRIES):
                said = self._send_file(path, data)
                if not (isinstance(said, CandidateError) and said.reason == "delivery-corrupt"):
                    break
            if not isinstance(said, dict):
                return said or TemporaryError(
                    f"{path}: the process ended while {name} was sent", delay_s=RETRY_S
                )
        return None

    def _send_file(self, path: Path, data: bytes) -> Said:
        digest, offset = hashlib.sha256(data).hexdigest(), 0
        said: Said = None
        for _ in _bounded(len(data)):
            piece = data[offset : offset + MAX_PIECE_BYTES]
            request = {
                "op": "deliver",
                "sha256": digest,
                "size": len(data),
                "offset": offset,
                "data": base64.b64encode(piece).decode(),
                "term": self._request.get("term", 0),
            }
            said = told(path, request, timeout_s=_PIECE_TIMEOUT_S)
            if not isinstance(said, dict) or said.get("complete") is True:
                return said
            have = said.get("have")
            if not isinstance(have, int) or not 0 <= have <= len(data):
                break
            offset = have  # bytes that the process has already
        return TemporaryError(f"{path}: a file does not arrive", delay_s=RETRY_S)


def show_key(path: Path, key: Callable[[], str], *, term: int) -> RetunedError | None:
    """Send the key if the process waits for one to pin; None if there was no error."""
    hello = told(path, {"op": "hello"}, timeout_s=_PIECE_TIMEOUT_S)
    if not isinstance(hello, dict) or hello.get("trust") != "pin":
        return None
    request = {"op": "trust", "key": key(), "term": term}
    said = told(path, request, timeout_s=_PIECE_TIMEOUT_S)
    return None if isinstance(said, dict) else said


def _bounded(size: int) -> Iterator[int]:
    """Count somewhat more pieces than a file has, so that a transfer without progress ends."""
    return iter(range(2 * (size // MAX_PIECE_BYTES + 1) + 4))

"""Names of services for pods: a cluster's DNS, as far as these tests ask it.

Answers ``NAME.NAMESPACE.svc.cluster.local`` with the cluster IP, as the API server tells it, and
knows nothing else: what lies outside the cluster cannot be reached anyway. What was found is kept
while the API server is away, as a cluster's real DNS does.
"""

from __future__ import annotations

import json
import logging
import socket
import ssl
import struct
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from ipaddress import IPv4Address
from typing import Self

log = logging.getLogger(__name__)

DOMAIN = "cluster.local"
_A = 1
_IN = 1
_OK, _FAILED, _NO_SUCH_NAME = 0, 2, 3
_TTL_S = 5
_HEADER = struct.Struct("!6H")

Find = Callable[[str, str], IPv4Address | None]
"""Returns a service's cluster IP by namespace and name; None if there is none; raises OSError."""


class Names:
    """Answers on port 53 of an address for the length of a block.

    Parameters
    ----------
    address
        Where pods ask.
    find
        Looks services up.
    """

    def __init__(self, address: str, find: Find) -> None:
        self._find = find
        self._known: dict[tuple[str, str], IPv4Address] = {}
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((address, 53))
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="names", daemon=True)

    def __enter__(self) -> Self:
        self._socket.settimeout(0.2)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._socket.close()

    def _serve(self) -> None:
        while not self._over.is_set():
            try:
                asked, peer = self._socket.recvfrom(512)
                self._socket.sendto(self.answer(asked), peer)
            except TimeoutError:
                continue
            except (OSError, ValueError, struct.error) as error:  # one question, not all of them
                log.warning("names: %s", error)

    def answer(self, asked: bytes) -> bytes:
        """Return the answer to one question.

        Raises
        ------
        ValueError, struct.error
            If it is none.
        """
        id_, flags, questions, *_ = _HEADER.unpack_from(asked)
        if questions != 1:
            raise ValueError(f"{questions} questions")
        labels, end = _labels(asked, _HEADER.size)
        kind, _ = struct.unpack_from("!2H", asked, end)
        question = asked[_HEADER.size : end + 4]
        code, found = self._look_up(labels)
        record = b""
        if found is not None and kind == _A:
            # the name is that of the question, which begins behind the header
            record = struct.pack("!3HIH", 0xC000 | _HEADER.size, _A, _IN, _TTL_S, 4) + found.packed
        recursion = flags & 0x0100
        header = _HEADER.pack(id_, 0x8480 | recursion | code, 1, 1 if record else 0, 0, 0)
        return header + question + record

    def _look_up(self, labels: list[str]) -> tuple[int, IPv4Address | None]:
        if labels[2:] != ["svc", *DOMAIN.split(".")]:
            return _NO_SUCH_NAME, None
        name, namespace = labels[:2]
        try:
            found = self._find(namespace, name)
        except OSError:
            known = self._known.get((namespace, name))
            return (_OK if known else _FAILED), known
        if found is None:
            self._known.pop((namespace, name), None)
            return _NO_SUCH_NAME, None
        self._known[namespace, name] = found
        return _OK, found


def finder(url: str, context: ssl.SSLContext) -> Find:
    """Return a look-up that asks an API server."""

    def find(namespace: str, name: str) -> IPv4Address | None:
        where = f"{url}/api/v1/namespaces/{namespace}/services/{name}"
        try:
            with urllib.request.urlopen(where, timeout=5, context=context) as answer:
                address = json.load(answer)["spec"].get("clusterIP", "None")
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            raise
        return None if address == "None" else IPv4Address(address)

    return find


def _labels(message: bytes, at: int) -> tuple[list[str], int]:
    """Return a name's labels in small letters and where it ends."""
    labels: list[str] = []
    while at < len(message):
        length = message[at]
        if length == 0:
            return labels, at + 1
        if length > 63:
            raise ValueError("a pointer in a question")
        labels.append(message[at + 1 : at + 1 + length].decode("ascii").lower())
        at += 1 + length
    raise ValueError("a name without an end")

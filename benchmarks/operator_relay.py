"""A relay before the API server whose connections can fall silent without an end, as a lost peer's.

Connections that are open when it is frozen never carry a byte again and are never closed; those
that come later are carried as ever.
"""

from __future__ import annotations

import selectors
import socket
import threading
from types import TracebackType
from typing import Self

_CHUNK = 64 << 10
_LOOK_S = 0.5


class Relay:
    """Carries TCP to one port of this machine.

    Parameters
    ----------
    port
        Of the API server.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._frozen = 0
        self._made = 0
        self._ended = threading.Event()
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port: int = self._socket.getsockname()[1]

    def freeze(self) -> int:
        """Silence every connection that is open now; return how many there ever were."""
        self._frozen = self._made
        return self._frozen

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        self._ended.set()
        self._socket.close()

    def _accept(self) -> None:
        while not self._ended.is_set():
            try:
                near, _ = self._socket.accept()
                far = socket.create_connection(("127.0.0.1", self._port))
            except OSError:
                return  # the end
            self._made += 1
            for each in (near, far):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._carry, args=(near, far, self._made), daemon=True).start()

    def _carry(self, near: socket.socket, far: socket.socket, number: int) -> None:
        peers = {near: far, far: near}
        with near, far, selectors.DefaultSelector() as selector:
            for each in peers:
                selector.register(each, selectors.EVENT_READ)
            while not self._ended.is_set():
                for key, _ in selector.select(_LOOK_S):
                    source = key.fileobj
                    assert isinstance(source, socket.socket)
                    if number <= self._frozen:
                        self._ended.wait()
                        return
                    try:
                        data = source.recv(_CHUNK)
                        if not data:
                            return
                        peers[source].sendall(data)
                    except OSError:
                        return

"""HTTPS whose certificate can change while it runs."""

from __future__ import annotations

import logging
import socket
import ssl
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvicorn

from retuned.errors import HarnessError
from retuned_operator.webhook.certificates import Pair

log = logging.getLogger(__name__)

_END_S = 10.0
"""Seconds that ending may take."""
_MAX_AT_ONCE = 128
"""Requests that are answered at the same time; the rest is told to come again."""


class HttpsServer:
    """Serves an ASGI application in a thread of its own.

    Parameters
    ----------
    app
        The application.
    host, port
        Where; port 0 is any that is free, see `port`.
    max_at_once
        Requests that are answered at the same time.
    """

    def __init__(
        self, app: Callable[..., Any], *, host: str, port: int, max_at_once: int = _MAX_AT_ONCE
    ) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._pair: Pair | None = None
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            server_header=False,
            limit_concurrency=max_at_once,
            timeout_graceful_shutdown=int(_END_S / 2),
        )
        config.load()
        config.ssl = self._context  # ours, so that its certificate can be another one later
        self._server = uvicorn.Server(config)
        self._place = (host, port)
        self._socket: socket.socket | None = None
        self._thread = threading.Thread(target=self._run, name=f"https-{port}", daemon=True)

    @property
    def port(self) -> int:
        """Port that it listens on, once it does."""
        return int(self._socket.getsockname()[1]) if self._socket else self._place[1]

    @property
    def is_serving(self) -> bool:
        """Whether it answers, or is about to."""
        return self._thread.is_alive()

    def serve_with(self, pair: Pair) -> None:
        """Use a certificate for connections from now on.

        Raises
        ------
        ssl.SSLError
            If certificate and key do not fit; what was served before goes on.
        """
        if pair == self._pair:
            return
        with tempfile.TemporaryDirectory(prefix="retuned-tls-") as folder:  # 0700, for a moment
            chain, key = Path(folder, "tls.crt"), Path(folder, "tls.key")
            chain.write_bytes(pair.certificate)
            key.write_bytes(pair.key)
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(chain, key)  # do they fit?
            self._context.load_cert_chain(chain, key)
        self._pair = pair

    def start(self) -> None:
        """Begin to serve; from its return on connections are taken.

        Raises
        ------
        HarnessError
            If it cannot, such as for a port that is taken.
        """
        host, port = self._place
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._socket = socket.create_server(
                self._place, family=family, dualstack_ipv6=host == "::"
            )
        except OSError as error:
            raise HarnessError(f"{host}:{port}: cannot be served: {error.strerror}") from error
        self._thread.start()

    def stop(self) -> None:
        """End; requests under way get a few seconds."""
        self._server.should_exit = True
        if self._thread.is_alive():
            self._thread.join(_END_S)

    def _run(self) -> None:
        assert self._socket is not None, "start() has opened it"
        self._server.run(sockets=[self._socket])

"""An HTTPS server on a separate thread, for the agent API and the webhook."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress

import uvicorn
from starlette.types import ASGIApp

from retuned.errors import TemporaryError, UsageError

log = logging.getLogger(__name__)

_START_S = 20.0
_RETRY_S = 5.0
_BACKLOG = 1024


def tls_context() -> ssl.SSLContext:
    """Return a server's context without a certificate yet; nothing below TLS 1.2."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


class HttpsServer:
    """Serves an ASGI application.

    Parameters
    ----------
    app
        The application.
    context
        Certificates; the caller may exchange them while it serves.
    host, port
        Where to listen; port 0 takes a free one, see `port`.
    name
        Of the thread, and for messages.
    max_at_once
        Most connections and requests under way; the server answers more with 503.
    stop_s
        How long ending may take, seconds; requests under way get half of it.
    before_stop
        Called first when it is to end, such as to answer waiting requests.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        context: ssl.SSLContext,
        host: str,
        port: int,
        name: str,
        max_at_once: int,
        stop_s: float = 5.0,
        before_stop: Callable[[], None] = lambda: None,
    ) -> None:
        config = uvicorn.Config(
            app,
            loop="asyncio",
            http="h11",
            ws="none",
            lifespan="off",
            access_log=False,
            log_config=None,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=max_at_once,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=int(stop_s / 2),
        )
        config.load()
        config.ssl = context
        self._server = uvicorn.Server(config)
        self._name = name
        self._place = (host, port)
        self._stop_s = stop_s
        self._before_stop = before_stop
        self._socket: socket.socket | None = None
        self._thread: threading.Thread | None = None

    @property
    def port(self) -> int:
        """Port that it listens on.

        Raises
        ------
        UsageError
            Before the start.
        """
        if self._socket is None:
            raise UsageError(f"the {self._name} has not been started")
        return int(self._socket.getsockname()[1])

    @property
    def is_serving(self) -> bool:
        """Whether it answers."""
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> None:
        """Listen, and return once requests are taken.

        Raises
        ------
        TemporaryError
            If it cannot listen there, or does not begin in time.
        """
        host, port = self._place
        try:
            self._socket = socket.create_server(
                self._place,
                family=socket.AF_INET6 if ":" in host else socket.AF_INET,
                dualstack_ipv6=host == "::",
                backlog=_BACKLOG,
            )
        except OSError as error:
            text = f"the {self._name} cannot listen on {host}:{port} ({error.strerror})"
            raise TemporaryError(text, delay_s=_RETRY_S) from error
        # connections inherit it; without it an answer's body waits 40 ms for its head to be taken
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        started = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(self._socket, started), name=self._name, daemon=True
        )
        self._thread.start()
        if not started.wait(_START_S):
            self.stop()
            raise TemporaryError(f"the {self._name} does not begin", delay_s=_RETRY_S)

    def stop(self) -> None:
        """End; requests under way get a moment."""
        self._before_stop()
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join(self._stop_s)
        if self._socket is not None:
            with suppress(OSError):
                self._socket.close()

    def _run(self, listening: socket.socket, started: threading.Event) -> None:
        async def serve() -> None:
            serving = asyncio.ensure_future(self._server.serve(sockets=[listening]))
            while not self._server.started and not serving.done():
                await asyncio.sleep(0.01)
            started.set()
            await serving

        try:
            asyncio.run(serve())
        except Exception:
            log.exception("the %s has ended", self._name)

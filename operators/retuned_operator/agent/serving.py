"""The server of the agent API: TLS with certificates that are read anew when they change."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
import threading
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from retuned.errors import TemporaryError, UnreadableInput, UsageError
from retuned_operator.agent.waiting import Hub

log = logging.getLogger(__name__)

_START_S = 20.0
_STOP_S = 5.0
_MAX_CONNECTIONS = 12_000


class Certificates:
    """A certificate and its key, by path; whoever connects gets the newest that fit together.

    Parameters
    ----------
    certificate, key
        PEM files, as cert-manager or the operator writes them into a mounted secret.

    Raises
    ------
    UnreadableInput
        ``certificate-unusable``, at the start; later the last usable pair stays.
    """

    def __init__(self, certificate: Path, key: Path) -> None:
        self._paths = (certificate, key)
        self._lock = threading.Lock()
        self._seen = self._facts()
        self._current = self._load()
        self.context = self._load()
        """For the listening socket; each handshake asks for the newest pair."""
        self.context.sni_callback = self._newest

    def _newest(
        self, connection: ssl.SSLObject | ssl.SSLSocket, _name: str | None, _: ssl.SSLContext
    ) -> None:
        with self._lock:
            facts = self._facts()
            if facts != self._seen:
                self._seen = facts  # a pair that does not fit is not tried at each handshake
                try:
                    self._current = self._load()
                except UnreadableInput as error:
                    log.error("the former certificate stays: %s", error)
                else:
                    log.info("certificate read anew")
            connection.context = self._current

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        certificate, key = self._paths
        try:
            context.load_cert_chain(certificate, key)
        except (OSError, ssl.SSLError) as error:
            message = f"no usable certificate with the key {key} ({error})"
            raise UnreadableInput(
                "certificate-unusable", where=str(certificate), message=message
            ) from error
        return context

    def _facts(self) -> tuple[tuple[int, int, int] | None, ...]:
        return tuple(_facts_of(path) for path in self._paths)


def _facts_of(path: Path) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return (found.st_ino, found.st_mtime_ns, found.st_size)


class AgentServer:
    """Serves an application on a thread of its own.

    Parameters
    ----------
    app
        See `agent_app`.
    certificates
        See `Certificates`.
    hub
        Those that wait, who are answered before the end.
    port, address
        Where to listen; port 0 takes a free one.
    """

    def __init__(
        self,
        app: ASGIApp,
        certificates: Certificates,
        *,
        hub: Hub,
        port: int,
        address: str = "0.0.0.0",
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
            limit_concurrency=_MAX_CONNECTIONS,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=2,
        )
        config.load()
        config.ssl = certificates.context
        self._server = uvicorn.Server(config)
        self._hub = hub
        self._place = (address, port)
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
            raise UsageError("the agent API has not been started")
        return int(self._socket.getsockname()[1])

    def start(self) -> None:
        """Listen, and return once requests are taken.

        Raises
        ------
        TemporaryError
            If it cannot listen there, or does not begin in time.
        """
        address, port = self._place
        try:
            self._socket = socket.create_server((address, port), backlog=1024)
        except OSError as error:
            text = f"cannot listen on {address}:{port} ({error.strerror})"
            raise TemporaryError(text, delay_s=5.0) from error
        started = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(started,), name="agent-api", daemon=True
        )
        self._thread.start()
        if not started.wait(_START_S):
            raise TemporaryError("the agent API does not begin", delay_s=5.0)

    def stop(self) -> None:
        """End; who waits for orders is answered as things stand, and asks again elsewhere."""
        self._hub.close()
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join(_STOP_S)
        if self._socket is not None:
            self._socket.close()

    def is_alive(self) -> bool:
        """Whether it serves."""
        return self._thread is not None and self._thread.is_alive()

    def _run(self, started: threading.Event) -> None:
        async def serve() -> None:
            assert self._socket is not None, "start has made it"
            serving = asyncio.ensure_future(self._server.serve(sockets=[self._socket]))
            while not self._server.started and not serving.done():
                await asyncio.sleep(0.01)
            started.set()
            await serving

        try:
            asyncio.run(serve())
        except Exception:
            log.exception("the agent API has ended")

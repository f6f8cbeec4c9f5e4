"""The server of the agent API: TLS with certificates that it reads again when they change."""

from __future__ import annotations

import logging
import os
import ssl
import threading
from pathlib import Path

from starlette.types import ASGIApp

from retuned.errors import UnreadableInput
from retuned_operator.agent_api.waiters import Hub
from retuned_operator.kube.https_server import HttpsServer, tls_context

log = logging.getLogger(__name__)

_MAX_CONNECTIONS = 12_000


class Certificates:
    """A certificate and its key, by path; each new connection gets the newest matching pair.

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
                    log.info("certificate read again")
            connection.context = self._current

    def _load(self) -> ssl.SSLContext:
        context = tls_context()
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


class AgentServer(HttpsServer):
    """The agent API.

    Parameters
    ----------
    app
        See `agent_app`.
    certificates
        See `Certificates`.
    hub
        Requests that wait for orders: they get the current orders, and the clients ask again.
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
        super().__init__(
            app,
            context=certificates.context,
            host=address,
            port=port,
            name="agent API",
            max_at_once=_MAX_CONNECTIONS,
            before_stop=hub.close,
        )

"""Health and metrics over plain HTTP: ``/livez``, ``/readyz``, ``/metrics``; nothing else."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from retuned.errors import TemporaryError

log = logging.getLogger(__name__)

Check = Callable[[], bool]
_READ_S = 5.0
_RETRY_S = 10.0


class HealthServer:
    """Answers probes on a separate thread.

    Parameters
    ----------
    registry
        What ``/metrics`` shows.
    live
        By name: checks that must hold, or the kubelet restarts the container.
    ready
        By name: checks that must hold before the pod gets requests.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        *,
        live: Mapping[str, Check],
        ready: Mapping[str, Check],
        address: str,
        port: int,
    ) -> None:
        answers: dict[str, Callable[[], tuple[int, str, bytes]]] = {
            "/livez": lambda: _said(live),
            "/readyz": lambda: _said(ready),
            "/metrics": lambda: _metrics(registry),
        }

        class Handler(BaseHTTPRequestHandler):
            timeout = _READ_S

            def do_GET(self) -> None:
                answer = answers.get(self.path.partition("?")[0])
                status, kind, body = answer() if answer else (404, "text/plain", b"not here\n")
                self.send_response(status)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                log.debug(format, *args)

        try:
            self._server = ThreadingHTTPServer((address, port), Handler)
        except OSError as error:
            text = f"cannot listen on {address}:{port} ({error.strerror})"
            raise TemporaryError(text, delay_s=_RETRY_S) from error
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="health", daemon=True
        )

    @property
    def port(self) -> int:
        """Port that it listens on."""
        return int(self._server.server_address[1])

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def stop(self) -> None:
        """End."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _metrics(registry: CollectorRegistry) -> tuple[int, str, bytes]:
    return 200, CONTENT_TYPE_LATEST, generate_latest(registry)


def _said(checks: Mapping[str, Check]) -> tuple[int, str, bytes]:
    """Return an answer with each check by name; 503 where one fails."""
    found = {name: check() for name, check in checks.items()}
    body = json.dumps(found).encode() + b"\n"
    return 200 if all(found.values()) else 503, "application/json", body

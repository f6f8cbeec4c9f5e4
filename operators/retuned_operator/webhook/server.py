"""The server of the webhook, whose certificate can change while it runs."""

from __future__ import annotations

import ssl
import tempfile
from pathlib import Path

from starlette.types import ASGIApp

from retuned_operator.kube.https_server import HttpsServer, tls_context
from retuned_operator.webhook.certificates import Pair

_STOP_S = 10.0
_MAX_AT_ONCE = 128
"""Most connections and requests at the same time; the server answers more with 503."""


class WebhookServer(HttpsServer):
    """Serves the webhook.

    Parameters
    ----------
    app
        See `application`.
    host, port
        Where to listen; port 0 takes a free one.
    """

    def __init__(self, app: ASGIApp, *, host: str, port: int) -> None:
        self._context = tls_context()
        self._pair: Pair | None = None
        super().__init__(
            app,
            context=self._context,
            host=host,
            port=port,
            name="webhook",
            max_at_once=_MAX_AT_ONCE,
            stop_s=_STOP_S,
        )

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

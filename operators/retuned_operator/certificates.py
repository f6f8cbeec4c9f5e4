"""Certificates of agent API and webhook: our own, kept in a Secret, or those that are mounted."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit

from retuned.errors import TemporaryError
from retuned_operator.kube.client import Api
from retuned_operator.kube.errors import NotFound
from retuned_operator.kube.resources import MUTATING_WEBHOOKS
from retuned_operator.settings import Settings
from retuned_operator.webhook.app import application
from retuned_operator.webhook.certificate_secret import (
    WEBHOOK,
    CertificateRotator,
    CertificateState,
    mounted,
    publish,
)
from retuned_operator.webhook.certificates import Pair
from retuned_operator.webhook.server import WebhookServer

log = logging.getLogger(__name__)

_LOOK_AGAIN = timedelta(minutes=1)
_AFTER_FAILURE = timedelta(seconds=10)


class CertificateManager:
    """Keeps certificates up to date, and serves the webhook with them.

    Parameters
    ----------
    settings
        Where things are.
    api
        The API server; guarded by the lease, so that only the leader writes.
    namespaces
        Those with servers: their sidecars must know the authority.
    """

    def __init__(
        self, settings: Settings, api: Api, *, namespaces: Callable[[], Iterable[str]]
    ) -> None:
        self.files: tuple[Path, Path] | None = None
        """Certificate and key as files; None before there are any."""
        self._settings = settings
        self._api = api
        self._namespaces = namespaces
        self._due: datetime | None = None
        self._seen: tuple[bool, frozenset[str]] = (False, frozenset())
        self._filed: Pair | None = None
        self._webhook: WebhookServer | None = None

    def step(self, *, now: datetime, leading: bool) -> None:
        """Renew, publish and serve the certificates that are due.

        Raises
        ------
        RetunedError
            If the API server does not let it; what is served already stays.
        """
        led, told = self._seen
        here = frozenset(self._namespaces())
        # who begins to lead serves sidecars, and pods of a new namespace wait for the authority
        at_once = leading != led or not here <= told
        if self._due is not None and now < self._due and not at_once:
            return
        self._seen = (leading, here)
        self._due = now + _AFTER_FAILURE
        kept = self._mounted(leading) if self._settings.tls_dir else self._own(now, leading)
        if kept is None:
            return
        self._serve(kept.pair)
        if not kept.untold:
            self._due = now + _LOOK_AGAIN

    def is_serving(self) -> bool:
        """Return whether pods get what they ask for: a pod before that would stay without it."""
        return self._settings.webhook_port is None or self._webhook is not None

    def stop(self) -> None:
        """End."""
        if self._webhook is not None:
            self._webhook.stop()

    def _mounted(self, leading: bool) -> CertificateState | None:
        folder = self._settings.tls_dir
        found = mounted(folder) if folder is not None else None
        if found is None or folder is None:
            return None
        pair, bundle = found
        untold = publish(self._api, bundle, namespaces=self._namespaces()) if leading else ()
        self.files = (folder / "tls.crt", folder / "tls.key")
        return CertificateState(pair=pair, untold=untold)

    def _own(self, now: datetime, leading: bool) -> CertificateState | None:
        """Keep certificates of our own; who does not lead serves what is kept."""
        keeper = CertificateRotator(
            api=self._api,
            namespace=self._settings.pod_namespace,
            names=self._names(),
            servers=self._namespaces,
            webhook=self._settings.webhook_port is not None,
        )
        if not leading:
            served = keeper.served()
            return None if served is None else CertificateState(pair=served)
        kept = keeper.step(now=now)
        if kept.pair != self._filed:
            try:
                self.files, self._filed = self._written(kept.pair), kept.pair
            except OSError as error:  # such as a full disk: what is served already stays
                text = f"{self._settings.state_dir}: the certificate cannot be written"
                delay_s = _AFTER_FAILURE.total_seconds()
                raise TemporaryError(f"{text} ({error.strerror})", delay_s=delay_s) from error
        return kept

    def _names(self) -> tuple[str, ...]:
        """Return the DNS names that are served: of the agent API, and of the webhook's service."""
        namespace = self._settings.pod_namespace
        names = [urlsplit(self._settings.sidecar_settings().agent_url).hostname or ""]
        try:
            hooks = self._api.get(MUTATING_WEBHOOKS, WEBHOOK).get("webhooks") or []
        except NotFound:
            hooks = []
        for hook in hooks:
            service = hook.get("clientConfig", {}).get("service") or {}
            if service.get("name"):
                names.append(f"{service['name']}.{service.get('namespace', namespace)}.svc")
        return tuple(dict.fromkeys(filter(None, names)))

    def _written(self, pair: Pair) -> tuple[Path, Path]:
        """Write a pair where the agent API reads it; key first, both whole."""
        folder = self._settings.state_dir / "tls"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        places = (folder / "tls.crt", folder / "tls.key")
        for place, data in ((places[1], pair.key), (places[0], pair.certificate)):
            partial = place.with_suffix(".partial")
            partial.unlink(missing_ok=True)
            descriptor = os.open(partial, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
            os.replace(partial, place)
        return places

    def _serve(self, pair: Pair) -> None:
        port = self._settings.webhook_port
        if port is None:
            return
        if self._webhook is None:
            app = application(self._settings.sidecar_settings())
            server = WebhookServer(app, host=self._settings.address, port=port)
            server.serve_with(pair)
            server.start()  # if it fails, the next pass makes a new one
            self._webhook = server
            log.info("the webhook listens on port %d", server.port)
        else:
            self._webhook.serve_with(pair)

"""Stores the certificates in a Secret, and publishes their authority to the cluster.

The Secret is the only source: it is written first, over the version that was read, so that of two
operators one wins and the other reads. Then the authorities are published, and only then does a
process serve the certificate of the Secret. Every step can be repeated.
"""

from __future__ import annotations

import base64
import binascii
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

from retuned.files import NotPlain, read_plain
from retuned_operator.kube.errors import AlreadyExists, ApiError, Conflict, NotFound
from retuned_operator.kube.resources import CONFIG_MAPS, MUTATING_WEBHOOKS, SECRETS, Resource
from retuned_operator.manifests.names import MANAGER, labels
from retuned_operator.webhook.certificates import (
    Material,
    Pair,
    read_material,
    renewed,
    write_material,
)

log = logging.getLogger(__name__)

SECRET = "retuned-webhook-cert"
"""Secret with authority and certificate, in the operator's namespace."""
AUTHORITY = "retuned-agent-ca"
"""ConfigMap with ``ca.crt`` in every namespace with servers; sidecars trust it."""
WEBHOOK = "retuned-sidecar"
"""The MutatingWebhookConfiguration whose ``caBundle`` is kept."""
MANAGED_BY = "app.kubernetes.io/managed-by"
"""Label that names the creator of an object."""
LOOK_AGAIN = timedelta(minutes=10)
_TAKEN_BY_OTHERS = 3
"""Tries against others who write the same Secret."""
_MAX_FILE_BYTES = 64 * 1024


class Objects(Protocol):
    """What of the API server is needed here; `retuned_operator.kube.client.Api` has it."""

    def get(self, resource: Resource, name: str, *, namespace: str = "") -> dict[str, Any]:
        """Return one object, or raise `NotFound`."""
        ...

    def apply(
        self, resource: Resource, body: Mapping[str, Any], *, force: bool = True
    ) -> dict[str, Any]:
        """Make the fields of an object what they are in `body`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateState:
    """The certificate to serve, and the namespaces without the authority."""

    pair: Pair
    untold: tuple[str, ...] = ()
    """Namespaces where publishing failed; in one that is being deleted it always fails."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateRotator:
    """Keeps what `kept_secret` and `publish` write up to date."""

    api: Objects
    """The API server."""
    namespace: str
    """The operator's own."""
    names: Sequence[str]
    """DNS names that are served: those of the webhook and of the agent API."""
    servers: Callable[[], Iterable[str]]
    """Namespaces whose sidecars must know the authority."""
    webhook: bool = True
    """Whether there is a webhook whose configuration is to be kept."""

    def step(self, *, now: datetime) -> CertificateState:
        """Do all that is due; return what is to be served.

        Raises
        ------
        ApiError
            If the API server does not let it; what is served already stays good.
        """
        material = self._kept(now)
        untold = publish(
            self.api,
            material.bundle(),
            namespaces=self.servers(),
            webhook=WEBHOOK if self.webhook else "",
        )
        return CertificateState(pair=material.serving, untold=untold)

    def served(self) -> Pair | None:
        """Return the certificate of the Secret, for a process that may not write; None before.

        Raises
        ------
        ApiError
            If it cannot be asked for.
        """
        material = read_material(_decoded(self._secret()))
        return material.serving if material else None

    def _kept(self, now: datetime) -> Material:
        for left in reversed(range(_TAKEN_BY_OTHERS)):
            found = self._secret()
            material = read_material(_decoded(found))
            due = renewed(material, self.names, now=now)
            if due == material:
                return due
            try:
                self._write(due, over=found)
            except (Conflict, AlreadyExists):
                if not left:
                    raise
                continue  # another replica wrote first; its certificate is as good
            log.info("secret %s/%s has new certificates", self.namespace, SECRET)
            return due
        raise AssertionError("the last try returns or raises")

    def _secret(self) -> dict[str, Any]:
        try:
            return self.api.get(SECRETS, SECRET, namespace=self.namespace)
        except NotFound:
            return {}

    def _write(self, material: Material, *, over: Mapping[str, Any]) -> None:
        data = write_material(material)
        metadata: dict[str, Any] = {"name": SECRET, "namespace": self.namespace}
        said = over.get("metadata", {})
        version = str(said.get("resourceVersion", ""))
        metadata |= {"resourceVersion": version} if version else {}
        # the chart's labels are Helm's: an upgrade would be refused if we had taken them
        if (said.get("labels") or {}).get(MANAGED_BY, MANAGER) == MANAGER:
            metadata["labels"] = labels("operator")
        encoded = {name: base64.b64encode(value).decode() for name, value in data.items() if value}
        self.api.apply(SECRETS, {"metadata": metadata, "data": encoded})


def publish(
    api: Objects, bundle: bytes, *, namespaces: Iterable[str], webhook: str = ""
) -> tuple[str, ...]:
    """Publish the authority in the cluster; objects that have it already are not written.

    Returns the namespaces where publishing failed: they do not delay the others.

    Parameters
    ----------
    api
        The API server.
    bundle
        Certificates of the authorities, PEM.
    namespaces
        Where sidecars mount them.
    webhook
        Name of the webhook's configuration; empty leaves it alone, as where cert-manager keeps it.

    Raises
    ------
    ApiError
        If the webhook's authority cannot be published.
    """
    owner = _publish_webhook(api, bundle, webhook) if webhook else ()
    untold = []
    for namespace in sorted(set(namespaces)):
        try:
            _publish_map(api, bundle.decode("ascii"), namespace, owners=owner)
        except ApiError as error:
            log.warning("sidecars of namespace %s cannot know the authority: %s", namespace, error)
            untold.append(namespace)
    return tuple(untold)


def mounted(folder: Path) -> tuple[Pair, bytes] | None:
    """Return certificate and authorities from a mounted Secret; None while it is not there.

    For cert-manager: it keeps the Secret and the webhook's configuration, and the kubelet the
    folder.
    """
    try:
        found = [
            read_plain(folder / name, max_bytes=_MAX_FILE_BYTES)
            for name in ("tls.crt", "tls.key", "ca.crt")
        ]
    except (NotPlain, OSError):
        return None
    certificate, key, authorities = found
    if not certificate or not key or not authorities:
        return None
    return Pair(certificate=certificate, key=key), authorities


def _publish_webhook(api: Objects, bundle: bytes, name: str) -> tuple[dict[str, Any], ...]:
    """Publish the authority to the API server; return the owner of the other published objects."""
    try:
        found = api.get(MUTATING_WEBHOOKS, name)
    except NotFound:  # the chart makes it; without it, publish nothing
        return ()
    wanted = base64.b64encode(bundle).decode()
    hooks = found.get("webhooks") or []
    if any(hook.get("clientConfig", {}).get("caBundle") != wanted for hook in hooks):
        told = [{"name": hook["name"], "clientConfig": {"caBundle": wanted}} for hook in hooks]
        api.apply(MUTATING_WEBHOOKS, {"metadata": {"name": name}, "webhooks": told})
        log.info("mutatingwebhookconfiguration %s knows the authority", name)
    about = {"apiVersion": MUTATING_WEBHOOKS.api_version, "kind": MUTATING_WEBHOOKS.kind}
    return ({**about, "name": name, "uid": str(found["metadata"]["uid"])},)


def _publish_map(
    api: Objects, text: str, namespace: str, *, owners: tuple[dict[str, Any], ...]
) -> None:
    try:
        found = api.get(CONFIG_MAPS, AUTHORITY, namespace=namespace)
    except NotFound:
        found = {}
    metadata: dict[str, Any] = {"name": AUTHORITY, "namespace": namespace}
    metadata |= {"labels": labels("operator"), "ownerReferences": list(owners)}
    known = {each.get("uid") for each in found.get("metadata", {}).get("ownerReferences") or ()}
    if (found.get("data") or {}).get("ca.crt") == text and known >= {o["uid"] for o in owners}:
        return
    api.apply(CONFIG_MAPS, {"metadata": metadata, "data": {"ca.crt": text}})
    log.info("configmap %s/%s has the authority", namespace, AUTHORITY)


def _decoded(secret: Mapping[str, Any]) -> dict[str, bytes]:
    found = {}
    for name, value in (secret.get("data") or {}).items():
        try:
            found[str(name)] = base64.b64decode(str(value), validate=True)
        except (ValueError, binascii.Error):
            return {}
    return found

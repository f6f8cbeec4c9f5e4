"""Every replica serves the webhook; only who leads writes certificates."""

from __future__ import annotations

import errno
import os
import socket
import ssl
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from tests.expect import raises_naming
from tests.fakeapi.server import FakeApi
from tests.plane.control_plane import free_ports

from retuned.errors import TemporaryError
from retuned_operator.certificates import CertificateManager
from retuned_operator.kube.errors import NotFound
from retuned_operator.kube.resources import CONFIG_MAPS, MUTATING_WEBHOOKS
from retuned_operator.settings import Settings

NOW = datetime.now(UTC)
SERVICE = {"name": "retuned-webhook", "namespace": "default"}
HOOK: dict[str, Any] = {
    "name": "sidecar.retuned.dev",
    "clientConfig": {"service": SERVICE},
    "sideEffects": "None",
    "admissionReviewVersions": ["v1"],
}


@pytest.fixture
def fake() -> Iterator[FakeApi]:
    with FakeApi(namespaces=("default", "serving", "chat")) as started:
        body = {"metadata": {"name": "retuned-sidecar"}, "webhooks": [HOOK]}
        started.make(MUTATING_WEBHOOKS, body)
        yield started


def replica(
    fake: FakeApi, folder: Path, port: int, *, namespaces: Sequence[str] = ("serving",)
) -> CertificateManager:
    settings = Settings(
        state_dir=folder,
        address="127.0.0.1",
        webhook_port=port,
        pod_namespace="default",
        sidecar={"image": "i", "agentUrl": "https://retuned-agent.default.svc:8443"},
    )
    return CertificateManager(settings, fake.api(), namespaces=lambda: namespaces)


def free_port() -> int:
    (port,) = free_ports(1)
    return port


def names_at(fake: FakeApi, port: int) -> set[str]:
    """Return for whom somebody serves who believes the published authority."""
    published = fake.api().get(CONFIG_MAPS, "retuned-agent-ca", namespace="serving")
    context = ssl.create_default_context(cadata=published["data"]["ca.crt"])
    with (
        socket.create_connection(("127.0.0.1", port), timeout=150) as plain,
        context.wrap_socket(plain, server_hostname="retuned-webhook.default.svc") as connection,
    ):
        der = connection.getpeercert(binary_form=True)
    told = x509.load_der_x509_certificate(der or b"").extensions
    names = told.get_extension_for_class(x509.SubjectAlternativeName).value
    return set(names.get_values_for_type(x509.DNSName))


def test_a_replica_that_does_not_lead_serves_what_the_leader_keeps(
    fake: FakeApi, tmp_path: Path
) -> None:
    ports = free_port(), free_port()
    leader, other = (replica(fake, tmp_path / str(port), port) for port in ports)
    try:
        other.step(now=NOW, leading=False)  # nothing is kept yet
        leader.step(now=NOW, leading=True)
        other.step(now=NOW + timedelta(hours=1), leading=False)
        for port in ports:
            assert "retuned-webhook.default.svc" in names_at(fake, port)
        assert not (tmp_path / str(ports[1])).exists()
        # the fake server takes a list for one value, and so has forgotten the service
        fake.api().patch(MUTATING_WEBHOOKS, "retuned-sidecar", change={"webhooks": [HOOK]})
        other.step(now=NOW + timedelta(hours=2), leading=True)
        first, second = leader.files, other.files
        assert first is not None
        assert second is not None
        assert second[0].read_bytes() == first[0].read_bytes()
    finally:
        leader.stop()
        other.stop()


def test_a_namespace_that_gets_servers_has_the_authority_with_the_next_look(
    fake: FakeApi, tmp_path: Path
) -> None:
    names = ["serving"]
    keeper = replica(fake, tmp_path, free_port(), namespaces=names)
    try:
        keeper.step(now=NOW, leading=True)
        with pytest.raises(NotFound):
            fake.api().get(CONFIG_MAPS, "retuned-agent-ca", namespace="chat")
        names.append("chat")
        keeper.step(now=NOW + timedelta(seconds=1), leading=True)
        assert fake.api().get(CONFIG_MAPS, "retuned-agent-ca", namespace="chat")["data"]
    finally:
        keeper.stop()


def test_pods_get_sidecars_although_a_namespace_cannot_be_told(
    fake: FakeApi, tmp_path: Path
) -> None:
    names = ["serving", "gone"]  # there is no such namespace: what is about to end refuses, too
    keeper = replica(fake, tmp_path, free_port(), namespaces=names)
    try:
        assert not keeper.is_serving()
        keeper.step(now=NOW, leading=True)
        assert keeper.is_serving()
        names.append("chat")
        keeper.step(now=NOW + timedelta(seconds=1), leading=True)
        assert fake.api().get(CONFIG_MAPS, "retuned-agent-ca", namespace="chat")["data"]
    finally:
        keeper.stop()


def test_who_begins_to_lead_has_its_files_with_the_next_look(fake: FakeApi, tmp_path: Path) -> None:
    ports = free_port(), free_port()
    before, after = (replica(fake, tmp_path / str(port), port) for port in ports)
    try:
        before.step(now=NOW, leading=True)
        after.step(now=NOW, leading=False)
        assert after.files is None
        after.step(now=NOW + timedelta(seconds=1), leading=True)
        assert after.files is not None
    finally:
        before.stop()
        after.stop()


def test_a_disk_that_takes_no_certificate_is_a_matter_of_time(
    fake: FakeApi, tmp_path: Path
) -> None:
    keeper = replica(fake, tmp_path, free_port())
    (tmp_path / "tls").write_text("in the way")
    try:
        with raises_naming(TemporaryError, "certificate", os.strerror(errno.EEXIST)):
            keeper.step(now=NOW, leading=True)
        (tmp_path / "tls").unlink()
        keeper.step(now=NOW + timedelta(seconds=11), leading=True)
        assert keeper.files is not None
    finally:
        keeper.stop()

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from tests.expect import raises_naming
from tests.operators.test_manifests import SIDECAR, server_pod
from tests.operators.webhook.test_review import review

from retuned.errors import TemporaryError
from retuned_operator.webhook import app as door
from retuned_operator.webhook.app import PATH, application
from retuned_operator.webhook.certificates import Material, renewed
from retuned_operator.webhook.review import MAX_REVIEW_BYTES
from retuned_operator.webhook.server import WebhookServer

NOW = datetime.now(UTC)


@pytest.fixture
def counted() -> list[str]:
    return []


class Client:
    """The application without a socket."""

    def __init__(self, counted: list[str]) -> None:
        self._transport = httpx.ASGITransport(application(SIDECAR, count=counted.append))

    def ask(self, path: str, **more: Any) -> httpx.Response:
        async def ask() -> httpx.Response:
            async with httpx.AsyncClient(transport=self._transport, base_url="http://x") as client:
                return await client.request("POST" if more else "GET", path, **more)

        return asyncio.run(ask())


@pytest.fixture
def client(counted: list[str]) -> Client:
    return Client(counted)


def test_a_review_is_answered(client: Client, counted: list[str]) -> None:
    found = client.ask(PATH, json=review(server_pod()))
    assert found.status_code == 200
    assert found.json()["response"]["allowed"] is True
    assert counted == ["injected"]
    assert client.ask("/healthz").text == "ok"


def test_what_is_too_large_or_no_review_gets_no_answer_that_counts(
    client: Client, counted: list[str]
) -> None:
    assert client.ask(PATH, content=b"x" * (MAX_REVIEW_BYTES + 1)).status_code == 413
    assert client.ask(PATH, content=b"{}").status_code == 400
    assert counted == ["too-large", "no-review"]


def test_a_fault_of_ours_admits_the_pod(
    client: Client, counted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError("a bug")

    monkeypatch.setattr(door, "answer", fail)
    body = client.ask(PATH, json=review(server_pod())).json()
    assert body["response"]["allowed"] is True
    assert body["response"]["warnings"]
    assert counted == ["failed"]


@pytest.fixture
def material() -> Material:
    return renewed(None, ("localhost",), now=NOW)


@pytest.fixture
def server(material: Material) -> Iterator[WebhookServer]:
    made = WebhookServer(application(SIDECAR), host="127.0.0.1", port=0)
    made.serve_with(material.serving)
    made.start()
    yield made
    made.stop()
    assert not made.is_serving


def post(server: WebhookServer, authorities: bytes) -> Any:
    context = ssl.create_default_context(cadata=authorities.decode())
    with httpx.Client(verify=context, timeout=100) as client:
        found = client.post(f"https://localhost:{server.port}{PATH}", json=review(server_pod()))
    return found.json()


def test_whoever_knows_the_authority_is_answered(server: WebhookServer, material: Material) -> None:
    assert server.is_serving
    assert post(server, material.bundle())["response"]["allowed"] is True


def test_the_certificate_changes_while_it_serves(server: WebhookServer, material: Material) -> None:
    other = renewed(None, ("localhost",), now=NOW - timedelta(hours=1))
    with pytest.raises(httpx.ConnectError):
        post(server, other.bundle())
    server.serve_with(other.serving)
    assert post(server, other.bundle())["response"]["allowed"] is True


def test_a_pair_that_does_not_fit_leaves_what_is_served(
    server: WebhookServer, material: Material
) -> None:
    other = renewed(None, ("localhost",), now=NOW)
    mixed = type(material.serving)(certificate=other.serving.certificate, key=material.serving.key)
    with pytest.raises(ssl.SSLError):
        server.serve_with(mixed)
    assert post(server, material.bundle())["response"]["allowed"] is True


def test_a_connection_that_says_nothing_holds_nobody_up(
    server: WebhookServer, material: Material
) -> None:
    with socket.create_connection(("localhost", server.port)):
        assert post(server, material.bundle())["response"]["allowed"] is True


def test_no_answer_waits_for_its_head_to_be_acknowledged(
    server: WebhookServer, material: Material
) -> None:
    context = ssl.create_default_context(cadata=material.bundle().decode())
    with httpx.Client(
        verify=context, base_url=f"https://localhost:{server.port}", timeout=100.0
    ) as client:

        def took_s() -> float:
            began_s = time.perf_counter()
            assert client.get("/healthz").text == "ok"
            return time.perf_counter() - began_s

        for _ in range(20):  # a new connection's first answers are acknowledged at once
            took_s()
        quick = any(took_s() < 0.030 for _ in range(500))  # on a busy machine, some
    assert quick, "held back, each would take 40 ms and more"


def test_a_port_that_is_taken_is_an_error(server: WebhookServer) -> None:
    again = WebhookServer(application(SIDECAR), host="127.0.0.1", port=server.port)
    with raises_naming(TemporaryError, f"127.0.0.1:{server.port}"):
        again.start()

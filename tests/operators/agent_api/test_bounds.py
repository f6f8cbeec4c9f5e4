"""What strangers can cost: sizes, rates, waits, and forms are bounded; nothing keeps others out."""

from __future__ import annotations

import gc
import gzip
import json
import socket
import ssl
import threading
import time
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.operators.agent_api.agent_world import (
    OTHER,
    POD,
    TARGET,
    AgentWorld,
    an_order,
    artifact_files,
    token_of,
)

from retuned.api.agent import PodRef, ProfileReport
from retuned.contract import Digest
from retuned.errors import Refused, TemporaryError
from retuned.sidecar import operator_api
from retuned.stages.profile import Signature, SignatureStat, WorkloadProfile
from retuned_operator.agent_api import AgentSettings, PodRecord, Receipt, Reports, Said, app

LONG_S = 600.0
"""Longer than a test may take."""

FIRST: Digest = "sha256:" + "1" * 64


@pytest.fixture
def world(tmp_path: Path) -> Iterator[AgentWorld]:
    found = AgentWorld(tmp_path)
    yield found
    found.close()


def profile(id: str = "w", *, pod: PodRef = POD, signatures: int = 1) -> ProfileReport:
    stats = tuple(
        SignatureStat(
            signature=Signature(kernel=f"k{n}", dims=((16, 64),), dtypes=("bfloat16",)),
            launches=10,
            gpu_time_ns=1000,
            median_ns=100,
        )
        for n in range(signatures)
    )
    window = WorkloadProfile(window_start_ns=1, window_ns=10, observed_ns=10, stats=stats)
    return ProfileReport(pod=pod, target=TARGET, id=id, profile=window)


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let pods wait for longer than a test may take: who is answered before was woken."""
    for module in (operator_api, app):
        monkeypatch.setattr(module, "MAX_WAIT_S", LONG_S)


@pytest.fixture
def raw(world: AgentWorld) -> Iterator[httpx.Client]:
    context = ssl.create_default_context(cafile=str(world.authority.certificate))
    headers = {"authorization": f"Bearer {token_of(POD)}", "content-type": "application/json"}
    with httpx.Client(
        base_url=world.url, verify=context, headers=headers, trust_env=False, timeout=60.0
    ) as client:
        yield client


def code(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["code"]


def body(**changes: Any) -> bytes:
    return json.dumps(profile().model_dump(mode="json") | changes).encode()


def test_a_body_that_announces_too_much_is_refused_unread(
    world: AgentWorld, raw: httpx.Client
) -> None:
    assert code(raw.post("/v1/profiles", content=b" " * (5 << 20))) == (413, "body-too-large")
    assert world.inbox.taken == []


def test_a_body_that_does_not_announce_its_size_is_cut_at_the_bound(
    world: AgentWorld, raw: httpx.Client
) -> None:
    sent = 0

    def endless() -> Iterator[bytes]:
        nonlocal sent
        for _ in range(400):
            sent += 1 << 18
            yield b" " * (1 << 18)

    # it hung up while we were sending; what it had said may be lost with that
    with suppress(httpx.WriteError, httpx.RemoteProtocolError):
        assert code(raw.post("/v1/profiles", content=endless())) == (413, "body-too-large")
    assert world.inbox.taken == []
    assert sent < 400 << 18, "it was not read to its end"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no json",
        b"[]",
        b"[" * 5_000,
        b'{"pod": NaN}',
        body(extra=1),
        body(id=7),
        body(id="x" * 400),
        body(pod={"namespace": "serving", "name": "chat-0"}),
        json.dumps(profile().model_dump(mode="json")).encode()[:-3],
        body().replace(b'"launches": 10', b'"launches": "10"'),
        body().replace(b'"launches": 10', b'"launches": -1'),
        body().replace(b'"shape_confidence": 0.0', b'"shape_confidence": Infinity'),
        body().replace(b'"k0"', b'"\xff"'),
    ],
)
def test_what_is_not_exactly_a_profile_is_refused_with_its_place(
    world: AgentWorld, raw: httpx.Client, content: bytes
) -> None:
    assert code(raw.post("/v1/profiles", content=content)) == (422, "body-invalid")
    assert world.inbox.taken == []


def test_bodies_that_are_compressed_or_of_another_kind_are_refused(raw: httpx.Client) -> None:
    compressed = {"content-encoding": "gzip"}
    said = raw.post("/v1/profiles", content=gzip.compress(body()), headers=compressed)
    assert code(said) == (415, "body-encoded")
    said = raw.post("/v1/profiles", content=body(), headers={"content-type": "text/plain"})
    assert code(said) == (415, "not-json")


def test_an_outcome_under_the_name_of_another_order_is_refused(raw: httpx.Client) -> None:
    said = {
        "pod": POD.model_dump(),
        "target": TARGET,
        "order": "a",
        "proposal": "p",
        "definition": "gemm",
        "epoch": 1,
        "outcome": "done",
        "at": "2026-01-05T12:00:00Z",
    }
    assert raw.post("/v1/orders/a/done", content=json.dumps(said)).status_code == 200
    assert code(raw.post("/v1/orders/b/done", content=json.dumps(said))) == (422, "body-invalid")


@pytest.mark.parametrize("query", ["after=x", "after=-1", "wait=nan", "wait=inf", "after=1e400"])
def test_a_question_with_no_number_is_refused(raw: httpx.Client, query: str) -> None:
    assert code(raw.get(f"/v1/orders?{query}")) == (422, "query-invalid")


def test_a_pod_that_asks_too_often_is_told_when_to_ask_and_others_are_not(
    tmp_path: Path,
) -> None:
    world = AgentWorld(tmp_path, settings=AgentSettings(per_s=1.0, burst=3))
    try:
        client = world.client()
        for _ in range(3):
            client.orders(after=0, wait_s=0.0)
        with pytest.raises(TemporaryError) as told:
            client.orders(after=0, wait_s=0.0)
        assert told.value.code == "too-often"
        world.client(OTHER).orders(after=0, wait_s=0.0)
        world.clock.advance(1.0)
        client.orders(after=0, wait_s=0.0)
    finally:
        world.close()


def test_a_damaged_artifact_is_not_handed_out(world: AgentWorld, tmp_path: Path) -> None:
    world.order(an_order(FIRST))
    good = artifact_files(FIRST)
    for bad in (
        good | {"kernel.so": b"other"},
        artifact_files("sha256:" + "2" * 64),
        {"kernel.so": b"code"},
        {"artifact.json": b"[]"},
        good | {"../escape": b"x"},
    ):
        world.fleet.artifacts[FIRST] = bad
        with pytest.raises(TemporaryError) as refused:
            world.client().artifact(FIRST, folder=tmp_path)
        assert refused.value.code == "artifact-damaged"
        assert not list(tmp_path.glob("kernel*"))


def test_hundreds_that_wait_cost_no_thread_and_all_are_woken(tmp_path: Path) -> None:
    many = 200
    world = AgentWorld(tmp_path)
    try:
        pods = [PodRef(namespace="serving", name=f"pod-{n}", uid=f"p{n}") for n in range(many)]
        for pod in pods:
            world.fleet.pods[pod.name] = PodRecord(
                namespace=pod.namespace, name=pod.name, uid=pod.uid, target=TARGET
            )
        world.fleet.ordered = {pod.uid: (an_order(FIRST),) for pod in pods}
        clients = [world.client(pod) for pod in pods]
        known = clients[0].orders(after=0, wait_s=0.0).revision
        with ThreadPoolExecutor(many) as pool:
            waiting = [pool.submit(c.orders, after=known, wait_s=LONG_S) for c in clients]
            _until(lambda: world.hub.waiting >= many)
            threads = {t.name for t in threading.enumerate()}
            mine = [name for name in threads if name.startswith("ThreadPoolExecutor")]
            assert len(threads) - len(mine) < 40, "those who wait are not threads here"
            for pod in pods:
                world.fleet.ordered[pod.uid] = (an_order(None, epoch=2),)
            world.hub.changed(TARGET)
            found = [each.result(timeout=150.0) for each in waiting]
        assert all(each.orders == (an_order(None, epoch=2),) for each in found)
    finally:
        world.close()


def test_a_second_question_of_a_pod_ends_the_first(world: AgentWorld) -> None:
    client, again = world.client(), world.client()
    known = client.orders(after=0, wait_s=0.0).revision
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(client.orders, after=known, wait_s=LONG_S)
        _until(lambda: world.hub.waiting == 1)
        second = pool.submit(again.orders, after=known, wait_s=3.0)
        assert first.result(timeout=150.0).revision == known
        assert second.result(timeout=150.0).revision == known
    _until(lambda: world.hub.waiting == 0)


def test_a_pod_that_goes_while_it_waits_is_told_so(world: AgentWorld) -> None:
    client = world.client()
    known = client.orders(after=0, wait_s=0.0).revision
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.orders, after=known, wait_s=LONG_S)
        _until(lambda: world.hub.waiting == 1)
        world.fleet.pods["chat-0"] = replace(world.fleet.pods["chat-0"], uid="u-9")
        world.hub.changed(TARGET)
        with pytest.raises(Refused) as refused:
            waiting.result(timeout=150.0)
    assert refused.value.code == "pod-replaced"


def test_a_certificate_that_is_renewed_is_used_without_a_restart(world: AgentWorld) -> None:
    def serial() -> str:
        context = ssl.create_default_context(cafile=str(world.authority.certificate))
        with (
            socket.create_connection(("127.0.0.1", world.server.port)) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as connection,
        ):
            return str(connection.getpeercert()["serialNumber"])  # type: ignore[index]

    before = serial()
    certificate = world.pair.certificate.read_bytes()
    world.authority.server("agent", hosts=("127.0.0.1", "localhost"))
    renewed = world.pair.certificate.read_bytes()
    after = serial()
    assert after != before
    world.pair.certificate.write_bytes(certificate)  # one that does not fit the new key
    assert serial() == after
    world.pair.certificate.unlink()
    assert serial() == after
    world.pair.certificate.write_bytes(renewed)
    assert serial() == after


def test_ten_thousand_profiles_leave_nothing_behind_in_memory() -> None:
    class Counts:
        taken = 0

        def take(self, receipt: Receipt, said: Said) -> None:
            self.taken += 1

    from datetime import UTC, datetime

    archive = Counts()
    reports = Reports(archive)
    pods = [
        PodRecord(namespace="serving", name=f"pod-{n}", uid=f"p{n}", target=TARGET)
        for n in range(100)
    ]
    at = datetime(2026, 1, 5, tzinfo=UTC)
    said = profile(signatures=200)
    text = said.model_dump_json()

    def tell(times: int) -> None:
        for number in range(times):
            reports.take(
                Receipt(pod=pods[number % 100], at=at), ProfileReport.model_validate_json(text)
            )

    tell(200)
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    tell(500)
    gc.collect()
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    for number in range(10_000 - 700):
        reports.take(Receipt(pod=pods[number % 100], at=at), said)
    assert archive.taken == 10_000
    assert grown < 1 << 20, f"{grown} bytes"


def _until(true: Any, within_s: float = 150.0) -> None:
    deadline = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < deadline, "in time"
        time.sleep(0.01)

"""One suite over both operators: the agent API over TLS and the fake mean the same to a sidecar."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

import pytest
from tests.operators.agent_api.agent_world import (
    OTHER,
    POD,
    TARGET,
    AgentWorld,
    an_order,
    artifact_files,
)

from retuned.api.agent import (
    VERSION,
    AgentMessage,
    DriftPost,
    Hello,
    OrderDone,
    Outcome,
    PodRef,
    ProcessEnvironment,
    ProfileReport,
    SlotWatch,
    TunableClass,
    TunablePost,
    WatchPost,
)
from retuned.contract import Digest
from retuned.errors import Refused, TemporaryError
from retuned.ports import Operator
from retuned.sidecar import operator_api
from retuned.sidecar.operator_fake import FakeOperator
from retuned.stages.drift import DriftAction, DriftReport
from retuned.stages.profile import Signature, SignatureStat, WorkloadProfile
from retuned.stages.swap import SwapOrder
from retuned_operator.agent_api import app

LONG_S = 600.0
"""Longer than a test may take."""

FIRST: Digest = "sha256:" + "1" * 64
SECOND: Digest = "sha256:" + "2" * 64
AT = datetime(2026, 1, 5, 12, tzinfo=UTC)


class Side(Protocol):
    """The operator's side, moved by the test."""

    @property
    def operator(self) -> Operator: ...

    def order(self, *orders: SwapOrder) -> None: ...

    def keep(self, digest: Digest, files: Mapping[str, bytes]) -> None: ...

    def said(self) -> list[AgentMessage]: ...

    def fill(self, full: bool) -> None: ...

    def leave(self) -> None: ...


class FakeSide:
    def __init__(self) -> None:
        self.operator = FakeOperator(POD, target=TARGET)

    def order(self, *orders: SwapOrder) -> None:
        self.operator.order(*orders)

    def keep(self, digest: Digest, files: Mapping[str, bytes]) -> None:
        self.operator.artifacts[digest] = files

    def said(self) -> list[AgentMessage]:
        return self.operator.said

    def fill(self, full: bool) -> None:
        self.operator.full = full

    def leave(self) -> None:
        self.operator.away = True


class RealSide:
    def __init__(self, world: AgentWorld) -> None:
        self.world = world
        self.operator = world.client()

    def order(self, *orders: SwapOrder) -> None:
        self.world.order(*orders)

    def keep(self, digest: Digest, files: Mapping[str, bytes]) -> None:
        self.world.fleet.artifacts[digest] = files

    def said(self) -> list[AgentMessage]:
        return [said for _, said in self.world.inbox.taken]

    def fill(self, full: bool) -> None:
        self.world.inbox.full = full

    def leave(self) -> None:
        self.world.server.stop()


@pytest.fixture(params=["fake", "api"])
def side(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Side]:
    for module in (operator_api, app):
        monkeypatch.setattr(module, "MAX_WAIT_S", LONG_S)
    if request.param == "fake":
        yield FakeSide()
        return
    world = AgentWorld(tmp_path)
    yield RealSide(world)
    world.close()


def hello(pod: PodRef = POD, target: str = TARGET) -> Hello:
    return Hello(pod=pod, target=target, version=VERSION, release="1.0", at=AT)


def profile(id: str = "w1", pod: PodRef = POD) -> ProfileReport:
    stat = SignatureStat(
        signature=Signature(kernel="gemm", dims=((16, 64),), dtypes=("bfloat16",)),
        launches=10,
        gpu_time_ns=1000,
        median_ns=100,
    )
    window = WorkloadProfile(window_start_ns=1, window_ns=10, observed_ns=10, stats=(stat,))
    return ProfileReport(pod=pod, target=TARGET, id=id, profile=window)


def drift() -> DriftPost:
    report = DriftReport(
        detected=True,
        action=DriftAction.RETUNE,
        reasons=(),
        distance=0.5,
        window_start_ns=1,
        sentence="traffic changed",
    )
    return DriftPost(pod=POD, target=TARGET, id="w1", report=report)


def tunable() -> TunablePost:
    axes = {"tokens": 512}
    return TunablePost(
        pod=POD,
        target=TARGET,
        name="tunable:moe:fused_moe_kernel:0123abcd",
        family="moe",
        kernel="fused_moe_kernel",
        module="m",
        source=FIRST,
        facts=ProcessEnvironment(process="1"),
        observed_s=300.0,
        busy_us=1e6,
        used=(TunableClass(axes=axes, launches=9.5, time_us=1e3, how="nearest"),),
        text='{"environment":{},"recipes":[],"report":{}}',
    )


def done(order: SwapOrder) -> OrderDone:
    return OrderDone(
        pod=POD,
        target=TARGET,
        order=order.id,
        proposal=order.proposal,
        definition=order.definition,
        epoch=order.epoch,
        outcome=Outcome.DONE,
        at=AT,
        took_ns=1000,
    )


def test_what_a_sidecar_says_arrives_as_it_was_said(side: Side) -> None:
    slot = SlotWatch(definition="gemm", active=FIRST, epoch=3, newest_epoch=3)
    watch = WatchPost(pod=POD, target=TARGET, at=AT, slots=(slot,))
    order = an_order(FIRST)
    assert side.operator.hello(hello()).version == VERSION
    for report in (profile(), drift(), watch, tunable()):
        side.operator.post(report)
    side.operator.done(done(order))
    assert side.said() == [hello(), profile(), drift(), watch, tunable(), done(order)]


def test_an_operator_that_has_not_heard_who_speaks_says_so_until_it_has(side: Side) -> None:
    watch = WatchPost(pod=POD, target=TARGET, at=AT, slots=())
    assert side.operator.post(watch).unheard
    side.operator.hello(hello())
    assert not side.operator.post(watch).unheard


def test_a_record_about_another_pod_or_target_is_refused(side: Side) -> None:
    with pytest.raises(Refused) as refused:
        side.operator.hello(hello(OTHER))
    assert refused.value.code == "not-your-pod"
    with pytest.raises(Refused) as refused:
        side.operator.post(profile(pod=PodRef(namespace="serving", name="chat-0", uid="older")))
    assert refused.value.code == "not-your-pod"
    with pytest.raises(Refused) as refused:
        side.operator.hello(hello(target="serving/other"))
    assert refused.value.code == "not-your-target"
    assert side.said() == []


def test_orders_that_are_not_known_are_answered_at_once(side: Side) -> None:
    side.order(an_order(FIRST))
    found = side.operator.orders(after=0, wait_s=LONG_S)
    assert found.orders == (an_order(FIRST),)


def test_known_orders_are_waited_with_and_a_change_ends_the_wait(side: Side) -> None:
    side.order(an_order(FIRST))
    known = side.operator.orders(after=0, wait_s=0.0).revision
    assert side.operator.orders(after=known, wait_s=0.05).revision == known
    later = threading.Timer(0.3, lambda: side.order(an_order(SECOND, epoch=2)))
    later.start()
    found = side.operator.orders(after=known, wait_s=LONG_S)
    later.join()
    assert found.orders == (an_order(SECOND, epoch=2),)


def test_the_same_orders_have_the_same_revision_after_others(side: Side) -> None:
    side.order(an_order(FIRST))
    before = side.operator.orders(after=0, wait_s=0.0).revision
    side.order()
    between = side.operator.orders(after=before, wait_s=0.0).revision
    side.order(an_order(FIRST))
    assert between != before
    assert side.operator.orders(after=between, wait_s=5.0).revision == before


def test_an_artifact_that_an_order_names_comes_with_all_its_files(
    side: Side, tmp_path: Path
) -> None:
    files = artifact_files(FIRST, binary=b"x" * 1_000_000) | {"artifact.sig": b"signed"}
    side.keep(FIRST, files)
    side.order(an_order(FIRST))
    folder = tmp_path / "got"
    folder.mkdir()
    side.operator.artifact(FIRST, folder=folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == files


def test_an_artifact_that_no_order_of_the_pod_names_is_not_handed_out(
    side: Side, tmp_path: Path
) -> None:
    side.keep(SECOND, artifact_files(SECOND))
    side.order(an_order(FIRST))
    for digest in (FIRST, SECOND):  # not in the store; not this pod's
        with pytest.raises(Refused) as refused:
            side.operator.artifact(digest, folder=tmp_path)
        assert refused.value.code == "artifact-unknown"


def test_an_artifact_beyond_the_bound_is_refused(side: Side, tmp_path: Path) -> None:
    side.keep(FIRST, artifact_files(FIRST, binary=b"\0" * (17 << 20)))
    side.order(an_order(FIRST))
    with pytest.raises(Refused) as refused:
        side.operator.artifact(FIRST, folder=tmp_path)
    assert refused.value.code == "artifact-too-large"


def test_what_cannot_be_kept_now_is_told_again_later(side: Side) -> None:
    side.fill(True)
    with pytest.raises(TemporaryError):
        side.operator.post(profile())
    side.fill(False)
    side.operator.post(profile())
    assert side.said() == [profile()]


def test_an_operator_that_is_away_is_a_temporary_error(side: Side, tmp_path: Path) -> None:
    side.leave()
    with pytest.raises(TemporaryError):
        side.operator.hello(hello())
    with pytest.raises(TemporaryError):
        side.operator.orders(after=0, wait_s=0.0)
    with pytest.raises(TemporaryError):
        side.operator.artifact(FIRST, folder=tmp_path)


def test_a_span_is_told_with_what_was_found_in_it_and_with_orders_to_who_asks(
    tmp_path: Path,
) -> None:
    world = AgentWorld(tmp_path)
    span, order = f"00-{'ab' * 16}-{'cd' * 8}-01", an_order(FIRST)
    try:
        client = world.client()
        client.post(drift(), traceparent=span)
        client.post(profile(), traceparent="no span at all")
        client.done(done(order), traceparent=span)
        told = [receipt.traceparent for receipt, _ in world.inbox.taken]
        assert told == [span, "", span], "what is none is left aside"
        world.order(order)
        plain = client.orders(after=0, wait_s=0.0)
        assert plain.traces == {}
        world.spans[order.id] = span
        traced = client.orders(after=0, wait_s=0.0)
        assert traced.traces == {order.id: span}
        assert traced.revision == plain.revision, "a span is no news"
        path = client._url + "/v1/orders"  # as a sidecar of an earlier release asks
        headers = {"authorization": f"Bearer {client._token()}"}
        older = client._connected().get(path, headers=headers).json()
        assert set(older) == {"revision", "orders"}, "it would refuse what it does not know"
    finally:
        world.close()

"""Swaps to prove, and what pods report of them, over HTTPS."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.expect import raises_code
from tests.operators.agent_api.agent_world import OTHER, POD, TARGET, AgentWorld, an_order
from tests.operators.agent_api.test_bounds import code, raw

from retuned.api.agent import AlarmOrder, OverheadOrder, PodProof, ProofOrder, ProofPost
from retuned.errors import Refused
from retuned.stages.gate import LiveProof, LiveProofMode
from retuned.stages.watch.proof import (
    Arm,
    ArmSums,
    KernelTime,
    PairKind,
    PairResult,
    Phase,
    ProofClaim,
    ProofReason,
    Verdict,
)

__all__ = ["raw"]  # a fixture

ORDER = an_order("sha256:" + "1" * 64, epoch=2)
ASKED = ProofOrder(
    order=ORDER.id,
    proposal=ORDER.proposal,
    definition=ORDER.definition,
    epoch=ORDER.epoch,
    rule=LiveProof(mode=LiveProofMode.REQUIRED),
)
PAIR = PairResult(
    number=0, kind=PairKind.SHORT, first=Arm.ON, d=0.1, scale=0.1, on=ArmSums(), off=ArmSums()
)
KERNEL = KernelTime(lengths=(512,), launches=8.0, off_s=2.4e-3, on_s=1.2e-3)
CLAIM = ProofClaim(
    verdict=Verdict.HELPS, reason=ProofReason.FASTER, pairs=(PAIR,), kernels=(KERNEL,)
)
PROOF = PodProof(
    order=ORDER.id,
    proposal=ORDER.proposal,
    definition=ORDER.definition,
    epoch=ORDER.epoch,
    phase=Phase.DONE,
    pairs=1,
    claim=CLAIM,
)
POST = ProofPost(pod=POD, target=TARGET, proofs=(PROOF,))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[AgentWorld]:
    found = AgentWorld(tmp_path)
    yield found
    found.close()


def test_a_pod_learns_what_it_is_to_prove_with_its_orders(world: AgentWorld) -> None:
    world.order(ORDER)
    client = world.client()
    before = client.orders(after=0, wait_s=0.0)
    assert before.proofs == ()
    world.fleet.proven[POD.uid] = (ASKED,)
    after = client.orders(after=before.revision, wait_s=0.0)
    assert (after.orders, after.proofs) == (before.orders, (ASKED,))
    assert after.revision != before.revision, "who waits for orders is woken"
    assert world.client(OTHER).orders(after=0, wait_s=0.0).proofs == ()


def test_a_sidecar_of_an_older_release_is_not_asked(world: AgentWorld, raw: httpx.Client) -> None:
    world.order(ORDER)
    plain = raw.get("/v1/orders?after=0&wait=0&traces=1").json()
    world.fleet.proven[POD.uid] = (ASKED,)
    assert raw.get("/v1/orders?after=0&wait=0&traces=1").json() == plain
    assert "proofs" not in plain


def test_a_pod_learns_what_to_do_about_retuneds_cost(world: AgentWorld, raw: httpx.Client) -> None:
    world.order(ORDER)
    client = world.client()
    before = client.orders(after=0, wait_s=0.0)
    assert before.overhead is None
    asked = OverheadOrder(measure=True, shares={"sha256:" + "a" * 64: 0.25})
    world.fleet.measured[POD.uid] = asked
    after = client.orders(after=before.revision, wait_s=0.0)
    assert after.overhead == asked
    assert after.revision != before.revision, "who waits for orders is woken"
    assert "overhead" not in raw.get("/v1/orders?after=0&wait=0&proofs=1").json()


def test_a_pod_learns_what_an_alarm_may_try_off(world: AgentWorld, raw: httpx.Client) -> None:
    world.order(ORDER)
    client = world.client()
    before = client.orders(after=0, wait_s=0.0)
    assert before.alarms == ()
    may = AlarmOrder(order=ORDER.id, name="swp-a", rule=ASKED.rule)
    world.fleet.tried[POD.uid] = (may,)
    after = client.orders(after=before.revision, wait_s=0.0)
    assert after.alarms == (may,)
    assert after.revision != before.revision, "who waits for orders is woken"
    assert "alarms" not in raw.get("/v1/orders?after=0&wait=0&proofs=1").json()


def test_a_report_is_taken_as_it_was_sent(world: AgentWorld) -> None:
    world.client().post(POST)
    ((receipt, said),) = world.inbox.taken
    assert (receipt.pod.uid, said) == (POD.uid, POST)
    with raises_code(Refused, "not-your-pod"):
        world.client().post(POST.model_copy(update={"pod": OTHER}))


def changed(path: str, value: Any) -> bytes:
    """Return the report with one field replaced, by its path."""
    body = json.loads(POST.model_dump_json())
    place, *keys = body, *path.split(".")
    for key in keys[:-1]:
        place = place[int(key) if key.isdigit() else key]
    place[keys[-1]] = value
    return json.dumps(body).encode()


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("extra", 1),
        ("unavailable", "Not A Code"),
        ("temporary", "yes"),
        ("proofs", [json.loads(PROOF.model_dump_json())] * 17),
        ("proofs.0.extra", 1),
        ("proofs.0.epoch", 0),
        ("proofs.0.phase", "won"),
        ("proofs.0.pairs", -1),
        ("proofs.0.claim.verdict", "wins"),
        ("proofs.0.claim.reason", "because"),
        ("proofs.0.claim.pilot_huge", -1),
        ("proofs.0.claim.seconds", -1.0),
        ("proofs.0.claim.seconds", 1e12),
        ("proofs.0.claim.pairs.0.kind", "other"),
        ("proofs.0.claim.pairs.0.number", -1),
        ("proofs.0.claim.pairs.0.d", float("nan")),
        ("proofs.0.claim.pairs.0.d", "0.1"),
        ("proofs.0.claim.pairs.0.on", {"steps": 1, "extra": 1}),
        ("proofs.0.claim.pairs", [json.loads(PAIR.model_dump_json())] * 4097),
        ("proofs.0.claim.kernels", [{"lengths": [n], "launches": 1.0} for n in range(17)]),
        ("proofs.0.claim.kernels", [{"lengths": [1], "launches": 1.0}] * 2),
        ("proofs.0.claim.kernels.0.extra", 1),
        ("proofs.0.claim.kernels.0.lengths", [1] * 17),
        ("proofs.0.claim.kernels.0.lengths", [-1]),
        ("proofs.0.claim.kernels.0.lengths", [1 << 54]),
        ("proofs.0.claim.kernels.0.lengths", ["512"]),
        ("proofs.0.claim.kernels.0.lengths", [1.5]),
        ("proofs.0.claim.kernels.0.lengths", None),
        ("proofs.0.claim.kernels.0.launches", -1.0),
        ("proofs.0.claim.kernels.0.launches", 1e16),
        ("proofs.0.claim.kernels.0.off_s", float("nan")),
        ("proofs.0.claim.kernels.0.off_s", float("inf")),
        ("proofs.0.claim.kernels.0.off_s", 0.0),
        ("proofs.0.claim.kernels.0.on_s", -1e-3),
        ("proofs.0.claim.kernels.0.on_s", 3601.0),
    ],
)
def test_what_is_not_exactly_a_report_of_proofs_is_refused(
    world: AgentWorld, raw: httpx.Client, path: str, value: Any
) -> None:
    assert code(raw.post("/v1/proofs", content=changed(path, value))) == (422, "body-invalid")
    assert world.inbox.taken == []


def test_a_sidecar_of_an_older_release_reports_no_kernels_and_is_not_refused(
    world: AgentWorld, raw: httpx.Client
) -> None:
    body = json.loads(changed("proofs.0.claim.seconds", 9.0))
    del body["proofs"][0]["claim"]["kernels"]
    assert raw.post("/v1/proofs", content=json.dumps(body).encode()).status_code == 200
    ((_, said),) = world.inbox.taken
    assert isinstance(said, ProofPost)
    claim = said.proofs[0].claim
    assert claim is not None
    assert claim.kernels == ()


def test_a_report_that_is_too_large_is_refused(world: AgentWorld, raw: httpx.Client) -> None:
    assert code(raw.post("/v1/proofs", content=b" " * (5 << 20))) == (413, "body-too-large")
    assert world.inbox.taken == []

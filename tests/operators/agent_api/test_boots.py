"""Boots that canary replicas are asked for, and what they report of them, over HTTPS."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.operators.agent_api.agent_world import OTHER, POD, TARGET, AgentWorld, an_order
from tests.operators.agent_api.test_bounds import code, raw
from tests.stages.watch_proof.test_replicas import boot

from retuned.api.agent import BootOrder, BootPhase, PodBoot, ProofPost, wire_json
from retuned.stages.watch.proof import Arm
from retuned.stages.watch.proof.normaliser import FitRows
from retuned_operator.agent_api.requests import MAX_BYTES

__all__ = ["raw"]  # a fixture

ORDER = an_order("sha256:" + "1" * 64, epoch=2)
ASKED = BootOrder(
    proposal=ORDER.proposal,
    definition=ORDER.definition,
    replica=POD.name,
    arm=Arm.ON,
    order=ORDER.id,
    leave_out_s=600.0,
    window_s=600.0,
)
WINDOW = boot(POD.name, 1, Arm.ON)
BOOT = PodBoot(
    proposal=ORDER.proposal,
    definition=ORDER.definition,
    replica=POD.name,
    phase=BootPhase.DONE,
    window=WINDOW,
)
POST = ProofPost(pod=POD, target=TARGET, boot=BOOT)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[AgentWorld]:
    found = AgentWorld(tmp_path)
    found.fleet.pods[POD.name] = replace(found.fleet.pods[POD.name], replica=True)
    found.order(ORDER)
    yield found
    found.close()


def test_a_replica_learns_what_it_is_to_measure_with_its_orders(world: AgentWorld) -> None:
    client = world.client()
    before = client.orders(after=0, wait_s=0.0)
    assert before.boot is None
    world.fleet.boots = {POD.uid: ASKED, OTHER.uid: ASKED}
    after = client.orders(after=before.revision, wait_s=0.0)
    assert (after.orders, after.boot) == (before.orders, ASKED)
    assert after.revision != before.revision, "who waits for orders is woken"
    assert world.client(OTHER).orders(after=0, wait_s=0.0).boot is None, "it is no replica"


def test_a_sidecar_of_an_older_release_is_not_asked(world: AgentWorld, raw: httpx.Client) -> None:
    plain = raw.get("/v1/orders?after=0&wait=0&traces=1&proofs=1").json()
    world.fleet.boots = {POD.uid: ASKED}
    assert raw.get("/v1/orders?after=0&wait=0&traces=1&proofs=1").json() == plain
    assert "boot" not in plain


def test_a_report_is_taken_as_it_was_sent(world: AgentWorld) -> None:
    world.client().post(POST)
    ((receipt, said),) = world.inbox.taken
    assert (receipt.pod.uid, receipt.pod.replica, said) == (POD.uid, True, POST)


def changed(path: str, value: Any) -> bytes:
    """Return the report with one field replaced, by its path."""
    body = json.loads(wire_json(POST))
    place, *keys = body, *path.split(".")
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    return json.dumps(body).encode()


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("boot.extra", 1),
        ("boot.phase", "won"),
        ("boot.reason", "Not A Code"),
        ("boot.replica", ""),
        ("boot.window.arm", "both"),
        ("boot.window.boot", ""),
        ("boot.window.environment", "here"),
        ("boot.window.began_s", -1.0),
        ("boot.window.began_s", float("nan")),
        ("boot.window.sums.steps", "many"),
        ("boot.window.rows.rows", [[1.0]]),
    ],
)
def test_what_no_sidecar_reports_is_refused(raw: httpx.Client, path: str, value: Any) -> None:
    answer = raw.post("/v1/proofs", content=changed(path, value))
    assert code(answer) == (422, "body-invalid")


def test_the_largest_report_fits_into_a_request() -> None:
    row = (123456.789,) * 5
    rows = FitRows(rows=(row,) * 128)
    sums = WINDOW.sums.model_copy(update={"graphs": tuple((n, 10**9) for n in range(512))})
    large = WINDOW.model_copy(update={"rows": rows, "sums": sums})
    whole = POST.model_copy(update={"boot": BOOT.model_copy(update={"window": large})})
    assert len(wire_json(whole)) < MAX_BYTES[ProofPost] / 10

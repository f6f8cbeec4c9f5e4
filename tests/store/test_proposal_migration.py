"""A state folder of version 3 goes on under the one state machine, and nothing it runs changes."""

from __future__ import annotations

import json
import sqlite3
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.expect import raises_code
from tests.standalone.local_world import KERNEL, WINNER, World
from tests.standalone.test_steering import BUSY, active, phase, propose

from retuned.contract import Guard, digest_of
from retuned.errors import UnreadableInput
from retuned.stages.proposal import Proposal
from retuned.stages.swap import SwapKind, SwapOrder, order_rollback, order_swap
from retuned.standalone.context import RecordKind
from retuned.standalone.facts import quarantined
from retuned.store import migrations
from retuned.store.sqlite import SqliteStore

AT = datetime(2026, 1, 5, 11, 0, tzinfo=UTC)
OLD = digest_of("what ran before")


class Version3:
    """A database as the last release wrote it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.db = sqlite3.connect(folder / "state.sqlite3", isolation_level=None)
        migrations.migrate(self.db, where=folder, migrations=migrations.MIGRATIONS[:3])

    def add(self, kind: str, id: str, body: dict[str, Any], phase: str) -> None:
        at = AT.isoformat()
        self.db.execute(
            "INSERT INTO records (kind, id, phase, body, created_at, updated_at, proposal)"
            " VALUES (?, ?, ?, ?, ?, ?, ?)",
            (kind, id, phase, json.dumps(body), at, at, body.get("proposal")),
        )

    def order(self, order: SwapOrder, phase: str) -> None:
        self.add("order", order.id, order.model_dump(mode="json"), phase)


def a_proposal(world: World) -> Proposal:
    """Return a proposal with evidence in a world's store."""
    id = propose(world, WINNER)
    stored = world.store.get(RecordKind.PROPOSAL, id)
    assert stored is not None
    return Proposal.model_validate(stored.body)


def as_version_3(
    world: World, proposal: Proposal, phase: str, *orders: tuple[SwapOrder, str]
) -> None:
    """Start the world on a state folder of version 3 with one proposal in a phase."""
    found = world.store.list(RecordKind.FINDING)
    world.store.close()
    for part in world.folder.glob("state/state.sqlite3*"):
        part.unlink()
    old = Version3(world.folder / "state")
    old.add("proposal", proposal.id, proposal.model_dump(mode="json"), phase)
    for each in found:
        old.add("finding", each.id, dict(each.body), each.phase)
    for order, order_phase in orders:
        old.order(order, order_phase)
    old.db.close()
    world.start()


@pytest.fixture
def swapped(world: World) -> tuple[World, Proposal, SwapOrder]:
    """A world whose server runs the winner under epoch 4."""
    proposal = a_proposal(world)
    order = order_swap(proposal, epoch=4)
    folder = world.loop.ctx.bench.build(WINNER)
    world.server.prepare(order, artifact_dir=folder)
    world.server.commit(order)
    world.server.counts[KERNEL] = dict(BUSY)
    return world, proposal, order


@pytest.fixture
def world(tmp_path: Path) -> Any:
    made = World(tmp_path)
    yield made
    made.store.close()


@pytest.mark.parametrize(
    ("before", "after"),
    [("watching", "Analyzing"), ("promoted", "Promoted"), ("superseded", "Promoted")],
)
def test_what_runs_keeps_running_and_is_watched(
    swapped: tuple[World, Proposal, SwapOrder], before: str, after: str
) -> None:
    world, proposal, order = swapped
    as_version_3(world, proposal, before, (order, "done"))
    assert phase(world, proposal.id) == after
    world.loop.steer()
    assert world.server.flips == [order.id], "the server was told nothing"
    assert active(world) == WINNER.digest
    (event,) = [e for e in world.store.events(id=proposal.id) if e.what == "migrated"]
    assert event.detail == {"from": before, "to": after}
    world.server.counts[KERNEL] = {**BUSY, "shadow_mismatches": 1, "worst_ratio": 3.0}
    world.clock.advance(2.0)
    world.loop.steer()
    assert (active(world), phase(world, proposal.id)) == (None, "RolledBack")


def test_a_rollback_that_was_due_is_done(swapped: tuple[World, Proposal, SwapOrder]) -> None:
    world, proposal, order = swapped
    back = order_rollback(order, epoch=5)
    as_version_3(world, proposal, "rolling-back", (order, "done"), (back, "new"))
    world.loop.steer()
    assert (active(world), phase(world, proposal.id)) == (None, "RolledBack")


def test_an_order_that_a_process_may_have_is_not_forgotten(
    swapped: tuple[World, Proposal, SwapOrder],
) -> None:
    world, proposal, order = swapped
    as_version_3(world, proposal, "swapping", (order, "prepared"))
    world.loop.steer()
    assert world.server.flips == [order.id]
    assert world.phases(RecordKind.ORDER) == ["done"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("awaiting", "AwaitingApproval"),
        ("approved", "Scheduled"),
        ("rejected", "Rejected"),
        ("refused", "Invalid"),
        ("expired", "Expired"),
        ("superseded", "Superseded"),
    ],
)
def test_what_was_never_swapped_keeps_its_place(world: World, before: str, after: str) -> None:
    proposal = a_proposal(world)
    as_version_3(world, proposal, before)
    assert phase(world, proposal.id) == after
    assert world.store.get(RecordKind.STATUS, proposal.id) is not None
    world.loop.steer()
    assert world.server.flips == []


def test_quarantines_and_old_orders_are_carried_over(tmp_path: Path) -> None:
    until = AT + timedelta(days=7)
    old = Version3(tmp_path / "state")
    body = {"until": until.isoformat(), "reason": "shadow-mismatch"}
    old.add("quarantine", WINNER.digest, body, "current")
    first = SwapOrder(
        id="o1",
        kind=SwapKind.SWAP,
        proposal="p1",
        target="demo",
        definition=KERNEL,
        artifact=OLD,
        previous=None,
        guard=Guard(),
        epoch=1,
    )
    phases = ("past", "done", "done", "withdrawn")
    for number, order_phase in enumerate(phases, start=1):
        order = first.model_copy(update={"id": f"o{number}", "epoch": number})
        old.order(order, order_phase)
    old.db.close()
    world = World(tmp_path)
    assert quarantined(world.loop.ctx) == {WINNER.digest}
    found = {o.id: o.phase for o in world.store.list(RecordKind.ORDER)}
    assert found == {"o1": "superseded", "o2": "superseded", "o3": "done", "o4": "superseded"}
    kept = {o.id: o.phase for o in world.store.list("v3-order")}
    assert tuple(kept.values()) == phases, "the old rows stay for one release"
    world.store.close()


def test_a_migrated_state_refuses_an_older_retuned(tmp_path: Path) -> None:
    SqliteStore(tmp_path).close()
    db = sqlite3.connect(tmp_path / "state.sqlite3", isolation_level=None)
    with raises_code(UnreadableInput, "state-too-new", "version 4"):
        migrations.migrate(db, where=tmp_path, migrations=migrations.MIGRATIONS[:3])
    db.close()

"""Years of history cost a step nothing: what is open is read, what is over is not."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.standalone.local_world import World
from tests.standalone.test_proposing import win

from retuned.contract import digest_of
from retuned.node.order_store import fresh_epoch, latest
from retuned.ports import Stored
from retuned.stages.proposal import Proposal
from retuned.stages.swap import order_swap
from retuned.standalone import proposals
from retuned.standalone.context import RecordKind
from retuned.standalone.daemon import Loop
from retuned.store.sqlite import SqliteStore

ENDED = 20_000
MOST_MS = 50.0
MOST_ROWS = 200


class Counting(SqliteStore):
    """Counts the rows whose bodies are read."""

    rows: Counter[str]

    def list(self, kind: str, **narrowed: Any) -> Sequence[Stored]:
        found = super().list(kind, **narrowed)
        self.rows[kind] += len(found)
        return found

    def get(self, kind: str, id: str) -> Stored | None:
        self.rows[kind] += 1
        return super().get(kind, id)


def past(world: World, proposal: Mapping[str, Any]) -> None:
    """Write proposals that ended, with the decision and the order of each."""
    model = Proposal.model_validate(proposal)
    swap = order_swap(model, epoch=1).model_dump(mode="json")
    with world.store.transaction():
        for number in range(ENDED):
            id = digest_of(["ended", number])
            world.store.add(RecordKind.PROPOSAL, id, {**proposal, "id": id}, phase="Superseded")
            body = swap | {"id": f"o{number}", "proposal": id, "epoch": number + 1}
            phase = "superseded" if number < ENDED - 1 else "done"
            world.store.add(RecordKind.ORDER, f"o{number}", body, phase=phase)
            world.store.add(RecordKind.DECISION, f"d{number}", {"proposal": id}, phase="given")


@pytest.fixture
def counting(world: World) -> Iterator[Counting]:
    win(world.loop.ctx)
    proposals.propose(world.loop.ctx)
    (stored,) = world.store.list(RecordKind.PROPOSAL)
    past(world, stored.body)
    store = Counting(Path(world.store.path).parent, clock=world.clock)
    store.rows = Counter()
    yield store
    store.close()


def test_with_20_000_ended_proposals_a_step_reads_few_rows_and_is_quick(
    world: World, counting: Counting
) -> None:
    ctx = replace(world.loop.ctx, store=counting)
    loop = Loop(ctx)
    loop.steer()
    took_ms = []
    for _ in range(9):
        counting.rows.clear()
        began = time.thread_time()
        loop.steer()
        proposals.propose(ctx)
        took_ms.append((time.thread_time() - began) * 1e3)  # its own: others use the machine, too
    assert counting.rows.total() <= MOST_ROWS, counting.rows
    assert min(took_ms) < MOST_MS, took_ms
    assert len(counting.ids(RecordKind.ORDER)) == ENDED  # nothing is lost
    assert [kept.order.epoch for kept in latest(counting).values()] == [ENDED]
    assert fresh_epoch(loop.reconciler.node) == ENDED + 1

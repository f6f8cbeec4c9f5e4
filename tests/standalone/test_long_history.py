"""Years of history cost a step nothing: what is open is read, what is over is not."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.standalone.local_world import KERNEL, World
from tests.standalone.test_proposing import win

from retuned.contract import Guard, digest_of
from retuned.ports import Stored
from retuned.stages.proposal import Proposal
from retuned.stages.swap import SwapKind, SwapOrder, order_swap
from retuned.standalone import orders as ordered
from retuned.standalone import proposal_steps
from retuned.standalone.context import RecordKind
from retuned.standalone.daemon import Loop
from retuned.standalone.orders import latest, orders, owner, retire, swap_order_of
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
            world.store.add(RecordKind.PROPOSAL, id, {**proposal, "id": id}, phase="superseded")
            body = swap | {"id": f"o{number}", "proposal": id, "epoch": number + 1}
            phase = "past" if number < ENDED - ordered._KEPT else "done"
            world.store.add(RecordKind.ORDER, f"o{number}", body, phase=phase)
            world.store.add(RecordKind.DECISION, f"d{number}", {"proposal": id}, phase="given")


@pytest.fixture
def counting(world: World) -> Iterator[Counting]:
    win(world.loop.ctx)
    proposal_steps.propose(world.loop.ctx)
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
        proposal_steps.propose(ctx)
        took_ms.append((time.thread_time() - began) * 1e3)  # its own: others use the machine, too
    assert counting.rows.total() <= MOST_ROWS, counting.rows
    assert min(took_ms) < MOST_MS, took_ms
    assert len(counting.ids(RecordKind.ORDER)) == ENDED  # nothing is lost
    assert [kept.order.epoch for kept in latest(ctx).values()] == [ENDED]
    assert ordered.fresh_epoch(ctx) == ENDED + 1


def order(number: int, *, artifact: str, previous: str | None) -> SwapOrder:
    return SwapOrder.model_validate(
        {
            "id": f"o{number}",
            "kind": "swap",
            "proposal": f"p{number}",
            "target": "demo",
            "definition": KERNEL,
            "artifact": artifact,
            "previous": previous,
            "guard": Guard(),
            "epoch": number,
        }
    )


def test_what_the_newest_may_go_back_to_is_never_put_away(world: World) -> None:
    """An artifact came back after many others; what was long before is put away, not lost."""
    ctx = world.loop.ctx
    names = [digest_of(["variant", number]) for number in range(100)]
    chain = [names[0], names[1], *names[2:60], names[1]]
    for number, artifact in enumerate(chain, start=1):
        previous = chain[number - 2] if number > 1 else None
        made = order(number, artifact=artifact, previous=previous)
        ctx.store.add(RecordKind.ORDER, made.id, made.model_dump(mode="json"), phase="done")
    assert retire(ctx) > 0
    assert retire(ctx) == 0
    newest = latest(ctx)[KERNEL].order
    assert (newest.epoch, newest.previous) == (len(chain), chain[-2])
    kept = {each.order.artifact for each in orders(ctx)}
    assert {names[1], *chain[-ordered._KEPT :]} <= kept  # names[1] is in force
    assert names[0] not in kept
    # put away, and found where it is asked for
    found = swap_order_of(ctx, "p1")
    assert found is not None
    assert found.phase == "past"
    back = order(len(chain) + 1, artifact=names[0], previous=None)
    assert owner(ctx, back.model_copy(update={"kind": SwapKind.ROLLBACK})) == "p1"
    assert ordered.fresh_epoch(ctx) == len(chain) + 1

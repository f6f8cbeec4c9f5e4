"""What the demo reads of the daemon's store: whether a fault was really taken back."""

from __future__ import annotations

from retuned.contract import Guard
from retuned.demo.journal import Journal
from retuned.stages.swap import SwapKind, SwapOrder
from retuned.store.memory import MemoryStore

OLD = "sha256:" + "0" * 64
BAD = "sha256:" + "b" * 64


def ordered(
    store: MemoryStore, kind: SwapKind, artifact: str | None, *, epoch: int, phase: str = "done"
) -> None:
    order = SwapOrder(
        id=f"{kind}-{epoch}",
        kind=kind,
        proposal="p",
        target="t",
        definition="linear",
        artifact=artifact,
        previous=None,
        guard=Guard(),
        epoch=epoch,
    )
    store.add("order", order.id, order.model_dump(mode="json"), phase=phase)


def test_the_way_back_may_end_at_the_original_or_at_the_artifact_before() -> None:
    for before in (None, OLD):
        store = MemoryStore()
        ordered(store, SwapKind.SWAP, BAD, epoch=1)
        ordered(store, SwapKind.ROLLBACK, before, epoch=2)
        journal = Journal(store)
        assert journal.reverted("linear", active=before)
        assert not journal.reverted("linear", active=BAD)
        assert not journal.reverted("rmsnorm", active=before)


def test_a_fault_that_is_still_in_force_is_not_reverted() -> None:
    store = MemoryStore()
    ordered(store, SwapKind.SWAP, BAD, epoch=1)
    journal = Journal(store)
    assert not journal.reverted("linear", active=None)  # nobody ordered that: the server restarted
    ordered(store, SwapKind.ROLLBACK, None, epoch=2, phase="new")
    assert not journal.reverted("linear", active=None)


def test_an_order_that_the_server_refused_changes_nothing() -> None:
    store = MemoryStore()
    ordered(store, SwapKind.ROLLBACK, OLD, epoch=2)
    ordered(store, SwapKind.SWAP, BAD, epoch=3, phase="refused")
    assert Journal(store).reverted("linear", active=OLD)
    ordered(store, SwapKind.SWAP, BAD, epoch=4)
    assert not Journal(store).reverted("linear", active=BAD)

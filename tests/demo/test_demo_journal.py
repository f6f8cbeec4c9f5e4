"""What the demo reads of the daemon's store: verdicts, and whether a fault was taken back."""

from __future__ import annotations

import random
from datetime import UTC, datetime

import pytest

from retuned.api.proposal import ProposalPhase
from retuned.contract import Guard
from retuned.demo.journal import Journal
from retuned.ports import Event
from retuned.stages.swap import SwapKind, SwapOrder
from retuned.stages.watch.proof import (
    ProofReason,
    ProofReport,
    ProofState,
    Verdict,
    begin,
    next_pair,
)
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


def proposed(store: MemoryStore, id: str, phase: ProposalPhase) -> None:
    body = {"id": id, "speedup": {"lower": 1.3, "point": 1.4, "upper": 1.5, "confidence": 0.99}}
    store.add("proposal", id, body, phase=str(phase))


def proven(store: MemoryStore, id: str, report: ProofReport | None) -> None:
    state = begin(at_s=0.0)
    body = {"state": state.model_dump(mode="json")}
    if report is not None:
        body["report"] = report.facts()
    store.add("live-proof", id, body, phase="proving" if report is None else str(report.verdict))


@pytest.mark.parametrize("phase", ProposalPhase)
def test_a_swap_that_is_being_proven_or_goes_back_is_not_at_its_end(phase: ProposalPhase) -> None:
    store = MemoryStore()
    proposed(store, "p", phase)
    journal = Journal(store)
    assert bool(journal.open()) is not phase.is_terminal
    assert bool(journal.promoted()) is (phase is ProposalPhase.PROMOTED)
    assert journal.open() or phase not in (ProposalPhase.PROVING, ProposalPhase.ROLLING_BACK)


def test_a_pair_of_a_proof_is_progress() -> None:
    store = MemoryStore()
    proposed(store, "p", ProposalPhase.PROVING)
    journal = Journal(store)
    seen = [journal.progress()]
    proven(store, "p", None)
    seen.append(journal.progress())
    stored = store.get("live-proof", "p")
    assert stored is not None
    state = ProofState.model_validate(stored.body["state"])
    planned = next_pair(state, random.Random(7))
    body = {"state": planned.model_dump(mode="json")}
    store.advance("live-proof", "p", expect="proving", to="proving", body=body)
    seen.append(journal.progress())
    assert seen[0] != seen[1] != seen[2]
    assert journal.progress() == seen[2]
    assert journal.verdicts() == []


def test_a_swap_has_its_claim_its_verdict_and_whether_it_was_rolled_back() -> None:
    store = MemoryStore()
    proposed(store, "p", ProposalPhase.ROLLED_BACK)
    ordered(store, SwapKind.SWAP, BAD, epoch=4)
    journal = Journal(store)
    (swap,) = journal.swaps()
    assert (swap["epoch"], swap["live_proof"], swap["rolled_back"]) == (4, None, True)
    report = ProofReport(
        verdict=Verdict.HARMS,
        reason=ProofReason.SLOWER,
        effect=0.2,
        low=0.1,
        high=0.3,
        pairs=9,
        seconds=20.0,
    )
    proven(store, "p", report)
    (swap,) = journal.swaps()
    assert ProofReport.model_validate(swap["live_proof"]["report"]) == report
    assert swap["live_proof"]["speedup"]["upper"] < 1.0 < swap["speedup"]["lower"]
    assert journal.verdicts() == [("p", swap["live_proof"]["sentence"])]
    assert journal.withdrawn()


def test_a_swap_whose_order_was_superseded_by_a_rollback_counts_if_the_server_ran_it() -> None:
    store = MemoryStore()
    proposed(store, "p", ProposalPhase.ROLLED_BACK)
    ordered(store, SwapKind.SWAP, BAD, epoch=4, phase="superseded")
    ordered(store, SwapKind.SWAP, OLD, epoch=5, phase="superseded")
    ordered(store, SwapKind.ROLLBACK, None, epoch=6)
    assert Journal(store).swaps() == []
    detail = {"epoch": 4, "took_ns": 2_000}
    now = datetime.now(UTC)
    store.record(
        Event(at=now, kind="order", id="swap-4", what="swapped", who="retuned", detail=detail)
    )
    (swap,) = Journal(store).swaps()
    assert (swap["digest"], swap["swap_us"]) == (BAD, 2.0)


@pytest.mark.parametrize(
    ("verdict", "phase"),
    [
        (Verdict.HARMS, ProposalPhase.ROLLING_BACK),
        (Verdict.HARMS, ProposalPhase.PROMOTED),
        (Verdict.NO_MEASURABLE_EFFECT, ProposalPhase.ROLLED_BACK),
        (None, ProposalPhase.ROLLED_BACK),
    ],
)
def test_only_harm_that_was_found_and_rolled_back_is_a_withdrawn_swap(
    verdict: Verdict | None, phase: ProposalPhase
) -> None:
    store = MemoryStore()
    proposed(store, "p", phase)
    ordered(store, SwapKind.SWAP, BAD, epoch=4)
    found = None if verdict is None else ProofReport(verdict=verdict, reason=ProofReason.SLOWER)
    proven(store, "p", found)
    assert not Journal(store).withdrawn()

"""A lab runs strangers' code: what it says of its numbers is computed again before it is signed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.standalone.local_world import INCUMBENT, WINNER, Lab, World
from tests.standalone.proofs import interval, proof, raw
from tests.standalone.test_proposing import win
from tests.standalone.test_steering import (
    FIRST,
    active,
    ask_for,
    look,
    phase,
    promote,
    propose,
    swap,
)

from retuned.contract import Workload
from retuned.errors import TemporaryError, UnreadableInput
from retuned.ports import Finding
from retuned.stages.experiment import ExperimentPlan
from retuned.stages.verdict import (
    EvidenceDocument,
    EvidenceFault,
    RawSamples,
    Status,
    contradiction_in,
    judge,
    raw_digest,
)
from retuned.standalone import evidence as proving
from retuned.standalone import proposals
from retuned.standalone.context import RecordKind

Change = Callable[[EvidenceDocument], EvidenceDocument]


def lie(world: World, change: Change, *, rename: bool = True) -> None:
    """Let the lab hand over a changed document, and a finding that agrees with it."""
    bench = world.loop.ctx.bench
    assert isinstance(bench, Lab)
    honest = bench.proven

    def lying(plan: ExperimentPlan, found: Finding) -> Finding:
        said = honest(plan, found)
        named = said.verdict.evidence
        assert named is not None
        document = EvidenceDocument.model_validate_json(bench.documents[named])
        if document.verdict.status is not Status.PROMOTE:
            return said
        changed = change(document)
        data = changed.model_dump_json().encode()
        if rename:
            named = "sha256:" + hashlib.sha256(data).hexdigest()
        bench.documents[named] = data
        verdict = changed.verdict.model_copy(update={"evidence": named})
        return replace(said, verdict=verdict)

    bench.proven = lying  # type: ignore[method-assign]


def judged_again(document: EvidenceDocument) -> EvidenceDocument:
    """Let a document agree with itself: whoever lies lies well."""
    verdict = judge(document.evidence, document.settings)
    found = document.model_copy(update={"verdict": verdict})
    assert contradiction_in(found) is None
    return found


def bounds_from_nowhere(document: EvidenceDocument) -> EvidenceDocument:
    other = proof(
        WINNER,
        incumbent=document.incumbent,
        plan=document.plan,
        speedup=interval(9.0),
        at=document.written_at,
        workloads=[
            Workload(definition="linear", axes=r.axes, weight=r.weight) for r in rows(document)
        ],
        settings=document.settings,
    )
    return judged_again(document.model_copy(update={"evidence": other.evidence}))


def rows(document: EvidenceDocument) -> tuple[RawSamples, ...]:
    assert document.final is not None
    return document.final.candidate


def no_raw_pairs(document: EvidenceDocument) -> EvidenceDocument:
    return document.model_copy(update={"final": None})


def of_other_shapes(document: EvidenceDocument) -> EvidenceDocument:
    return remeasured(document, [({"M": 64}, each.weight) for each in rows(document)])


def of_other_weights(document: EvidenceDocument) -> EvidenceDocument:
    return remeasured(document, [(each.axes, each.weight * 5.0) for each in rows(document)])


def of_more_shapes(document: EvidenceDocument) -> EvidenceDocument:
    return remeasured(
        document, [*((each.axes, each.weight) for each in rows(document)), ({"M": 8192}, 1.0)]
    )


def remeasured(
    document: EvidenceDocument, shapes: list[tuple[dict[str, int], float]]
) -> EvidenceDocument:
    """Honest numbers, of something that nobody asked for."""
    return proof(
        WINNER,
        incumbent=document.incumbent,
        plan=document.plan,
        speedup=interval(2.0),
        at=document.written_at,
        workloads=[Workload(definition="linear", axes=axes, weight=w) for axes, w in shapes],
        settings=document.settings,
    )


def faster_medians(document: EvidenceDocument) -> EvidenceDocument:
    """The bounds as measured, but times that say that all of the traffic would be saved."""
    timing = document.evidence.timing
    assert timing is not None
    shapes = tuple(each.model_copy(update={"incumbent_us": 9e6}) for each in timing.shapes)
    evidence = document.evidence.model_copy(
        update={"timing": timing.model_copy(update={"shapes": shapes})}
    )
    return judged_again(document.model_copy(update={"evidence": evidence}))


def a_p_value_from_nowhere(document: EvidenceDocument) -> EvidenceDocument:
    timing = document.evidence.timing
    assert timing is not None
    groups = tuple(each.model_copy(update={"p_value": 0.0}) for each in timing.groups)
    evidence = document.evidence.model_copy(
        update={"timing": timing.model_copy(update={"groups": groups})}
    )
    return judged_again(document.model_copy(update={"evidence": evidence}))


def a_quieter_floor(document: EvidenceDocument) -> EvidenceDocument:
    timing = document.evidence.timing
    assert timing is not None
    evidence = document.evidence.model_copy(
        update={"timing": timing.model_copy(update={"noise_floor_ratio": 1.0001})}
    )
    return judged_again(document.model_copy(update={"evidence": evidence}))


def other_raw_pairs_than_named(document: EvidenceDocument) -> EvidenceDocument:
    evidence = document.evidence.model_copy(update={"raw": raw_digest(None, None)})
    return document.model_copy(update={"evidence": evidence})


@pytest.mark.parametrize(
    "change",
    [
        bounds_from_nowhere,
        no_raw_pairs,
        of_other_shapes,
        of_other_weights,
        of_more_shapes,
        faster_medians,
        a_p_value_from_nowhere,
        a_quieter_floor,
        other_raw_pairs_than_named,
    ],
)
def test_a_lab_that_lies_about_its_numbers_gets_no_signature(world: World, change: Change) -> None:
    ctx = world.loop.ctx
    lie(world, change)
    experiment = win(ctx)
    proposals.propose(ctx)
    assert ctx.store.list(RecordKind.PROPOSAL) == []
    refused = [e for e in ctx.store.events(id=experiment) if e.what == "evidence-refused"]
    assert [e.detail["reason"] for e in refused] == ["evidence-contradicted"]


def test_bytes_that_are_not_those_that_were_named_get_no_signature(world: World) -> None:
    ctx = world.loop.ctx
    lie(world, lambda document: document.model_copy(update={"tried": 7}), rename=False)
    experiment = win(ctx)
    refused = [e for e in ctx.store.events(id=experiment) if e.what == "evidence-refused"]
    assert [e.detail["reason"] for e in refused] == ["evidence-altered"]


def test_raw_pairs_that_are_named_by_their_digest_are_signed(world: World) -> None:
    ctx = world.loop.ctx

    def named(document: EvidenceDocument) -> EvidenceDocument:
        evidence = document.evidence.model_copy(
            update={"raw": raw_digest(document.search, document.final)}
        )
        return document.model_copy(update={"evidence": evidence})

    lie(world, named)
    win(ctx)
    proposals.propose(ctx)
    assert len(ctx.store.list(RecordKind.PROPOSAL)) == 1


def test_the_honest_world_measures_what_it_says() -> None:
    assert raw((Workload(definition="linear", axes={}),), 2.0).clone
    assert interval(2.0).lower > 1.85


# --- what cannot be read now says nothing about the evidence -----------------------------------


def away(world: World, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fails(*_args: object, **_words: object) -> None:
        raise error

    monkeypatch.setattr(type(world.notary), "check", fails)


@pytest.mark.parametrize(
    "error",
    [
        UnreadableInput("key-unreadable", where="keys", message="is busy"),
        PermissionError(13, "Permission denied"),
        TemporaryError("the store is busy", delay_s=1.0),
    ],
)
def test_a_key_that_cannot_be_read_now_refuses_no_win(
    world: World, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    ctx = world.loop.ctx
    experiment = win(ctx)
    with monkeypatch.context() as patched:
        away(world, patched, error)
        proposals.propose(ctx)
        assert ctx.store.list(RecordKind.PROPOSAL) == []
        assert [s.id for s in ctx.store.list(RecordKind.EXPERIMENT, phase="won")] == [experiment]
    proposals.propose(ctx)
    assert world.phases(RecordKind.PROPOSAL) == ["Pending"]


@pytest.mark.parametrize("ordered", [False, True])
def test_a_key_that_cannot_be_read_now_refuses_no_swap(
    world: World, monkeypatch: pytest.MonkeyPatch, ordered: bool
) -> None:
    world.server.one_hangs = ordered
    id = swap(world, FIRST) if ordered else propose(world, FIRST)
    world.approve_what_waits()
    world.server.one_hangs = False
    with monkeypatch.context() as patched:
        away(world, patched, UnreadableInput("key-unreadable", where="keys", message="busy"))
        look(world, 3)
        assert phase(world, id) == ("Canary" if ordered else "Validating")
        assert world.unexpected() == 0
    look(world, 3)
    promote(world)
    assert phase(world, id) == "Promoted"


def test_a_blob_that_cannot_be_read_now_is_no_verdict(world: World) -> None:
    class Busy:
        def get_blob(self, digest: str) -> bytes:
            raise UnreadableInput("blob-unreadable", where=digest, message="input/output error")

    found = proving.read(Busy(), world.notary, INCUMBENT.digest)  # type: ignore[arg-type]
    assert found.passing
    assert found.doubt is not None
    assert found.doubt.fault is EvidenceFault.UNREADABLE
    assert "try again" in found.doubt.detail


# --- one record that nobody understands ---------------------------------------------------------


def spoil(world: World, kind: RecordKind, id: str, **changes: object) -> None:
    stored = world.store.get(kind, id)
    assert stored is not None
    body = dict(stored.body) | changes
    world.store.advance(kind, id, expect=stored.phase, to=stored.phase, body=body)


def test_a_proposal_that_nobody_understands_stops_no_other_and_is_named_once(world: World) -> None:
    bad = propose(world, FIRST)
    spoil(world, RecordKind.PROPOSAL, bad, speedup={"lower": -1})
    world.store.advance(RecordKind.PROPOSAL, bad, expect="Pending", to="Approved")
    world.store.add(RecordKind.PROPOSAL, "worse", {"nonsense": True}, phase="Canary")
    good = propose(world, FIRST, id="good")
    world.approve_what_waits()
    look(world, 3)
    assert phase(world, good) == "Analyzing"
    assert phase(world, bad) == "Approved"
    for id in (bad, "worse"):
        said = [e for e in world.store.events(id=id) if e.what == "record-unreadable"]
        assert len(said) == 1
    assert world.unexpected() == 0


def test_what_is_in_force_goes_back_though_its_proposal_cannot_be_understood(world: World) -> None:
    id = swap(world, FIRST)
    spoil(world, RecordKind.PROPOSAL, id, speedup=None, risk="unheard of")
    ask_for(world, "rollback", id)
    look(world, 2)
    assert active(world) == FIRST.digest, "no control plane names its order any more"
    look(world, 2, seconds=61.0)
    assert (phase(world, id), active(world)) == ("RolledBack", None)
    assert world.store.list(RecordKind.REQUEST, phase="new") == []


def test_a_finding_that_nobody_understands_is_no_win_and_hides_no_other(world: World) -> None:
    ctx = world.loop.ctx
    experiment = win(ctx)
    world.store.add(RecordKind.FINDING, f"{experiment}/bad", {"verdict": "promote"}, phase="final")
    proposals.propose(ctx)
    assert world.phases(RecordKind.PROPOSAL) == ["Pending"]

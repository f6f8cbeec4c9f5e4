"""Nothing is proposed or swapped on evidence that does not hold; ways back ask for none."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.standalone.local_world import INCUMBENT, KERNEL, LOST, WINNER, WON, Lab, World
from tests.standalone.proofs import MACHINE, interval, proof
from tests.standalone.test_beliefs import belief, conclude
from tests.standalone.test_proposing import reasons, win
from tests.standalone.test_steering import (
    FIRST,
    WRONG,
    active,
    look,
    phase,
    promote,
    propose,
    swap,
    trail,
)

from retuned.contract import Environment, Guard, digest_of
from retuned.ports import Finding
from retuned.stages.experiment import ExperimentPlan
from retuned.stages.proposal import RefusalReason
from retuned.stages.verdict import (
    EvidenceDocument,
    EvidenceFault,
    JudgeSettings,
    ServerEnvironment,
)
from retuned.standalone import evidence as proving
from retuned.standalone import proposals
from retuned.standalone.context import RecordKind
from retuned.standalone.daemon import Loop
from retuned.store.envelopes import seal
from retuned.store.keys import FakeNotary

SPEEDUP = interval(2.0)


def documents(world: World) -> list[EvidenceDocument]:
    ctx = world.loop.ctx
    found = []
    for stored in ctx.store.list(RecordKind.FINDING):
        read = proving.read(ctx.store, ctx.notary, stored.body["verdict"]["evidence"])
        assert read.doubt is None
        assert read.document is not None
        found.append(read.document)
    return found


def test_every_candidate_has_signed_evidence_the_losers_too(world: World) -> None:
    ctx = world.loop.ctx
    conclude(ctx, belief(), WON)
    found = {document.candidate: document for document in documents(world)}
    assert set(found) == {LOST.solution.digest, WON.solution.digest}
    assert found[LOST.solution.digest].verdict.reason == LOST.verdict.reason
    assert found[WON.solution.digest].freeze.trust is WINNER.trust


def write(world: World, change: Callable[[EvidenceDocument], EvidenceDocument]) -> None:
    """Let the lab hand over something else than it measured."""
    bench = world.loop.ctx.bench
    assert isinstance(bench, Lab)
    honest = bench.proven

    def lying(plan: ExperimentPlan, found: Finding) -> Finding:
        said = honest(plan, found)
        assert said.verdict.evidence is not None
        document = EvidenceDocument.model_validate_json(bench.documents[said.verdict.evidence])
        data = change(document).model_dump_json().encode()
        bench.documents[said.verdict.evidence] = data
        return said

    bench.proven = lying  # type: ignore[method-assign]


@pytest.mark.parametrize(
    "change",
    [
        {"candidate": digest_of("another")},
        {"incumbent": digest_of("another")},
        {"plan": "another"},
        {"environment": Environment(arch="cpu:elsewhere")},
        {"settings": JudgeSettings(min_gain_ratio=0.0)},
    ],
)
def test_what_the_lab_wrote_about_something_else_is_not_signed_nor_proposed(
    world: World, change: dict[str, Any]
) -> None:
    ctx = world.loop.ctx
    write(world, lambda document: document.model_copy(update=change))
    experiment = win(ctx)
    proposals.propose(ctx)
    assert ctx.store.list(RecordKind.PROPOSAL) == []
    assert reasons(ctx, experiment) == ["missing-evidence"]
    refused = [e for e in ctx.store.events(id=experiment) if e.what == "evidence-refused"]
    assert {event.detail["candidate"] for event in refused} >= {WON.solution.digest}


def test_a_win_that_its_own_numbers_deny_is_not_proposed(world: World) -> None:
    ctx = world.loop.ctx

    def lie(document: EvidenceDocument) -> EvidenceDocument:
        slow = proof(
            WINNER,
            incumbent=document.incumbent,
            plan=document.plan,
            speedup=interval(1.0),
            at=world.clock.now(),
        )
        return slow.model_copy(update={"verdict": document.verdict})

    write(world, lie)
    experiment = win(ctx)
    proposals.propose(ctx)
    assert reasons(ctx, experiment) == ["missing-evidence"]


def rewritten(world: World, experiment: str, evidence: str | None) -> None:
    """Let somebody write another digest into the winner's record."""
    ctx = world.loop.ctx
    id = f"{experiment}/{WINNER.digest}"
    stored = ctx.store.get(RecordKind.FINDING, id)
    assert stored is not None
    body = json.loads(json.dumps(dict(stored.body)))
    body["verdict"]["evidence"] = evidence
    ctx.store.advance(RecordKind.FINDING, id, expect="final", to="final", body=body)


def sealed(world: World, notary: FakeNotary, **changes: Any) -> str:
    values: dict[str, Any] = {
        "incumbent": INCUMBENT.digest,
        "plan": "e",
        "speedup": SPEEDUP,
        "at": world.clock.now(),
    }
    data = proof(WINNER, **(values | changes)).model_dump_json().encode()
    return world.store.put_blob(seal(data, notary=notary))


def test_evidence_of_another_installation_is_not_proposed(world: World) -> None:
    ctx = world.loop.ctx
    experiment = win(ctx)
    rewritten(world, experiment, sealed(world, FakeNotary(), plan=experiment))
    proposals.propose(ctx)
    assert reasons(ctx, experiment) == ["evidence-key-unknown"]


def test_evidence_of_another_experiment_is_not_proposed(world: World) -> None:
    ctx = world.loop.ctx
    experiment = win(ctx)
    rewritten(world, experiment, sealed(world, world.notary, plan="another"))
    proposals.propose(ctx)
    assert reasons(ctx, experiment) == ["evidence-of-another-plan"]


def test_raw_text_without_a_signature_is_no_evidence(world: World) -> None:
    ctx = world.loop.ctx
    experiment = win(ctx)
    rewritten(world, experiment, world.store.put_blob(b'{"speedup": 9}'))
    proposals.propose(ctx)
    assert reasons(ctx, experiment) == ["evidence-unreadable"]


# --- at the swap -----------------------------------------------------------------------------


def refused(world: World, **changes: Any) -> tuple[str, str]:
    """Propose with other evidence, approve, and return the phase and the reason."""
    id = propose(world, FIRST, **changes)
    world.approve_what_waits()
    look(world, 2)
    said = [e.detail for e in world.store.events(id=id) if e.what == "invalid"]
    assert active(world) is None
    assert world.server.flips == []
    return phase(world, id), str(said[0]["reason"]) if said else ""


def test_what_names_no_evidence_that_is_there_is_not_swapped_in(world: World) -> None:
    assert refused(world, evidence=digest_of("gone")) == ("Invalid", "missing-evidence")


def test_a_stranger_s_evidence_is_not_swapped_in(world: World) -> None:
    evidence = sealed(world, FakeNotary(), speedup=SPEEDUP)
    assert refused(world, evidence=evidence) == ("Invalid", "evidence-key-unknown")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"plan": "another"}, "evidence-of-another-plan"),
        ({"incumbent": digest_of("another")}, "evidence-of-another-incumbent"),
        ({"environment": Environment(arch="cpu:b")}, "evidence-of-another-environment"),
        ({"speedup": interval(1.5)}, "evidence-contradicted"),
        ({"speedup": interval(0.9)}, "evidence-contradicted"),
    ],
)
def test_evidence_that_does_not_carry_the_proposal_is_not_swapped_in(
    world: World, changes: dict[str, Any], reason: str
) -> None:
    assert refused(world, evidence=sealed(world, world.notary, **changes)) == ("Invalid", reason)


def test_a_wider_guard_than_was_measured_is_not_swapped_in(world: World) -> None:
    guard = Guard(bounds={"M": (1, 8)})
    assert refused(world, guard=guard) == ("Invalid", "evidence-contradicted")


def test_damaged_evidence_is_not_swapped_in(world: World) -> None:
    id = propose(world, FIRST)
    world.approve_what_waits()
    stored = world.store.get(RecordKind.PROPOSAL, id)
    assert stored is not None
    name = str(stored.body["evidence"]).removeprefix("sha256:")
    (blob,) = world.folder.glob(f"state/**/{name}")
    blob.write_bytes(blob.read_bytes().replace(b"final", b"fjnal"))
    look(world, 2)
    assert (phase(world, id), active(world)) == ("Invalid", None)
    assert "evidence-altered" in [e.detail.get("reason") for e in world.store.events(id=id)]


def test_what_is_altered_after_the_order_is_written_does_not_reach_the_server(
    world: World,
) -> None:
    world.server.one_hangs = True
    id = swap(world, FIRST)
    assert phase(world, id) == "Canary"
    stored = world.store.get(RecordKind.PROPOSAL, id)
    assert stored is not None
    body = dict(stored.body) | {"evidence": digest_of("gone")}
    world.store.advance(RecordKind.PROPOSAL, id, expect="Canary", to="Canary", body=body)
    world.server.one_hangs = False
    look(world, 2)
    assert (phase(world, id), active(world)) == ("RolledBack", None)
    assert world.phases(RecordKind.ORDER) == ["refused", "done"]
    assert world.server.flips == [world.store.list(RecordKind.ORDER)[1].id], "the original"


def test_a_way_back_asks_for_no_evidence(world: World) -> None:
    first = swap(world, FIRST)
    promote(world)
    stored = world.store.get(RecordKind.PROPOSAL, first)
    assert stored is not None
    body = dict(stored.body) | {"evidence": digest_of("gone")}
    assert world.store.advance(
        RecordKind.PROPOSAL, first, expect="Promoted", to="Promoted", body=body
    )
    world.server.counts[KERNEL] = dict(WRONG)
    look(world, 2)
    assert active(world) is None
    assert phase(world, first) == "RolledBack"


# --- the server's own environment ------------------------------------------------------------


def test_a_server_on_another_processor_is_not_swapped(world: World) -> None:
    world.server.runs_on = ServerEnvironment(process="7", cpu="cpu:another")
    id = swap(world, FIRST)
    look(world)
    assert (phase(world, id), active(world)) == ("RolledBack", None)
    (said,) = [e.detail for e in world.store.events(id=id) if e.what == "order-refused"]
    assert said["reason"] == "server-environment-differs"
    assert "process 7" in str(said["detail"])
    assert MACHINE.arch in str(said["detail"])


def test_a_server_that_does_not_know_yet_is_waited_for(world: World) -> None:
    world.server.runs_on = ServerEnvironment(process="7")
    id = swap(world, FIRST)
    look(world, 3)
    assert (phase(world, id), active(world)) == ("Canary", None)
    world.server.runs_on = ServerEnvironment(process="7", cpu=MACHINE.arch)
    look(world)
    assert (phase(world, id), active(world)) == ("Analyzing", FIRST.digest)


def test_whoever_says_so_swaps_and_reads_it_in_the_log(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    settings = replace(world.loop.ctx.settings, environment_mismatch="warn")
    world.loop = Loop(replace(world.loop.ctx, settings=settings))
    world.server.runs_on = ServerEnvironment(process="7", cpu="cpu:another")
    id = swap(world, FIRST)
    assert (phase(world, id), active(world)) == ("Analyzing", FIRST.digest)
    assert "cpu:another" in caplog.text
    assert "swapped" in trail(world, id)


def test_a_server_of_another_kind_still_goes_back(world: World) -> None:
    first = swap(world, FIRST)
    world.server.runs_on = ServerEnvironment(process="7", cpu="cpu:another")
    world.server.counts[KERNEL] = dict(WRONG)
    look(world)
    assert (phase(world, first), active(world)) == ("RolledBack", None)


def test_every_fault_has_a_reason_under_the_same_name() -> None:
    assert {str(each) for each in EvidenceFault} <= {str(each) for each in RefusalReason}


def test_a_finding_of_an_earlier_version_without_evidence_is_not_proposed(world: World) -> None:
    ctx = world.loop.ctx
    experiment = win(ctx)
    rewritten(world, experiment, None)
    proposals.propose(ctx)
    assert reasons(ctx, experiment) == ["missing-evidence"]
    assert ctx.store.list(RecordKind.PROPOSAL) == []

"""A win on a tunable becomes a signed table that rests on what was proven, and on nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.expect import raises_code
from tests.operators import examples, table_wins
from tests.operators.controllers.memory import FakeKernels, FakeSignals
from tests.operators.table_wins import (
    LAUNCHED,
    NAME,
    RULE,
    SOURCE,
    Tunables,
    experiment_of,
    leave,
    plan_of,
    with_launched,
    won,
)
from tests.operators.world import POLICY
from tests.standalone.proofs import MACHINE

from retuned.api.target import ActiveKernel, Quarantined
from retuned.clock import FakeClock
from retuned.contract import Digest, Guard, Solution, SourceFile, TrustClass
from retuned.errors import TemporaryError, UnreadableInput
from retuned.runtime.artifacts.trust import Trust
from retuned.runtime.tunables.records import digest_of_text, parse_table
from retuned.runtime.tuned_files.orders import parse_order
from retuned.stages.proposal import Proposal, proposal_id, variant_of
from retuned.stages.verdict import EvidenceFault, ServerEnvironment
from retuned.store.artifact_folder import MANIFEST
from retuned.store.keys import Ed25519Notary
from retuned.store.sqlite import SqliteStore
from retuned_operator.agent_api.artifacts import bundle_of
from retuned_operator.controllers import ClusterView
from retuned_operator.controllers.caches import INDICES, StoreCaches
from retuned_operator.controllers.experiment_facts import WinOutcome, weigh
from retuned_operator.kube.informer import ObjectCache
from retuned_operator.kube.resources import POLICIES
from retuned_operator.schema import TuningTarget, read
from retuned_operator.store.experiments import StoreLedger
from retuned_operator.store.results import ResultFolder
from retuned_operator.store.review import StoredReviews
from retuned_operator.store.tables import TABLE

ALIKE = (ServerEnvironment(process="1", cpu=MACHINE.arch),)


class Nobody:
    """Reports of no pods."""

    def of(self, uid: str) -> None:
        return None


class Operator:
    """The store, and controllers that look at it."""

    def __init__(self, folder: Path, store: SqliteStore) -> None:
        self.results = folder / "results"
        self.notary = Ed25519Notary(folder / "keys")
        self.store = store
        self.ledger = StoreLedger(
            store,
            self.notary,
            artifacts=folder / "artifacts",
            results=ResultFolder(self.results),
        )
        self.tunables = Tunables()
        self.policies = ObjectCache(INDICES.get(POLICIES))
        self.target = read(TuningTarget, examples.a_target())
        self.clock = FakeClock(examples.NOW)
        self.world = ClusterView(
            caches=StoreCaches({POLICIES: self.policies}, current=lambda _: True),
            reports=Nobody(),
            signals=FakeSignals(),
            ledger=self.ledger,
            kernels=FakeKernels(),
            clock=self.clock,
            tunables=self.tunables,
        )
        self.ledger.believe(table_wins.belief_of())
        self.permit()

    def permit(self, **spec: Any) -> None:
        body = yaml.safe_load(POLICY)
        body["metadata"] = examples.metadata("prod")
        body["spec"] |= spec
        self.policies.put(body)

    def in_force(self, digest: Digest, guard: Guard) -> None:
        entry = ActiveKernel(
            kernel=NAME, digest=digest, guard=guard, epoch=3, proposal="p", since=examples.NOW
        )
        status = self.target.status.model_copy(update={"active_kernels": (entry,)})
        self.target = self.target.model_copy(update={"status": status})

    def quarantine(self, digest: Digest) -> None:
        until = self.clock.now() + timedelta(days=1)
        entry = Quarantined(digest=digest, until=until, reason="harm")
        status = self.target.status.model_copy(update={"quarantine": (entry,)})
        self.target = self.target.model_copy(update={"status": status})

    def weighed(
        self,
        found: Solution | None = None,
        *,
        axes: Sequence[dict[str, int]] = (table_wins.AXES,),
        incumbent: Digest | None = None,
        name: str = "exp-1",
        **changes: Any,
    ) -> WinOutcome:
        """Let an experiment end, and return what its win is worth."""
        asked = plan_of(table_wins.belief_of(axes=axes), incumbent=incumbent)
        experiment = experiment_of(asked, name)
        leave(self.results, experiment.metadata.uid, asked, found or won(), name=name, **changes)
        return weigh(
            self.world,
            experiment,
            self.target,
            results=self.ledger.results(experiment),
            now=self.clock.now(),
        )

    def proposed(self, found: Solution | None = None, **changes: Any) -> Proposal:
        outcome = self.weighed(found, **changes)
        assert outcome.proposal is not None, outcome.refusal
        return outcome.proposal

    def text(self, digest: Digest) -> str:
        files = self.ledger.artifact(digest)
        assert files is not None
        return files[MANIFEST].decode()


@pytest.fixture
def operator(tmp_path: Path) -> Iterator[Operator]:
    with closing(SqliteStore(tmp_path / "state", clock=FakeClock())) as store:
        yield Operator(tmp_path, store)


def test_a_win_is_proposed_as_a_signed_table_that_a_server_takes(operator: Operator) -> None:
    proposal = operator.proposed()
    files = operator.ledger.artifact(proposal.artifact)
    assert files is not None
    assert files.keys() == {MANIFEST, "artifact.sig"}
    text = files[MANIFEST].decode()
    table = parse_table(json.loads(text), text=text)
    assert (table.digest, table.tunable, table.source) == (proposal.artifact, NAME, SOURCE)
    assert [dict(each.config) for each in table.rules] == [RULE["config"]]
    assert (table.before, [each.size for each in table.captures]) == (None, [48, 64])
    order = {"id": "p", "kind": "swap", "definition": NAME, "epoch": 2, "change": text}
    request = {
        "order": {**order, "target": "serving/chat"},
        "digest": proposal.artifact,
        "signature": files["artifact.sig"].decode(),
    }
    trust = Trust(operator.notary.public_hex())
    taken = parse_order(request, trust=trust, read=lambda body, t: parse_table(body, text=t))
    assert taken.change == table
    assert proposal.id == proposal_id(
        target="serving/chat",
        artifact=proposal.artifact,
        baseline=LAUNCHED.incumbent.digest,
        environment=examples.WORLD,
    )


def test_looking_at_a_win_again_leads_to_the_same_table(operator: Operator) -> None:
    assert operator.proposed() == operator.proposed()


def test_evidence_carries_the_table_that_was_made_from_it_and_no_other(operator: Operator) -> None:
    proposal = operator.proposed()
    doubt = operator.ledger.doubt
    assert doubt(proposal, servers=ALIKE) is None
    wider = proposal.model_copy(update={"guard": Guard()})
    assert doubt(wider, servers=ALIKE) is EvidenceFault.CONTRADICTED
    unknown = proposal.model_copy(update={"artifact": examples.ARTIFACT})
    assert doubt(unknown, servers=ALIKE) is EvidenceFault.CONTRADICTED
    # the variant itself is not what servers get
    variant = proposal.model_copy(update={"artifact": won().digest})
    assert doubt(variant, servers=ALIKE) is EvidenceFault.CONTRADICTED
    another = proposal.model_copy(update={"definition": "tunable:moe:other:11111111"})
    assert doubt(another, servers=ALIKE) is EvidenceFault.CONTRADICTED
    unlike = (ServerEnvironment(process="2", cpu="cpu:another"),)
    assert doubt(proposal, servers=unlike) is EvidenceFault.OTHER_ENVIRONMENT


def test_a_table_with_a_rule_that_was_not_proven_is_not_carried(operator: Operator) -> None:
    proposal = operator.proposed()
    body = json.loads(operator.text(proposal.artifact))
    body["rules"].append({"when": {"rows": [1, 9]}, "config": {"BLOCK_M": 999}})
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    record = operator.store.get(TABLE, proposal.artifact)
    assert record is not None
    digest = digest_of_text(text)
    operator.store.add(TABLE, digest, {**record.body, "text": text}, phase="final")
    altered = proposal.model_copy(update={"artifact": digest})
    assert operator.ledger.doubt(altered, servers=ALIKE) is EvidenceFault.CONTRADICTED


def test_a_record_that_was_altered_carries_nothing(operator: Operator) -> None:
    proposal = operator.proposed()
    record = operator.store.get(TABLE, proposal.artifact)
    assert record is not None
    text = str(record.body["text"]).replace(SOURCE, "sha256:" + "6" * 64)
    altered = {**record.body, "text": text}
    operator.store.advance(TABLE, proposal.artifact, expect="final", to="final", body=altered)
    assert operator.ledger.doubt(proposal, servers=ALIKE) is EvidenceFault.CONTRADICTED
    assert operator.ledger.table(proposal.artifact) is None


def other(text: str) -> Solution:
    return won().model_copy(update={"sources": (SourceFile(path="table.json", content=text),)})


@pytest.mark.parametrize(
    "found",
    [
        other(json.dumps({"rules": [RULE], "captures": [{"size": 4}]})),
        other(json.dumps({"rules": [{**RULE, "note": "x"}]})),
        other("not JSON"),
        won().model_copy(update={"trust": TrustClass.GENERATED}),
        won().model_copy(update={"params": {"BLOCK": 4}}),
        won(name="tunable:moe:other:11111111"),
    ],
    ids=["captures", "note", "text", "generated", "params", "another"],
)
def test_what_a_pod_delivers_besides_rules_is_no_win(operator: Operator, found: Solution) -> None:
    assert operator.weighed(found).refusal == "evidence-doubtful"
    assert operator.store.ids(TABLE) == []


def test_a_rule_that_no_server_would_read_is_no_table(operator: Operator) -> None:
    found = won({"when": {"rows": [33, 64]}, "config": {}})
    assert operator.weighed(found).refusal == "not-a-table"


def test_another_win_that_leads_to_the_same_text_carries_it(operator: Operator) -> None:
    first = operator.proposed()
    beyond = {"when": {"rows": [65, 128]}, "config": {"BLOCK_M": 64}}
    second = operator.proposed(won(RULE, beyond), name="exp-2")
    assert second.artifact == first.artifact, "the guard leaves the second rule out"
    assert second.evidence != first.evidence
    assert operator.ledger.doubt(second, servers=ALIKE) is None


def test_a_text_of_a_pod_is_never_taken(operator: Operator) -> None:
    """A pod may leave an artifact beside its finding: nothing of it is read."""
    asked = plan_of()
    experiment = experiment_of(asked)
    leave(operator.results, experiment.metadata.uid, asked, won())
    for folder in operator.results.glob("*/*/*"):
        left = folder / "artifacts" / won().digest.removeprefix("sha256:")
        left.mkdir(parents=True)
        (left / MANIFEST).write_text('{"format":"table","rules":[]}')
    proposal = operator.proposed()
    assert json.loads(operator.text(proposal.artifact))["rules"] == [RULE]
    assert operator.ledger.artifact(won().digest) is None


def test_a_second_table_has_the_rules_of_the_first_below_its_own(operator: Operator) -> None:
    first = operator.proposed()
    operator.in_force(first.artifact, first.guard)
    more = {"when": {"rows": [65, 128]}, "config": {"BLOCK_M": 64}}
    second = operator.proposed(
        won(more), axes=[{"rows": 128}], incumbent=first.artifact, name="exp-2"
    )
    body = json.loads(operator.text(second.artifact))
    assert (body["rules"], body["before"]) == ([more, RULE], first.artifact)
    assert second.baseline == first.artifact
    assert operator.ledger.doubt(second, servers=ALIKE) is None


def test_a_table_in_force_that_is_not_known_is_no_ground_for_another(operator: Operator) -> None:
    operator.in_force(examples.ARTIFACT, Guard())
    outcome = operator.weighed(incumbent=examples.ARTIFACT)
    assert outcome.refusal == "not-a-table"


def test_rules_that_are_in_force_are_not_proposed_again(operator: Operator) -> None:
    first = operator.proposed()
    operator.in_force(first.artifact, first.guard)
    again = operator.weighed(incumbent=first.artifact, name="exp-2")
    assert again.refusal == "already-live"


def test_rules_that_did_harm_are_not_proposed_under_another_text(operator: Operator) -> None:
    proposal = operator.proposed()
    operator.quarantine(proposal.artifact)
    operator.permit(pauses={"recapture": False})  # its text would be another
    assert operator.weighed().refusal == "quarantined"


def test_a_server_that_changed_since_refuses_with_its_reason(operator: Operator) -> None:
    first = operator.proposed()
    operator.in_force(first.artifact, first.guard)
    operator.tunables.found = with_launched(source="sha256:" + "6" * 64)
    more = won({"when": {"rows": [65, 128]}, "config": {"BLOCK_M": 64}})
    about: dict[str, Any] = {"axes": [{"rows": 128}], "incumbent": first.artifact, "name": "exp-2"}
    assert operator.weighed(more, **about).refusal == "source-differs"
    operator.tunables.found = with_launched(refused="batch-invariant")
    assert operator.weighed(more, **about).refusal == "server-refuses"


def test_another_choice_of_the_server_is_another_baseline(operator: Operator) -> None:
    operator.tunables.found = with_launched(source="sha256:" + "6" * 64)
    assert operator.weighed().refusal == "stale-baseline"


def test_nothing_is_proposed_while_it_is_not_known_what_servers_launch(operator: Operator) -> None:
    operator.tunables.found = None
    with pytest.raises(TemporaryError):
        operator.weighed()


def test_graphs_are_not_captured_again_if_the_policy_forbids_it(operator: Operator) -> None:
    operator.permit(pauses={"recapture": False})
    assert json.loads(operator.text(operator.proposed().artifact))["captures"] == []


def test_a_table_goes_over_the_wire_whole_or_not_at_all(operator: Operator) -> None:
    digest = operator.proposed().artifact
    files = operator.ledger.artifact(digest)
    assert files is not None
    assert set(bundle_of(digest, files).files) == {MANIFEST, "artifact.sig"}
    for damaged in (
        {**files, MANIFEST: files[MANIFEST] + b" "},
        {**files, "kernel.so": b"code"},
        {"artifact.sig": b""},
        {**files, MANIFEST: b"{"},
        {**files, MANIFEST: b"[]"},
    ):
        with raises_code(UnreadableInput, "artifact-damaged"):
            bundle_of(digest, damaged)


def test_a_reviewer_sees_every_rule_of_the_table(operator: Operator) -> None:
    first = operator.proposed()
    operator.in_force(first.artifact, first.guard)
    more = {"when": {"rows": [65, 128]}, "config": {"BLOCK_M": 64}}
    second = operator.proposed(
        won(more), axes=[{"rows": 128}], incumbent=first.artifact, name="exp-2"
    )
    shelf = StoredReviews(operator.store, operator.notary, kernels=FakeKernels())
    assert shelf.solution(second.artifact) == variant_of(NAME, [more, RULE], author="search")
    assert shelf.solution(examples.ARTIFACT) is None

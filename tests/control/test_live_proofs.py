"""Live proofs by node agents: which pod of a wave proves, and what its report means."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.operators import examples
from tests.operators.world import World

from retuned.api.agent import LevelsState
from retuned.api.proposal import LiveProofStatus
from retuned.control import RolloutFacts
from retuned.control.facts import ProofFact
from retuned.control.live_proofs import measured, observed, proof_orders
from retuned.stages.gate import LiveProof, LiveProofMode
from retuned.stages.watch.proof import ProofReason, ProofReport, Verdict
from retuned_operator.schema import ProposalPhase as P

OPEN = datetime(2026, 3, 3, 1, 0, tzinfo=UTC)
NEW = examples.ARTIFACT
HELPS = ProofReport(verdict=Verdict.HELPS, reason=ProofReason.FASTER, effect=-0.03, pairs=9)
HARMS = ProofReport(verdict=Verdict.HARMS, reason=ProofReason.SLOWER, effect=0.03, pairs=9)
NONE = ProofReport(verdict=Verdict.NO_MEASURABLE_EFFECT, reason=ProofReason.WITHIN_MARGIN)


class Fleet(World):
    """A world whose node agents prove swaps."""

    def __init__(self, *, pods: int = 4, **rule: Any) -> None:
        super().__init__(OPEN, pods=pods)
        self.change_policy(liveProof={"mode": "required"} | rule)
        self.answers: Callable[[str], ProofReport | None] = lambda _: None
        """Verdict of the pod with this uid."""
        self.unavailable: dict[str, str] = {}
        self.temporary = False
        self.levels: dict[str, LevelsState] = {}
        self.older: set[str] = set()
        """Pods whose sidecar reports no live proofs."""
        self.environments: dict[str, str | None] = {}
        self.asked: list[tuple[str, int]] = []
        """Pods that were asked, with the wave."""

    @property
    def live_rule(self) -> LiveProof:
        return self.policy().policy.spec.live_proof

    def facts(self, name: str) -> RolloutFacts:
        facts = super().facts(name)
        resource = self.proposals[name]
        pods = []
        for pod in facts.pods:
            orders = proof_orders(pod.uid, [resource])
            report = self.answers(pod.uid) if orders else None
            fact = ProofFact(
                unavailable=self.unavailable.get(pod.uid, ""),
                temporary=self.temporary,
                levels=self.levels.get(pod.uid, LevelsState.ABSENT),
                epoch=orders[0].epoch if orders else 0,
                phase=("done" if report else "short") if orders else "",
                report=report,
                sentence="a sentence" if report else "",
            )
            environment = self.environments.get(pod.uid, "sha256:" + "e" * 64)
            proof = None if pod.uid in self.older else fact
            pods.append(replace(pod, environment=environment, proof=proof))
        proofs = observed(resource, pods, rule=self.live_rule, now=self.now)
        live = measured(proofs, resource.status.rollout, pods, rule=self.live_rule)
        return replace(facts, pods=tuple(pods), live_proofs=proofs, live_proof=live)

    def begun(self) -> str:
        name = self.propose(NEW)
        self.reconcile(name)
        self.say(name, "ada")
        self.say(name, "ben")
        return name

    def until(self, name: str, *wanted: P, minutes: int = 600) -> P:
        for _ in range(minutes):
            for uid in list(self.pods):
                self.sidecar(uid)
            self.reconcile(name)
            for each in self.proofs(name):
                if (each.uid, each.wave) not in self.asked:
                    self.asked.append((each.uid, each.wave))
            if self.proposals[name].status.phase in wanted:
                return self.proposals[name].status.phase
            self.now += timedelta(minutes=1)
        raise AssertionError(f"{wanted} not reached, but {self.proposals[name].status}")

    def proofs(self, name: str) -> tuple[LiveProofStatus, ...]:
        return self.proposals[name].status.live_proofs

    def kernel(self, name: str) -> str:
        return self.proposals[name].spec.kernel

    def canary(self, pods: int) -> None:
        rollout = self._policy["spec"]["rollout"]
        self.change_policy(rollout=rollout | {"canary": {"pods": pods, "bake": "5m"}})

    def reason(self, name: str) -> str:
        history = self.proposals[name].status.history
        return next(s.reason for s in reversed(history) if s.to is P.ROLLING_BACK)


def test_one_pod_of_each_wave_proves_and_its_verdict_lets_the_rollout_continue() -> None:
    fleet = Fleet()
    name = fleet.begun()
    fleet.until(name, P.PROVING)
    (entry,) = fleet.proofs(name)
    assert (entry.uid, entry.wave, entry.swapped, entry.verdict) == ("u0", 0, 1, "")
    (order,) = proof_orders("u0", [fleet.proposals[name]])
    assert (order.definition, order.epoch) == (fleet.kernel(name), entry.epoch)
    assert proof_orders("u1", [fleet.proposals[name]]) == ()
    for _ in range(20):
        fleet.now += timedelta(minutes=1)
        fleet.reconcile(name)
    assert fleet.proposals[name].status.phase is P.PROVING, "without a verdict it waits"
    fleet.answers = lambda _: HELPS
    fleet.until(name, P.PROMOTED)
    assert len(fleet.asked) == 3
    assert [wave for _, wave in fleet.asked] == [0, 1, 2], (
        "each wave brings a pod that was not asked"
    )
    assert len({uid for uid, _ in fleet.asked}) == 3
    first = fleet.proofs(name)[0]
    assert (first.verdict, first.reason, first.sentence) == ("helps", "faster", "a sentence")
    assert (first.effect, first.pairs, first.kept) == (-0.03, 9, True)
    assert all(proof_orders(uid, [fleet.proposals[name]]) == () for uid in fleet.pods)


@pytest.mark.parametrize("wave", [0, 1])
def test_harm_in_one_pod_rolls_back_everywhere(wave: int) -> None:
    fleet = Fleet()
    name = fleet.begun()
    fleet.answers = lambda uid: HELPS if wave and uid == "u0" else HARMS
    fleet.until(name, P.ROLLED_BACK)
    assert fleet.reason(name) == "live-proof-slower"
    assert {pod.active for pod in fleet.pods.values()} == {None}
    assert fleet.target.status.quarantine, "harm blames the artifact"
    assert [each.verdict for each in fleet.proofs(name)][-1] == "harms"


@pytest.mark.parametrize("mode", ["required", "observe"])
def test_no_effect_is_withdrawn_only_where_the_proof_is_required(mode: str) -> None:
    fleet = Fleet(mode=mode)
    name = fleet.begun()
    fleet.answers = lambda _: NONE
    end = fleet.until(name, P.ROLLED_BACK, P.PROMOTED)
    assert end is (P.ROLLED_BACK if mode == "required" else P.PROMOTED)
    assert not fleet.target.status.quarantine
    assert fleet.proofs(name)[0].verdict == "no-measurable-effect"


def test_what_a_verdict_takes_back_remains_named_until_it_is_ordered_back() -> None:
    fleet = Fleet()
    name = fleet.begun()
    fleet.until(name, P.PROVING)
    resource = fleet.proposals[name]
    harmed = fleet.proofs(name)[0].model_copy(update={"verdict": "harms", "kept": False})
    status = resource.status.model_copy(update={"live_proofs": (harmed,)})
    named = resource.model_copy(update={"status": status})
    assert proof_orders("u0", [named]), "a node agent switches on what no proof is asked for"
    rule = harmed.rule.model_copy(update={"mode": LiveProofMode.OBSERVE})
    watched = (harmed.model_copy(update={"rule": rule}),)
    status = status.model_copy(update={"live_proofs": watched})
    assert not proof_orders("u0", [resource.model_copy(update={"status": status})])


def test_each_environment_of_a_wave_has_a_proof() -> None:
    fleet = Fleet(pods=3)
    fleet.canary(3)
    fleet.environments = {"u2": "sha256:" + "f" * 64}
    name = fleet.begun()
    fleet.until(name, P.PROVING)
    assert {each.uid for each in fleet.proofs(name)} == {"u0", "u2"}
    fleet.answers = lambda uid: HELPS if uid == "u0" else None
    for _ in range(5):
        fleet.now += timedelta(minutes=1)
        fleet.reconcile(name)
    assert fleet.proposals[name].status.phase is P.PROVING
    fleet.answers = lambda _: HELPS
    fleet.until(name, P.PROMOTED)


def test_a_pod_that_disappears_is_replaced_by_another_of_its_environment() -> None:
    fleet = Fleet(pods=3)
    fleet.canary(2)
    name = fleet.begun()
    fleet.until(name, P.PROVING)
    (before,) = fleet.proofs(name)
    fleet.replace_pod(before.uid)
    fleet.answers = lambda uid: HELPS if uid != before.uid else None
    fleet.until(name, P.PROMOTED)
    assert fleet.proofs(name)[0].uid != before.uid
    assert fleet.proofs(name)[0].since == before.since, "its time goes on"


def test_a_pod_without_a_verdict_in_its_time_ends_the_proof() -> None:
    fleet = Fleet(maxDuration="20m")
    name = fleet.begun()
    fleet.until(name, P.PROVING)
    since = fleet.proofs(name)[0].since
    fleet.until(name, P.ROLLED_BACK)
    (entry,) = fleet.proofs(name)
    assert (entry.verdict, entry.reason) == ("not-concluded", "interrupted")
    assert entry.at is not None
    assert entry.at - since == timedelta(minutes=25)
    assert not fleet.target.status.quarantine


def test_an_operator_that_restarts_asks_for_the_same_proof() -> None:
    fleet = Fleet()
    name = fleet.begun()
    fleet.until(name, P.PROVING)
    before = fleet.proofs(name)
    fleet.environments = dict.fromkeys(fleet.pods)  # it has heard of no pod yet
    fleet.older = set(fleet.pods)
    fleet.now += timedelta(minutes=1)
    fleet.reconcile(name)
    assert fleet.proposals[name].status.phase is P.PROVING
    assert [(e.uid, e.epoch, e.since) for e in fleet.proofs(name)] == [
        (e.uid, e.epoch, e.since) for e in before
    ]


def test_a_server_that_cannot_be_proven_goes_back_with_its_reason() -> None:
    fleet = Fleet()
    name = fleet.begun()
    fleet.unavailable = dict.fromkeys(fleet.pods, "several-servers")
    fleet.until(name, P.ROLLED_BACK)
    assert fleet.reason(name) == "live-proof-not-switchable"
    assert not fleet.target.status.quarantine


@pytest.mark.parametrize(
    ("rule", "why", "phase"),
    [
        ("keep", "not-switchable", P.PROMOTED),
        ("keep", "several-servers", P.ROLLED_BACK),
        ("refuse", "not-switchable", P.ROLLED_BACK),
        ("canary", "not-switchable", P.ROLLED_BACK),
    ],
)
def test_a_swap_that_turns_out_not_to_be_switchable(rule: str, why: str, phase: P) -> None:
    fleet = Fleet(whenNotSwitchable=rule)
    name = fleet.begun()
    fleet.unavailable = dict.fromkeys(fleet.pods, why)
    fleet.until(name, phase)
    assert fleet.proofs(name) == ()
    assert not fleet.target.status.quarantine


@pytest.mark.parametrize(
    ("rule", "phase"),
    [("keep", P.PROMOTED), ("refuse", P.ROLLED_BACK), ("canary", P.ROLLED_BACK)],
)
def test_where_the_policy_forbids_it_no_server_is_switched(rule: str, phase: P) -> None:
    fleet = Fleet(whenNotSwitchable=rule, switching=False)
    name = fleet.begun()
    fleet.until(name, phase)
    assert fleet.proofs(name) == ()
    assert not fleet.target.status.quarantine


def test_a_policy_that_begins_to_forbid_it_ends_the_proof_without_a_verdict() -> None:
    fleet = Fleet()
    name = fleet.begun()
    fleet.until(name, P.PROVING)
    fleet.change_policy(liveProof={"mode": "required", "switching": False})
    fleet.until(name, P.ROLLED_BACK)
    assert {each.reason for each in fleet.proofs(name)} == {"interrupted"}
    assert fleet.reason(name) == "live-proof-interrupted"
    assert not fleet.target.status.quarantine


def test_one_server_that_says_otherwise_goes_back_under_keep() -> None:
    fleet = Fleet(whenNotSwitchable="keep")
    name = fleet.begun()
    fleet.unavailable = dict.fromkeys(fleet.pods, "several-servers")
    fleet.unavailable[next(iter(fleet.pods))] = "not-switchable"
    fleet.until(name, P.ROLLED_BACK)


SLO: dict[str, Any] = {"slo": {"maxQueue": 4}}


def test_a_server_whose_service_levels_are_not_known_goes_back_with_its_reason() -> None:
    fleet = Fleet(**SLO)
    name = fleet.begun()
    fleet.until(name, P.ROLLED_BACK)
    assert fleet.reason(name) == "live-proof-no-service-levels"
    assert not fleet.target.status.quarantine
    assert fleet.proofs(name) == ()


def test_a_pod_that_reads_service_levels_proves_before_one_that_soon_may() -> None:
    fleet = Fleet(pods=3, **SLO)
    fleet.canary(3)
    fleet.levels = {"u0": LevelsState.UNREADABLE, "u1": LevelsState.READ}
    name = fleet.begun()
    fleet.until(name, P.PROVING)
    assert [each.uid for each in fleet.proofs(name)] == ["u1"]


def test_metrics_that_are_silent_for_a_while_take_no_swap_back() -> None:
    fleet = Fleet(**SLO)
    fleet.levels = dict.fromkeys(fleet.pods, LevelsState.UNREADABLE)
    name = fleet.begun()
    fleet.until(name, P.PROVING)
    assert len(fleet.proofs(name)) == 1
    fleet.answers = lambda _: HELPS
    fleet.until(name, P.PROMOTED)


@pytest.mark.parametrize("older", [True, False])
def test_where_it_is_observed_nothing_waits_for_servers_that_cannot(*, older: bool) -> None:
    fleet = Fleet(mode="observe")
    name = fleet.begun()
    if older:
        fleet.older = set(fleet.pods)
    else:
        fleet.unavailable = dict.fromkeys(fleet.pods, "not-switchable")
    fleet.until(name, P.PROMOTED)
    assert fleet.proofs(name) == ()


def test_a_server_that_does_not_answer_now_is_asked_all_the_same() -> None:
    fleet = Fleet()
    fleet.unavailable, fleet.temporary = dict.fromkeys(fleet.pods, "no-answer"), True
    name = fleet.begun()
    fleet.until(name, P.PROVING)
    assert len(fleet.proofs(name)) == 1


def test_a_policy_that_asks_no_longer_ends_the_proof() -> None:
    fleet = Fleet()
    name = fleet.begun()
    fleet.until(name, P.PROVING)
    fleet.change_policy(liveProof={"mode": "off"})
    fleet.say(name, "ada")
    fleet.say(name, "ben")
    fleet.reconcile(name)
    (entry,) = fleet.proofs(name)
    assert (entry.verdict, entry.reason) == ("not-concluded", "interrupted")
    fleet.until(name, P.PROMOTED)


def test_an_order_that_is_made_again_is_proven_anew() -> None:
    fleet = Fleet()
    name = fleet.begun()
    fleet.until(name, P.PROVING)
    (before,) = fleet.proofs(name)
    pod = fleet.pods[before.uid]
    pod.epoch += 5
    pod.active = None  # another order came in between
    for _ in range(3):
        fleet.now += timedelta(minutes=1)
        fleet.reconcile(name)
        fleet.sidecar(before.uid)
    (entry,) = fleet.proofs(name)
    assert entry.epoch > before.epoch
    assert entry.since == before.since


def test_a_long_rule_is_shortened_to_what_a_report_holds() -> None:
    fleet = Fleet(maxDuration="9h")
    name = fleet.begun()
    fleet.until(name, P.PROVING)
    assert fleet.proofs(name)[0].rule.max_duration == timedelta(hours=2)


def test_a_pod_does_not_change_the_status_with_each_report() -> None:
    fleet = Fleet()
    name = fleet.begun()
    fleet.until(name, P.PROVING)
    resource = fleet.proposals[name]
    (entry,) = resource.status.live_proofs
    pods = fleet.facts(name).pods

    def reported(phase: str, before: LiveProofStatus) -> LiveProofStatus:
        said = ProofFact(epoch=entry.epoch, phase=phase)
        facts = [replace(pod, proof=said) for pod in pods]
        status = resource.status.model_copy(update={"live_proofs": (before,)})
        asked = resource.model_copy(update={"status": status})
        (found,) = observed(asked, facts, rule=fleet.live_rule, now=fleet.now)
        return found

    long = reported("long", entry)
    assert long.phase == "long"
    for phase in ("pilot", "short", "done", "", "long"):
        assert reported(phase, long) == long


def test_a_sentence_with_a_pods_own_numbers_fits_into_a_status() -> None:
    fleet = Fleet()
    name = fleet.begun()
    fleet.until(name, P.PROVING)
    resource, pods = fleet.proposals[name], fleet.facts(name).pods
    report = ProofReport(verdict=Verdict.NOT_CONCLUDED, reason=ProofReason.CONTRADICTED)
    said = ProofFact(epoch=resource.status.live_proofs[0].epoch, report=report, sentence="9" * 5000)
    facts = [replace(pod, proof=said) for pod in pods]
    (entry,) = observed(resource, facts, rule=fleet.live_rule, now=fleet.now)
    assert LiveProofStatus.model_validate(entry.model_dump()) == entry

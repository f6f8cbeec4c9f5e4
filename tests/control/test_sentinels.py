"""Which pods measure a promoted swap, and what a day of theirs means."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from tests.control.test_live_proofs import HARMS, HELPS, NONE, Fleet

from retuned.api.proposal import LiveProofStatus
from retuned.control import PodFact, RolloutFacts
from retuned.control.facts import MeasuredFact
from retuned.control.live_proofs import proof_orders
from retuned.control.sentinels import all_orders, measured, observed, sentinel_orders
from retuned.stages.gate import FreezeScope, LiveProofMode, TuningFreeze
from retuned.stages.watch import Consequence
from retuned.stages.watch.proof import ProofReport
from retuned_operator.schema import ProposalPhase as P


class Guarded(Fleet):
    """A fleet whose pods report days of sentinels."""

    def __init__(self, *, pods: int = 4, **rule: object) -> None:
        super().__init__(pods=pods, **rule)
        self.days: dict[str, ProofReport] = {}
        self.stopped = False

    def facts(self, name: str) -> RolloutFacts:
        facts, resource = super().facts(name), self.proposals[name]
        pods = tuple(self._with_day(pod, name) for pod in facts.pods)
        days = observed(resource, pods, now=self.now)
        promoted = resource.status.phase is P.PROMOTED
        rule = self.live_rule
        again = measured(days, rule=rule) if promoted else MeasuredFact()
        freeze = TuningFreeze(id="f", scope=FreezeScope(), reason="", user="ada", at=self.now)
        freezes = (freeze,) if self.stopped else facts.freezes
        return replace(facts, pods=pods, sentinels=days, repeated_proof=again, freezes=freezes)

    def _with_day(self, pod: PodFact, name: str) -> PodFact:
        report = self.days.get(pod.uid)
        orders = tuple(sentinel_orders(pod.uid, [self.proposals[name]]))
        if report is None or pod.proof is None or not orders:
            return pod
        said = replace(pod.proof, day_epoch=orders[0].epoch, day=report, day_sentence="a sentence")
        return replace(pod, proof=said)

    def promoted(self) -> str:
        name = self.begun()
        self.answers = lambda _: HELPS
        self.until(name, P.PROMOTED)
        self.look(name)
        return name

    def look(self, name: str) -> tuple[LiveProofStatus, ...]:
        self.now += timedelta(minutes=1)
        self.reconcile(name)
        return self.proposals[name].status.sentinels

    def asked_pods(self, name: str) -> set[str]:
        return {uid for uid in self.pods if list(sentinel_orders(uid, [self.proposals[name]]))}


def test_the_pod_that_proved_last_is_asked_after_the_promotion() -> None:
    fleet = Guarded()
    name = fleet.begun()
    fleet.until(name, P.PROVING)
    assert fleet.proposals[name].status.sentinels == ()
    fleet.answers = lambda _: HELPS
    fleet.until(name, P.PROMOTED)
    (entry,) = fleet.look(name)
    last = fleet.proofs(name)[-1]
    assert (entry.uid, entry.epoch, entry.verdict) == (last.uid, last.epoch, "")
    (order,) = all_orders(last.uid, [fleet.proposals[name]])
    assert (order.sentinel, order.epoch, order.rule) == (True, last.epoch, fleet.live_rule)
    assert fleet.asked_pods(name) == {last.uid}
    assert not proof_orders(last.uid, [fleet.proposals[name]])


def test_each_environment_has_a_sentinel() -> None:
    fleet = Guarded(pods=3)
    fleet.canary(3)
    fleet.environments = {"u2": "sha256:" + "f" * 64}
    name = fleet.promoted()
    assert len({each.environment for each in fleet.look(name)}) == 2
    assert "u2" in fleet.asked_pods(name)


def test_harm_rolls_back_with_the_reason_of_the_day_and_blames_the_artifact() -> None:
    fleet = Guarded()
    name = fleet.promoted()
    (entry,) = fleet.look(name)
    fleet.days = {entry.uid: HARMS}
    fleet.until(name, P.ROLLED_BACK)
    assert fleet.reason(name) == "sentinel-slower"
    assert {pod.active for pod in fleet.pods.values()} == {None}
    assert fleet.target.status.quarantine
    fleet.days = {}
    (after,) = fleet.look(name)
    assert after.verdict == "harms", "what was shown stays"
    assert fleet.asked_pods(name) == set()


def test_a_day_of_a_pod_that_is_not_asked_counts_for_nothing() -> None:
    fleet = Guarded()
    name = fleet.promoted()
    (entry,) = fleet.look(name)
    fleet.days = {uid: HARMS for uid in fleet.pods if uid != entry.uid}
    assert fleet.look(name)[0].verdict == ""
    assert fleet.proposals[name].status.phase is P.PROMOTED


@pytest.mark.parametrize("report", [HELPS, NONE])
def test_only_harm_follows_from_a_day_and_a_day_is_written_once(report: ProofReport) -> None:
    fleet = Guarded()
    name = fleet.promoted()
    (entry,) = fleet.look(name)
    fleet.days = {entry.uid: report}
    (first,) = fleet.look(name)
    assert (first.verdict, first.phase) == (str(report.verdict), "sentinel")
    assert fleet.look(name) == (first,)
    assert fleet.proposals[name].status.phase is P.PROMOTED


def test_where_it_is_observed_harm_is_kept_and_reported() -> None:
    fleet = Guarded(mode="observe")
    name = fleet.promoted()
    (entry,) = fleet.look(name)
    fleet.days = {entry.uid: HARMS}
    assert fleet.look(name)[0].verdict == "harms"
    assert fleet.proposals[name].status.phase is P.PROMOTED
    fleet.days = {entry.uid: HELPS}
    assert fleet.look(name)[0].verdict == "helps", "the next day is reported as well"


def test_a_rule_that_cannot_be_read_makes_harm_wait() -> None:
    fleet = Guarded()
    name = fleet.promoted()
    (entry,) = fleet.look(name)
    harmed = entry.model_copy(update={"verdict": "harms", "reason": "slower"})
    assert measured((harmed,), rule=None).consequence is Consequence.WAIT
    off = fleet.live_rule.model_copy(update={"mode": LiveProofMode.OFF})
    assert measured((harmed,), rule=off).consequence is Consequence.KEEP


def test_while_frozen_no_pod_is_asked() -> None:
    fleet = Guarded()
    name = fleet.promoted()
    fleet.stopped = True
    (entry,) = fleet.look(name)
    assert (entry.phase, fleet.asked_pods(name)) == ("", set())
    fleet.stopped = False
    fleet.look(name)
    assert fleet.asked_pods(name) == {entry.uid}


def test_without_a_pod_that_has_proved_nothing_is_asked() -> None:
    fleet = Guarded()
    name = fleet.promoted()
    for proof in fleet.proofs(name):
        fleet.replace_pod(proof.uid)
    (entry,) = fleet.look(name)
    assert (entry.phase, fleet.asked_pods(name)) == ("", set())

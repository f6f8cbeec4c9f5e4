"""Which swaps an alarm may try off, and what a trial of a pod means."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from tests.control.test_live_proofs import HARMS, HELPS, NONE, Fleet

from retuned.api.proposal import LiveProofStatus
from retuned.control import RolloutFacts, sentinels
from retuned.control.attributions import CAUSE, alarm_orders, observed
from retuned.control.orders import desired_orders
from retuned.stages.gate import FreezeScope, LiveProofMode, TuningFreeze
from retuned.stages.watch.proof import ProofReport
from retuned_operator.schema import ProposalPhase as P


class Alarmed(Fleet):
    """A fleet whose pods report trials of alarms."""

    def __init__(self, *, pods: int = 4, **rule: object) -> None:
        super().__init__(pods=pods, **rule)
        self.trials: dict[str, tuple[int, ProofReport]] = {}
        """What a pod reports, by its uid: the epoch of the order that it tried, and the verdict."""
        self.stopped = False

    def facts(self, name: str) -> RolloutFacts:
        facts, resource = super().facts(name), self.proposals[name]
        pods = tuple(
            replace(
                pod,
                proof=replace(
                    pod.proof,
                    trial_epoch=self.trials[pod.uid][0],
                    trial=self.trials[pod.uid][1],
                    trial_sentence="a sentence",
                ),
            )
            if pod.proof is not None and pod.uid in self.trials
            else pod
            for pod in facts.pods
        )
        found = observed(resource, pods, now=self.now)
        again = sentinels.measured(found, rule=self.live_rule, cause=CAUSE)
        freeze = TuningFreeze(id="f", scope=FreezeScope(), reason="", user="ada", at=self.now)
        freezes = (freeze,) if self.stopped else facts.freezes
        return replace(facts, pods=pods, attributions=found, repeated_proof=again, freezes=freezes)

    def promoted(self) -> str:
        name = self.begun()
        self.answers = lambda _: HELPS
        self.until(name, P.PROMOTED)
        self.look(name)
        return name

    def look(self, name: str) -> tuple[LiveProofStatus, ...]:
        self.now += timedelta(minutes=1)
        self.reconcile(name)
        return self.proposals[name].status.attributions

    def may_try(self, name: str) -> set[str]:
        return {uid for uid in self.pods if alarm_orders(uid, [self.proposals[name]])}

    def tried(self, name: str, uid: str, report: ProofReport, *, later: int = 0) -> None:
        rollout = self.proposals[name].status.rollout
        assert rollout is not None
        epoch = next(each.epoch for each in rollout.pods if each.uid == uid)
        self.trials[uid] = (epoch + later, report)


def test_pods_may_try_a_swap_off_once_no_rollout_or_proof_needs_it() -> None:
    fleet = Alarmed()
    name = fleet.begun()
    fleet.until(name, P.PROVING)
    assert fleet.may_try(name) == set()
    fleet.answers = lambda _: HELPS
    fleet.until(name, P.WATCHING, P.PROMOTED)
    fleet.look(name)
    assert fleet.may_try(name) == set(fleet.pods)
    (order,) = alarm_orders("u1", [fleet.proposals[name]])
    assert (order.name, order.rule) == (f"serving/{name}", fleet.live_rule)
    sent = desired_orders("p", "u1", target=fleet.target, proposals=[fleet.proposals[name]])
    assert [each.id for each in sent] == [order.order]


def test_harm_that_any_pod_shows_rolls_the_swap_back_and_stays() -> None:
    fleet = Alarmed()
    name = fleet.promoted()
    fleet.tried(name, "u1", NONE)
    fleet.tried(name, "u2", HARMS)
    fleet.until(name, P.ROLLED_BACK)
    assert fleet.reason(name) == "attribution-slower"
    assert {pod.active for pod in fleet.pods.values()} == {None}
    assert fleet.target.status.quarantine
    fleet.trials = {}
    assert [each.verdict for each in fleet.look(name)] == ["no-measurable-effect", "harms"]
    assert fleet.may_try(name) == set()


@pytest.mark.parametrize("report", [HELPS, NONE])
def test_only_harm_follows_from_a_trial_and_it_is_written_once(report: ProofReport) -> None:
    fleet = Alarmed()
    name = fleet.promoted()
    fleet.tried(name, "u1", report)
    (first,) = fleet.look(name)
    assert (first.uid, first.verdict, first.phase) == ("u1", str(report.verdict), "done")
    assert fleet.look(name) == (first,)
    assert fleet.proposals[name].status.phase is P.PROMOTED


def test_the_newest_trial_of_a_pod_replaces_the_one_before() -> None:
    fleet = Alarmed(mode="observe")
    name = fleet.promoted()
    fleet.tried(name, "u1", HARMS)
    assert [each.verdict for each in fleet.look(name)] == ["harms"]
    fleet.tried(name, "u2", NONE)
    fleet.look(name)
    fleet.tried(name, "u1", HELPS)
    assert [(e.uid, e.verdict) for e in fleet.look(name)] == [
        ("u2", "no-measurable-effect"),
        ("u1", "helps"),
    ]
    assert fleet.proposals[name].status.phase is P.PROMOTED


def test_a_trial_of_another_order_counts_for_nothing() -> None:
    fleet = Alarmed()
    name = fleet.promoted()
    fleet.tried(name, "u1", HARMS, later=1)
    assert fleet.look(name) == ()
    assert fleet.proposals[name].status.phase is P.PROMOTED


def test_while_frozen_no_swap_may_be_tried() -> None:
    fleet = Alarmed()
    name = fleet.promoted()
    fleet.stopped = True
    fleet.look(name)
    assert fleet.may_try(name) == set()
    fleet.tried(name, "u1", HARMS)
    assert fleet.look(name) == ()
    fleet.stopped = False
    fleet.look(name)
    assert fleet.may_try(name) == set(fleet.pods)


def test_a_policy_that_measures_nothing_lets_no_swap_be_tried() -> None:
    fleet = Alarmed()
    name = fleet.promoted()
    fleet.change_policy(liveProof={"mode": "off"})
    fleet.look(name)
    assert fleet.may_try(name) == set()


def test_harm_that_waits_for_its_rollback_is_not_written_over() -> None:
    fleet = Alarmed()
    name = fleet.promoted()
    fleet.tried(name, "u1", NONE)
    (entry,) = fleet.look(name)
    resource = fleet.proposals[name]
    harm = entry.model_copy(update={"verdict": "harms", "reason": "slower"})
    status = resource.status.model_copy(update={"attributions": (harm,)})
    waiting = resource.model_copy(update={"status": status})
    pods = fleet.facts(name).pods
    assert observed(waiting, pods, now=fleet.now) == (harm,)
    rule = harm.rule.model_copy(update={"mode": LiveProofMode.OBSERVE})
    seen = status.model_copy(update={"attributions": (harm.model_copy(update={"rule": rule}),)})
    (after,) = observed(resource.model_copy(update={"status": seen}), pods, now=fleet.now)
    assert after.verdict == "no-measurable-effect"

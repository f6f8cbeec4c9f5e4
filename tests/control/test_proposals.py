from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from tests.expect import raises_naming
from tests.operators import examples
from tests.operators.world import World, with_facts

from retuned.api.proposal import PodState
from retuned.api.target import Quarantined
from retuned.control import MeasuredFact, PageOnCall, PodFact, order_for, proposal
from retuned.control.analysis import Compared
from retuned.control.facts import HeldFact
from retuned.control.rollout import ROLLBACK_PATIENCE
from retuned.control.waves import next_look_at
from retuned.stages.gate import DecisionKind, StopPolicy
from retuned.stages.watch import Consequence, WatchAction, WatchReport
from retuned_operator.schema import ProposalPhase as P
from retuned_operator.schema import SwapProposal

OPEN = datetime(2026, 3, 3, 1, 0, tzinfo=UTC)
"""A Tuesday, two o'clock in Berlin, in the window."""
NEW = examples.ARTIFACT
OTHER = "sha256:" + "9" * 64
WORSE = Compared(before=1.0, now=1.3, samples=500)


def world(**changes: int) -> World:
    return World(OPEN, **changes)


def approved(w: World) -> str:
    name = w.propose(NEW)
    w.reconcile(name)
    w.say(name, "ada")
    w.say(name, "ben")
    return name


def phase(w: World, name: str) -> P:
    return w.proposals[name].status.phase


def until(w: World, name: str, wanted: P, *, minutes: int = 120) -> None:
    for _ in range(minutes):
        for uid in list(w.pods):
            w.sidecar(uid)
        w.reconcile(name)
        if phase(w, name) is wanted:
            return
        w.now += timedelta(minutes=1)
    raise AssertionError(f"{wanted} not reached, but {w.proposals[name].status}")


def active(w: World) -> list[str | None]:
    return [pod.active for pod in w.pods.values()]


def test_a_proposal_waits_for_two_people_of_two_groups() -> None:
    w = world()
    name = w.propose(NEW)
    w.reconcile(name)
    assert phase(w, name) is P.AWAITING_APPROVAL
    w.say(name, "ada")
    w.reconcile(name)
    status = w.proposals[name].status
    assert status.phase is P.AWAITING_APPROVAL
    assert status.gate is not None
    assert status.gate.missing == 1
    assert status.gate.policy_generation == 1
    w.say(name, "ben")
    w.reconcile(name)
    assert phase(w, name) is P.CANARY


def test_an_approved_swap_goes_from_canary_over_waves_to_every_pod_and_is_kept() -> None:
    w = world()
    name = approved(w)
    until(w, name, P.PROMOTED)
    w.settle(rounds=3)
    assert active(w) == [NEW] * 4
    (entry,) = w.target.status.active_kernels
    assert entry.digest == NEW
    assert entry.proposal == name
    seen = [step.to for step in w.proposals[name].status.history]
    assert seen == [
        P.AWAITING_APPROVAL,
        P.APPROVED,
        P.CANARY,
        P.ANALYZING,
        P.PROMOTING,
        P.ANALYZING,
        P.PROMOTING,
        P.ANALYZING,
        P.WATCHING,
        P.PROMOTED,
    ]


def test_the_canary_is_one_pod_until_it_has_baked() -> None:
    w = world()
    name = approved(w)
    until(w, name, P.ANALYZING)
    for _ in range(4):
        w.reconcile(name)
        w.now += timedelta(minutes=1)
    assert active(w).count(NEW) == 1


def test_a_wave_is_looked_at_when_its_look_is_due_and_not_later() -> None:
    w = world()
    name = approved(w)
    until(w, name, P.ANALYZING)
    rule = w.policy().policy.spec.rollout
    due = next_look_at(w.proposals[name].status, rule)
    assert due is not None
    w.now = due - timedelta(seconds=7)
    assert w.reconcile(name).look_again_at == due
    w.now = due - timedelta(hours=1)
    assert w.reconcile(name).look_again_at == w.now + timedelta(seconds=30)


def test_a_pod_that_comes_while_it_is_watched_gets_it_too() -> None:
    w = world()
    name = approved(w)
    until(w, name, P.WATCHING)
    w.replace_pod("u2")
    until(w, name, P.PROMOTED)
    assert active(w) == [NEW] * 4


@pytest.mark.parametrize("at", [P.CANARY, P.ANALYZING, P.PROMOTING, P.WATCHING, P.PROMOTED])
def test_an_abort_goes_back_from_everywhere_in_a_closed_window_and_a_freeze(at: P) -> None:
    w = world()
    name = approved(w)
    until(w, name, at)
    w.now = w.now.replace(hour=12)
    w.freeze(StopPolicy.HOLD)
    w.abort(name)
    w.reconcile(name)
    assert phase(w, name).is_going_back or phase(w, name) is P.ROLLED_BACK
    until(w, name, P.ROLLED_BACK)
    w.settle(rounds=3)
    assert active(w) == [None] * 4
    assert w.target.status.active_kernels == ()
    assert w.target.status.quarantine == ()


@pytest.mark.parametrize("report", ["rollback", "tripped"])
def test_harm_in_one_pod_takes_all_back_and_quarantines_the_artifact(report: str) -> None:
    w = world()
    name = approved(w)
    until(w, name, P.WATCHING)
    if report == "tripped":
        w.pods["u1"].tripped, w.pods["u1"].active = "errors", None
    else:
        w.pods["u1"].report = report
    until(w, name, P.ROLLED_BACK)
    w.settle(rounds=2)
    assert active(w) == [None] * 4
    (entry,) = w.target.status.quarantine
    assert entry.digest == NEW
    assert timedelta(days=1) < entry.until - w.now <= timedelta(days=2)


def test_a_quarantined_artifact_is_not_swapped_again_until_its_time_is_over() -> None:
    w = world()
    name = approved(w)
    until(w, name, P.WATCHING)
    w.pods["u1"].report = "rollback"
    until(w, name, P.ROLLED_BACK)
    w.reconcile(name)
    w.pods["u1"].report = "keep"
    again = approved(w)
    assert phase(w, again) is P.INVALID
    w.now += timedelta(days=2)
    later = approved(w)
    until(w, later, P.PROMOTED)


def test_no_data_pauses_and_a_person_lets_it_go_on_once() -> None:
    w = world()
    name = approved(w)
    until(w, name, P.ANALYZING)
    for pod in w.pods.values():
        pod.report = "none"
    until(w, name, P.PAUSED)
    w.now += timedelta(minutes=1)
    w.say(name, "mallory")
    w.reconcile(name)
    assert phase(w, name) is P.PAUSED
    w.say(name, "eve")
    w.reconcile(name)
    assert phase(w, name) is P.ANALYZING
    until(w, name, P.PAUSED)
    w.reconcile(name)
    assert phase(w, name) is P.PAUSED


@pytest.mark.parametrize("report", ["none", "wait"])
def test_no_data_never_promotes(report: str) -> None:
    w = world()
    name = approved(w)
    until(w, name, P.WATCHING)
    w.pods["u3"].report = report
    with raises_naming(AssertionError, "Promoted", "pods-not-proven"):
        until(w, name, P.PROMOTED, minutes=200)


def test_a_metric_without_data_is_no_pass_and_one_that_fails_too_often_goes_back() -> None:
    w = world()
    metric = {"name": "ttft_p95", "query": "q", "max": "1.02x baseline"}
    w._policy["spec"]["rollout"]["analysis"]["metrics"] = [metric]
    name = approved(w)
    until(w, name, P.PAUSED)
    w = world()
    w._policy["spec"]["rollout"]["analysis"]["metrics"] = [metric]
    name = approved(w)
    until(w, name, P.ANALYZING)
    for _ in range(10):
        facts = with_facts(w.facts(name), metrics={"ttft_p95": WORSE})
        step = proposal.step(w.proposals[name], facts, now=w.now)
        w.proposals[name] = w.proposals[name].model_copy(update={"status": step.status})
        w.now += timedelta(minutes=1)
        if phase(w, name).is_going_back:
            break
    assert phase(w, name) is P.ROLLING_BACK
    assert w.proposals[name].status.reason == "analysis-failed"
    assert w.proposals[name].status.detail == "ttft_p95 is 1.3, before 1, at most 1.02"
    until(w, name, P.ROLLED_BACK)
    assert w.proposals[name].status.reason == "analysis-failed"


def test_nothing_starts_while_another_rollout_is_on_the_same_servers() -> None:
    w = world()
    first = approved(w)
    until(w, first, P.CANARY)
    second = w.propose(OTHER)
    other = w.proposals[second]
    spec = other.spec.model_copy(update={"kernel": "softmax"})
    w.proposals[second] = other.model_copy(update={"spec": spec})
    w.say(second, "ada")
    w.say(second, "ben")
    w.reconcile(second)
    assert phase(w, second) is P.SCHEDULED
    assert w.proposals[second].status.reason == "other-rollout"


def test_a_newer_proposal_for_the_kernel_supersedes_one_that_waits() -> None:
    w = world()
    first = w.propose(NEW)
    w.now += timedelta(minutes=1)
    w.propose(OTHER)
    w.reconcile(first)
    assert phase(w, first) is P.SUPERSEDED


def test_another_world_supersedes_a_proposal() -> None:
    for change in ({"environment": examples.POLICY}, None):
        w = world()
        name = w.propose(NEW)
        facts = w.facts(name)
        if change is None:
            facts = with_facts(facts, live_baseline=OTHER)
        else:
            status = w.target.status.model_copy(update=change)
            facts = with_facts(facts, target=w.target.model_copy(update={"status": status}))
        assert proposal.step(w.proposals[name], facts, now=w.now).status.phase is P.SUPERSEDED


@pytest.mark.parametrize(
    "unknown",
    [
        {"policies": None},
        {"decisions": None},
        {"freezes": None},
        {"live_baseline": None},
        {"slo_firing": None},
        {"evidence_checked": False},
        {"pods": ()},
    ],
    ids=lambda each: next(iter(each)),
)
def test_what_is_not_known_lets_nothing_start(unknown: dict[str, object]) -> None:
    w = world()
    name = approved(w)
    step = proposal.step(w.proposals[name], with_facts(w.facts(name), **unknown), now=w.now)
    assert step.status.phase.is_before_swap
    assert step.status.rollout is None
    assert step.status.reason


def test_what_cannot_be_read_in_the_middle_holds_and_does_not_keep_from_going_back() -> None:
    w = world()
    name = approved(w)
    until(w, name, P.ANALYZING)
    w.readable = False
    w.now += timedelta(minutes=30)
    w.reconcile(name)
    assert active(w).count(NEW) == 1
    w.pods[next(u for u, p in w.pods.items() if p.active == NEW)].report = "rollback"
    w.reconcile(name)
    assert phase(w, name).is_going_back


def test_evidence_that_does_not_carry_it_ends_a_proposal() -> None:
    w = world()
    name = approved(w)
    facts = with_facts(w.facts(name), evidence_fault="evidence-altered")
    step = proposal.step(w.proposals[name], facts, now=w.now)
    assert (step.status.phase, step.status.reason) == (P.INVALID, "evidence-altered")


@pytest.mark.parametrize(
    ("kind", "ends"), [(DecisionKind.REJECT, P.REJECTED), (DecisionKind.ABORT, P.ABORTED)]
)
def test_one_person_ends_it(kind: DecisionKind, ends: P) -> None:
    w = world()
    name = approved(w)
    w.say(name, "mallory", kind)
    w.reconcile(name)
    assert phase(w, name) is ends


def test_a_no_in_the_middle_of_a_rollout_sends_it_back() -> None:
    w = world()
    name = approved(w)
    until(w, name, P.PROMOTING)
    w.say(name, "ben", DecisionKind.REJECT)
    until(w, name, P.ROLLED_BACK)
    assert active(w) == [None] * 4


def test_nobody_in_time_is_expired_and_never_approved() -> None:
    w = world()
    name = w.propose(NEW)
    w.now += timedelta(hours=48)
    w.say(name, "ada")
    w.say(name, "ben")
    w.reconcile(name)
    assert phase(w, name) is P.EXPIRED


def test_an_approval_that_has_begun_to_work_does_not_expire() -> None:
    w = world()
    name = approved(w)
    until(w, name, P.ANALYZING)
    w.now += timedelta(hours=72)
    until(w, name, P.PROMOTED)


def test_another_policy_in_the_middle_holds_it_until_people_agree_again() -> None:
    w = world()
    name = approved(w)
    until(w, name, P.ANALYZING)
    w.change_policy(priority=7)
    w.now += timedelta(minutes=10)
    for _ in range(10):
        w.reconcile(name)
        w.now += timedelta(minutes=1)
    assert active(w).count(NEW) == 1
    w.say(name, "ada")
    w.say(name, "ben")
    until(w, name, P.PROMOTED)


def test_words_on_another_digest_uid_or_generation_do_not_count() -> None:
    w = world()
    name = w.propose(NEW)
    for user in ("ada", "ben"):
        w.say(name, user, digest=OTHER)
        w.say(name, user, uid="somebody-else")
        w.say(name, user, generation=7)
    w.reconcile(name)
    assert phase(w, name) is P.AWAITING_APPROVAL


def test_the_requester_does_not_approve() -> None:
    w = world()
    name = w.propose(NEW, requested_by="Ada")
    w.say(name, "ada")
    w.say(name, "ben")
    w.reconcile(name)
    assert phase(w, name) is P.AWAITING_APPROVAL


def test_broken_glass_reaches_so_many_pods_until_the_others_agree() -> None:
    w = world()
    name = w.propose(NEW)
    w.now = w.now.replace(hour=12)
    w.say(name, "lea", DecisionKind.BREAK_GLASS)
    until(w, name, P.WATCHING)
    w.now += timedelta(hours=1)
    w.reconcile(name)
    assert active(w).count(NEW) == 1
    assert phase(w, name) is P.WATCHING
    w.say(name, "ada")
    w.say(name, "ben")
    w.now = OPEN + timedelta(days=1)
    until(w, name, P.PROMOTED)
    assert active(w) == [NEW] * 4


def test_glass_that_is_broken_in_the_middle_reaches_no_further() -> None:
    w = world()
    name = approved(w)
    until(w, name, P.ANALYZING)
    w.change_policy(priority=7)
    w.say(name, "lea", DecisionKind.BREAK_GLASS)
    for _ in range(30):
        w.reconcile(name)
        for uid in w.pods:
            w.sidecar(uid)
        w.now += timedelta(minutes=1)
    assert active(w).count(NEW) == 1
    assert phase(w, name) is not P.PROMOTED


def test_a_window_that_stops_sends_it_back_and_one_that_lets_finish_holds_it() -> None:
    for overrun, ends in (("Finish", P.ANALYZING), ("Stop", P.ROLLED_BACK)):
        w = world()
        for window in w._policy["spec"]["windows"]:
            window["overrun"] = overrun
        name = approved(w)
        until(w, name, P.ANALYZING)
        w.now = w.now.replace(hour=12)
        for _ in range(5):
            w.reconcile(name)
            for uid in w.pods:
                w.sidecar(uid)
            w.now += timedelta(minutes=5)
        assert phase(w, name) is ends
        assert active(w).count(NEW) == (1 if overrun == "Finish" else 0)


@pytest.mark.parametrize("policy", StopPolicy)
@pytest.mark.parametrize("at", [P.ANALYZING, P.PROMOTED])
def test_a_freeze_does_what_it_says(policy: StopPolicy, at: P) -> None:
    w = world()
    name = approved(w)
    until(w, name, at)
    before = active(w).count(NEW)
    w.freeze(policy)
    w.now += timedelta(minutes=10)
    w.settle(rounds=10)
    goes_back = {
        StopPolicy.HOLD: False,
        StopPolicy.HOLD_AND_DRAIN: at is P.ANALYZING,
        StopPolicy.HOLD_AND_ROLLBACK: True,
    }[policy]
    assert active(w).count(NEW) == (0 if goes_back else before)


def test_a_pod_that_does_not_go_back_pages_somebody_and_is_told_on() -> None:
    w = world()
    name = approved(w)
    until(w, name, P.WATCHING)
    w.abort(name)
    w.reconcile(name)
    w.now += ROLLBACK_PATIENCE
    step = w.reconcile(name)
    assert phase(w, name) is P.ROLLBACK_FAILED
    assert any(isinstance(action, PageOnCall) for action in step.actions)
    until(w, name, P.ROLLED_BACK)


def test_a_pod_that_does_not_swap_in_time_sends_all_back_without_blame() -> None:
    w = world()
    name = approved(w)
    w.reconcile(name)
    w.now += timedelta(minutes=10)
    w.reconcile(name)
    assert phase(w, name).is_going_back or phase(w, name) is P.ROLLED_BACK
    assert w.target.status.quarantine == ()


def test_a_pod_that_was_away_and_comes_back_with_the_artifact_goes_back_too() -> None:
    w = world()
    name = approved(w)
    until(w, name, P.WATCHING)
    away = w.pods.pop("u3")
    w.abort(name)
    until(w, name, P.ROLLED_BACK)
    w.pods["u3"] = away
    w.settle(rounds=3)
    assert active(w) == [None] * 4
    assert phase(w, name) is P.ROLLED_BACK


def test_the_way_back_from_a_second_swap_leads_to_the_first() -> None:
    w = world()
    first = approved(w)
    until(w, first, P.PROMOTED)
    w.reconcile(first)
    w.now += timedelta(minutes=5)
    second = w.propose(OTHER)
    w.say(second, "ada")
    w.say(second, "ben")
    until(w, second, P.PROMOTED)
    w.settle(rounds=2)
    assert active(w) == [OTHER] * 4
    w.abort(second)
    until(w, second, P.ROLLED_BACK)
    w.settle(rounds=3)
    assert active(w) == [NEW] * 4
    assert w.target.status.active_kernels[0].proposal == first
    assert phase(w, first) is P.PROMOTED


def test_a_pod_that_restarts_after_promotion_gets_what_ought_to_run() -> None:
    w = world()
    name = approved(w)
    until(w, name, P.PROMOTED)
    w.reconcile(name)
    w.replace_pod("u0")
    w.settle(rounds=2)
    assert active(w) == [NEW] * 4


def test_who_does_not_lead_does_nothing() -> None:
    w = world()
    name = approved(w)
    w.leading = False
    before = w.proposals[name]
    step = w.reconcile(name)
    assert w.proposals[name] == before
    assert step.actions == ()


def test_an_order_says_the_way_back_as_well_as_the_way_there() -> None:
    w = world()
    name = approved(w)
    w.reconcile(name)
    resource = w.proposals[name]
    rollout = resource.status.rollout
    assert rollout is not None
    (told,) = rollout.pods
    order = order_for(resource, told)
    assert (order.artifact, order.previous) == (NEW, None)
    back = order_for(
        resource, told.model_copy(update={"wants": PodState.BACK, "epoch": told.epoch + 1})
    )
    assert (back.artifact, back.previous, back.epoch) == (None, NEW, order.epoch + 1)


def test_a_proposal_without_a_rollout_orders_nothing() -> None:
    w = world()
    name = approved(w)
    w.reconcile(name)
    resource = w.proposals[name]
    rollout = resource.status.rollout
    assert rollout is not None
    bare = resource.model_copy(
        update={"status": resource.status.model_copy(update={"rollout": None})}
    )
    with raises_naming(ValueError, "swp-1", "rollout"):
        order_for(bare, rollout.pods[0])


def test_a_rollout_whose_record_is_lost_goes_back() -> None:
    w = world()
    name = approved(w)
    until(w, name, P.WATCHING)
    status = w.proposals[name].status.model_copy(update={"rollout": None})
    w.proposals[name] = w.proposals[name].model_copy(update={"status": status})
    until(w, name, P.ROLLED_BACK)
    assert active(w) == [None] * 4


def test_few_pods_are_swapped_at_one_time() -> None:
    w = world(pods=10)
    name = approved(w)
    seen = []
    for _ in range(60):
        w.reconcile(name)
        rollout = w.proposals[name].status.rollout
        assert rollout is not None
        seen.append(sum(not told.done for told in rollout.pods))
        for uid in list(w.pods):
            w.sidecar(uid)
        w.now += timedelta(minutes=1)
    assert phase(w, name) is P.PROMOTED
    assert max(seen) == 2


def test_no_further_pod_is_touched_while_too_few_are_healthy() -> None:
    w = world()
    name = approved(w)
    until(w, name, P.ANALYZING)
    for uid in ("u2", "u3"):
        w.pods[uid].ready = False
    w.now += timedelta(minutes=30)
    for _ in range(5):
        w.reconcile(name)
        for uid in w.pods:
            w.sidecar(uid)
        w.now += timedelta(minutes=1)
    assert active(w).count(NEW) == 1
    for pod in w.pods.values():
        pod.ready = True
    until(w, name, P.PROMOTED)


def late(w: World) -> str:
    """Return a proposal whose approvals came in time, and whose time is over by now."""
    name = approved(w)
    until(w, name, P.ANALYZING)
    w.now += timedelta(hours=72)
    return name


def test_after_its_expiry_a_rollout_goes_on_under_the_same_policy_only() -> None:
    w = world()
    name = late(w)
    w.change_policy(priority=7)
    for _ in range(10):
        w.reconcile(name)
        for uid in w.pods:
            w.sidecar(uid)
        w.now += timedelta(minutes=1)
    assert active(w).count(NEW) == 1
    assert phase(w, name) is P.ANALYZING


def test_after_its_expiry_a_rollout_is_still_held_by_a_freeze() -> None:
    w = world()
    name = late(w)
    w.freeze(StopPolicy.HOLD)
    for _ in range(10):
        w.reconcile(name)
        for uid in w.pods:
            w.sidecar(uid)
        w.now += timedelta(minutes=1)
    assert active(w).count(NEW) == 1
    w.freezes.clear()
    until(w, name, P.PROMOTED)


def test_an_artifact_that_is_quarantined_in_the_middle_goes_no_further() -> None:
    w = world()
    name = approved(w)
    until(w, name, P.ANALYZING)
    entry = Quarantined(digest=NEW, until=w.now + timedelta(days=1), reason="elsewhere")
    status = w.target.status.model_copy(update={"quarantine": (entry,)})
    w.target = w.target.model_copy(update={"status": status})
    w.now += timedelta(minutes=30)
    for _ in range(5):
        w.reconcile(name)
        for uid in w.pods:
            w.sidecar(uid)
        w.now += timedelta(minutes=1)
    assert active(w).count(NEW) == 1


@pytest.mark.parametrize("at", [P.CANARY, P.ANALYZING, P.PROMOTING, P.WATCHING, P.PROMOTED])
def test_a_step_that_changes_nothing_writes_nothing(at: P) -> None:
    w = world()
    name = approved(w)
    until(w, name, at)
    w.reconcile(name)
    before = w.proposals[name]
    w.now += timedelta(seconds=1)
    w.reconcile(name)
    assert w.proposals[name] == before


def test_a_proposal_that_waits_is_not_written_again_and_again() -> None:
    w = world()
    name = w.propose(NEW)
    w.reconcile(name)
    before = w.proposals[name]
    w.now += timedelta(seconds=1)
    step = w.reconcile(name)
    assert w.proposals[name] == before
    assert step.look_again_at is not None
    assert step.look_again_at > w.now


def held_by_the_server(w: World, name: str, *, reason: str) -> dict[str, tuple[PodFact, ...]]:
    """Return facts in which every pod refuses its newest order for good."""
    rollout = w.proposals[name].status.rollout
    assert rollout is not None
    told = {each.uid: each.epoch for each in rollout.pods}
    pods = tuple(
        replace(pod.fact(), held=HeldFact(epoch=told.get(pod.uid, 0), final=True, reason=reason))
        for pod in w.pods.values()
    )
    return {"pods": pods}


def test_a_freeze_takes_back_an_order_that_no_process_has_and_orders_it_anew_later() -> None:
    w = world()
    name = approved(w)
    w.reconcile(name)
    rollout = w.proposals[name].status.rollout
    assert phase(w, name) is P.CANARY
    assert rollout is not None
    first = rollout.pods[0].epoch
    w.freeze(StopPolicy.HOLD, hours=1)
    w.reconcile(name)
    assert phase(w, name) is P.SCHEDULED
    assert w.proposals[name].status.reason == "frozen"
    w.now += timedelta(hours=1)
    until(w, name, P.ANALYZING)
    rollout = w.proposals[name].status.rollout
    assert rollout is not None
    assert rollout.pods[0].epoch > first, "a node agent commits an epoch once"


def test_a_freeze_leaves_an_order_that_a_process_may_have() -> None:
    w = world()
    name = approved(w)
    w.reconcile(name)
    rollout = w.proposals[name].status.rollout
    assert rollout is not None
    told = rollout.pods[0]
    w.freeze(StopPolicy.HOLD)
    pods = tuple(
        replace(pod.fact(), newest_epoch=told.epoch) if pod.uid == told.uid else pod.fact()
        for pod in w.pods.values()
    )
    step = proposal.step(w.proposals[name], with_facts(w.facts(name), pods=pods), now=w.now)
    assert (step.status.phase, step.status.reason) == (P.CANARY, "frozen")


def test_a_window_that_closes_before_any_commit_leaves_the_proposal_scheduled() -> None:
    w = world()
    for window in w._policy["spec"]["windows"]:
        window["overrun"] = "Stop"
    name = approved(w)
    w.reconcile(name)
    assert phase(w, name) is P.CANARY
    w.now = w.now.replace(hour=5, minute=59)  # seven o'clock in Berlin comes in a minute
    w.proposals[name] = with_fresh_orders(w, name)
    w.now += timedelta(minutes=2)
    w.reconcile(name)
    assert (phase(w, name), w.proposals[name].status.reason) == (P.SCHEDULED, "window-closed")


def with_fresh_orders(w: World, name: str) -> SwapProposal:
    """Return a proposal whose orders were made just now, so that none is late."""
    resource = w.proposals[name]
    rollout = resource.status.rollout
    assert rollout is not None
    pods = tuple(each.model_copy(update={"since": w.now}) for each in rollout.pods)
    status = resource.status.model_copy(
        update={"rollout": rollout.model_copy(update={"pods": pods})}
    )
    return resource.model_copy(update={"status": status})


def test_a_server_that_refuses_the_original_pages_at_once() -> None:
    w = world()
    name = approved(w)
    until(w, name, P.WATCHING)
    w.abort(name)
    w.reconcile(name)
    facts = with_facts(w.facts(name), **held_by_the_server(w, name, reason="unknown-slot"))
    step = proposal.step(w.proposals[name], facts, now=w.now)
    assert step.status.phase is P.ROLLBACK_FAILED
    assert any(isinstance(action, PageOnCall) for action in step.actions)


def test_a_pod_that_restored_the_original_has_rolled_back() -> None:
    w = world()
    name = approved(w)
    until(w, name, P.WATCHING)
    w.abort(name)
    w.reconcile(name)
    for pod in w.pods.values():  # the previous variant was unavailable there
        pod.active, pod.epoch = None, pod.epoch + 9
    w.reconcile(name)
    assert phase(w, name) is P.ROLLED_BACK


def test_a_promoted_swap_that_is_nowhere_in_force_ends() -> None:
    w = world()
    name = approved(w)
    until(w, name, P.PROMOTED)
    w.settle(rounds=3)
    for pod in w.pods.values():
        pod.active, pod.epoch = None, pod.epoch + 9
    w.reconcile(name)
    status = w.proposals[name].status
    assert status.phase.is_going_back or status.phase is P.ROLLED_BACK
    assert any(step.reason == "not-in-force" for step in status.history)
    assert w.target.status.quarantine == ()


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"unavailable": "end-to-end-unavailable"}, "end-to-end-unavailable"),
        ({"pods": (PodFact(name="chat-0", uid="u0", ready=False),)}, "pods-not-ready"),
    ],
)
def test_what_cannot_start_now_is_scheduled(facts: dict[str, object], reason: str) -> None:
    w = world()
    name = approved(w)
    step = proposal.step(w.proposals[name], with_facts(w.facts(name), **facts), now=w.now)
    assert (step.status.phase, step.status.reason) == (P.SCHEDULED, reason)


def test_a_measurement_of_the_whole_server_holds_or_ends_a_swap() -> None:
    w = world()
    name = approved(w)
    until(w, name, P.WATCHING)
    w.now += timedelta(minutes=30)
    waits = MeasuredFact(consequence=Consequence.WAIT)
    step = proposal.step(w.proposals[name], with_facts(w.facts(name), end_to_end=waits), now=w.now)
    assert (step.status.phase, step.status.reason) == (P.WATCHING, "end-to-end-running")
    failed = MeasuredFact(consequence=Consequence.REVERT, reason="end-to-end-slower")
    step = proposal.step(w.proposals[name], with_facts(w.facts(name), end_to_end=failed), now=w.now)
    assert (step.status.phase, step.status.reason) == (P.ROLLING_BACK, "end-to-end-slower")


def test_each_wave_is_proven_on_live_traffic_before_the_next() -> None:
    w = world()
    w.live_proof = MeasuredFact(consequence=Consequence.WAIT)
    name = approved(w)
    until(w, name, P.PROVING)
    for _ in range(90):
        w.now += timedelta(minutes=1)
        w.reconcile(name)
    assert phase(w, name) is P.PROVING
    assert active(w).count(NEW) == 1
    w.live_proof = MeasuredFact()
    until(w, name, P.PROMOTED, minutes=3000)
    assert set(active(w)) == {NEW}


def test_a_policy_that_asks_while_a_swap_is_watched_gets_its_proof() -> None:
    w = world()
    name = approved(w)
    until(w, name, P.WATCHING, minutes=600)
    w.live_proof = MeasuredFact(consequence=Consequence.WAIT)
    until(w, name, P.PROVING, minutes=3000)
    w.live_proof = MeasuredFact()
    until(w, name, P.PROMOTED, minutes=3000)


@pytest.mark.parametrize("at", [P.WATCHING, P.PROMOTED])
def test_a_kept_swap_goes_back_when_a_later_proof_shows_harm(at: P) -> None:
    w = world()
    name = approved(w)
    until(w, name, at, minutes=3000)
    harm = MeasuredFact(consequence=Consequence.REVERT, reason="sentinel-slower")
    facts = with_facts(w.facts(name), repeated_proof=harm)
    step = proposal.step(w.proposals[name], facts, now=w.now)
    assert (step.status.phase, step.status.reason) == (P.ROLLING_BACK, "sentinel-slower")
    assert step.status.rollout is not None
    assert step.status.rollout.quarantine_until is not None
    waits = MeasuredFact(consequence=Consequence.WAIT)
    facts = with_facts(w.facts(name), repeated_proof=waits)
    assert proposal.step(w.proposals[name], facts, now=w.now).status.phase is at


@pytest.mark.parametrize("blames", [True, False])
def test_a_swap_that_harms_live_traffic_goes_back_from_every_pod(*, blames: bool) -> None:
    w = world()
    w.live_proof = MeasuredFact(consequence=Consequence.WAIT)
    name = approved(w)
    until(w, name, P.PROVING)
    w.live_proof = MeasuredFact(
        consequence=Consequence.REVERT, reason="live-proof-slower", blames=blames
    )
    until(w, name, P.ROLLED_BACK)
    assert set(active(w)) == {None}
    status = w.proposals[name].status
    assert [s.reason for s in status.history if s.to is P.ROLLING_BACK] == ["live-proof-slower"]
    assert bool(w.target.status.quarantine) is blames


@pytest.mark.parametrize(
    ("reason", "blames"),
    [("shadow-mismatch", True), ("self-check-failed", True), ("rank-behind", False),
     ("orphaned", False), ("withdrawn", False)],
)  # fmt: skip
def test_only_measured_harm_blames_the_artifact(reason: str, blames: bool) -> None:
    w = world()
    name = approved(w)
    until(w, name, P.ANALYZING)
    report = WatchReport(action=WatchAction.ROLLBACK, reason=reason)
    pods = tuple(replace(pod.fact(), report=report) for pod in w.pods.values())
    step = proposal.step(w.proposals[name], with_facts(w.facts(name), pods=pods), now=w.now)
    rollout = step.status.rollout
    assert rollout is not None
    assert step.status.phase is P.ROLLING_BACK
    assert (rollout.quarantine_until is not None) is blames

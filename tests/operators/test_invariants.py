"""I1 to I10 as a machine that plays people, time, crashes and broken pods against the operator."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import ClassVar

import pytest
from hypothesis import currently_in_test_context, event, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from tests.operators.world import GROUPS, World, is_denied, window_is_open

from retuned.api.proposal import PodState
from retuned.control import MeasuredFact
from retuned.stages.gate import DecisionKind, StopPolicy
from retuned.stages.watch import Consequence
from retuned_operator.schema import ProposalPhase as P

DIGESTS = tuple("sha256:" + digit * 64 for digit in "123")
STARTS = (
    datetime(2026, 3, 3, 0, 30, tzinfo=UTC),
    datetime(2026, 3, 28, 23, 30, tzinfo=UTC),  # the night in which an hour is missing
    datetime(2026, 10, 24, 22, 30, tzinfo=UTC),  # the night in which an hour comes twice
)


class Operator(RuleBasedStateMachine):
    """Everything that may happen, in any order."""

    start: ClassVar[datetime] = STARTS[0]
    proposed = Bundle("proposed")

    def __init__(self) -> None:
        super().__init__()
        self.world = World(self.start, pods=0)
        self.reached: set[P] = set()
        self.told: set[tuple[str, str]] = set()
        self.quarantined: dict[str, datetime] = {}

    @initialize(
        target=proposed,
        pods=st.integers(1, 5),
        rounds=st.sampled_from([0, 1, 3, 8, 12, 20, 30, 45]),
    )
    def begins(self, pods: int, rounds: int) -> str:
        """Begin at any point of a swap that goes well so far."""
        self.world = World(self.start, pods=pods)
        name = self.world.propose(DIGESTS[0])
        if rounds:
            self.a_good_night(name, rounds, people=True)
        return name

    # people and the outside

    @rule(
        target=proposed, artifact=st.sampled_from(DIGESTS), who=st.sampled_from(["retuned", "ADA"])
    )
    def somebody_proposes(self, artifact: str, who: str) -> str:
        if artifact == self.world.live():
            artifact = next(each for each in DIGESTS if each != artifact)
        return self.world.propose(artifact, requested_by=who)

    @rule(name=proposed, user=st.sampled_from([*GROUPS, "mallory"]))
    def somebody_approves(self, name: str, user: str) -> None:
        self.world.say(name, user)

    @rule(name=proposed)
    def two_people_approve(self, name: str) -> None:
        self.world.say(name, "eve")
        self.world.say(name, "ben")

    @rule(name=proposed, what=st.sampled_from(["digest", "uid", "generation"]))
    def somebody_approves_something_else(self, name: str, what: str) -> None:
        wrong = {"digest": DIGESTS[0][:-1] + "f", "uid": "another", "generation": 99}[what]
        for user in ("ada", "ben", "eve"):
            self.world.say(name, user, **{what: wrong})  # type: ignore[arg-type]

    @rule(name=proposed, user=st.sampled_from(["lea", "ada", "mallory"]))
    def somebody_breaks_glass(self, name: str, user: str) -> None:
        self.world.say(name, user, DecisionKind.BREAK_GLASS)

    @rule(name=proposed, kind=st.sampled_from([DecisionKind.REJECT, DecisionKind.ABORT]))
    def somebody_says_no(self, name: str, kind: DecisionKind) -> None:
        self.world.say(name, "mallory", kind)

    @rule(name=proposed)
    def somebody_aborts_and_it_goes_back_at_once(self, name: str) -> None:
        before = self.world.proposals[name].status.phase
        self.world.abort(name)
        if not self.world.leading:
            return
        self.reconcile(name, dies_after=1)
        after = self.world.proposals[name].status.phase
        if before.is_under_way:  # I2
            assert after.is_going_back or after is P.ROLLED_BACK
        elif before.is_before_swap:
            assert after is P.ABORTED

    @rule(policy=st.sampled_from(StopPolicy), hours=st.sampled_from([None, 1, 5]))
    def somebody_freezes(self, policy: StopPolicy, hours: int | None) -> None:
        self.world.freeze(policy, hours=hours)

    @rule()
    def somebody_thaws(self) -> None:
        self.world.freezes.clear()

    @rule(priority=st.integers(1, 9))
    def somebody_changes_the_policy(self, priority: int) -> None:
        self.world.change_policy(priority=priority)

    @rule(minutes=st.sampled_from([1, 2, 5, 6, 15, 61, 180, 600, 3000]))
    def time_passes(self, minutes: int) -> None:
        self.world.now += timedelta(minutes=minutes)

    @rule(name=proposed, rounds=st.integers(1, 40), people=st.booleans())
    def a_good_night(self, name: str, rounds: int, people: bool) -> None:
        """Without it few runs would come as far as a canary."""
        world = self.world
        world.leading = world.readable = world.checked = True
        world.live_proof = MeasuredFact()
        world.freezes.clear()
        for pod in world.pods.values():
            pod.ready, pod.report = True, "keep"
        for _ in range(24):
            if window_is_open(world.now):
                break
            world.now += timedelta(hours=1)
        if people:
            self.two_people_approve(name)
        self.all_are_at_work(minutes=1, rounds=rounds)

    # broken things

    @rule(data=st.data(), report=st.sampled_from(["keep", "keep", "wait", "none", "rollback"]))
    def a_pod_reports(self, data: st.DataObject, report: str) -> None:
        self.pod(data).report = report

    @rule(data=st.data(), ready=st.booleans())
    def a_pod_changes_its_health(self, data: st.DataObject, ready: bool) -> None:
        self.pod(data).ready = ready

    @rule(data=st.data())
    def a_pod_is_replaced(self, data: st.DataObject) -> None:
        self.world.replace_pod(self.pod(data).uid)

    @rule(data=st.data())
    def a_runtime_takes_its_order_back(self, data: st.DataObject) -> None:
        pod = self.pod(data)
        if pod.active is not None:
            pod.active, pod.tripped = None, "errors"

    @rule(readable=st.booleans(), checked=st.booleans())
    def policies_can_be_read_and_evidence_checked_or_not(
        self, readable: bool, checked: bool
    ) -> None:
        self.world.readable, self.world.checked = readable, checked

    @rule(consequence=st.sampled_from(Consequence))
    def live_traffic_shows(self, consequence: Consequence) -> None:
        self.world.live_proof = MeasuredFact(consequence=consequence, reason="live-proof-slower")

    @rule(leading=st.booleans())
    def the_lease_is_lost_or_won(self, leading: bool) -> None:
        self.world.leading = leading

    def pod(self, data: st.DataObject):  # type: ignore[no-untyped-def]  # noqa: ANN201
        return self.world.pods[data.draw(st.sampled_from(sorted(self.world.pods)))]

    # the operator and the sidecars

    @rule(data=st.data())
    def a_sidecar_does_what_it_is_told(self, data: st.DataObject) -> None:
        self.world.sidecar(self.pod(data).uid)

    @rule(minutes=st.sampled_from([0, 1, 5]), rounds=st.integers(1, 6))
    def all_are_at_work(self, minutes: int, rounds: int) -> None:
        for _ in range(rounds):
            for uid in list(self.world.pods):
                self.world.sidecar(uid)
            for name in list(self.world.proposals):
                self.reconcile(name)
            self.world.now += timedelta(minutes=minutes)

    @rule(name=proposed, dies_after=st.integers(0, 2))
    def the_operator_dies_in_the_middle(self, name: str, dies_after: int) -> None:
        self.reconcile(name, dies_after=dies_after)

    def reconcile(self, name: str, *, dies_after: int = 99) -> None:
        world = self.world
        before, target = world.proposals[name], world.target
        step = world.reconcile(name, dies_after=dies_after)
        after = world.proposals[name]
        self.reached |= {each.to for each in after.status.history}
        if before.status.phase is not after.status.phase and currently_in_test_context():
            event(str(after.status.phase))
        if not world.leading:  # I10
            assert after == before
            assert world.target == target
            assert step.actions == ()
        known = {t.uid for t in before.status.rollout.pods} if before.status.rollout else set()
        rollout = after.status.rollout
        for told in rollout.pods if rollout else ():
            if told.wants is PodState.SWAP and told.uid not in known:
                self.may_be_told(name)
                self.told.add((told.uid, after.spec.artifact.digest))
        if before.status.phase is not P.PROMOTED and after.status.phase is P.PROMOTED:
            assert world.live_proof.consequence is Consequence.KEEP
            for pod in world.pods.values():  # I7
                assert pod.report == "keep"
                assert pod.active == after.spec.artifact.digest
            self.told |= {("*", after.spec.artifact.digest)}
        for entry in world.target.status.quarantine:
            self.quarantined[entry.digest] = entry.until

    def may_be_told(self, name: str) -> None:
        """Say it all again, without a word of the code that is tested."""
        world, proposal = self.world, self.world.proposals[name]
        agreed, broken = self.agreement(name)
        assert agreed or broken  # I1, I6, I8
        assert not world.frozen()  # I4
        if not (agreed and window_is_open(world.now)):  # I4
            rollout = proposal.status.rollout
            assert broken
            assert not is_denied(world.now)
            assert rollout is not None
            assert sum(t.wants is PodState.SWAP for t in rollout.pods) <= 1
        assert self.quarantined.get(proposal.spec.artifact.digest, world.now) <= world.now  # I9
        ready = sum(pod.ready for pod in world.pods.values())
        assert ready * 100 >= 60 * len(world.pods)  # I3

    def agreement(self, name: str) -> tuple[bool, bool]:
        """Return whether two people of two groups agree, and whether a leader broke glass."""
        world, proposal = self.world, self.world.proposals[name]
        mine = [
            each.spec
            for each in world.decisions
            if each.spec.proposal_ref.uid == proposal.metadata.uid
            and each.spec.digest == proposal.spec.artifact.digest
        ]
        assert not any(spec.decision in ("Reject", "Abort") for spec in mine)  # I6
        asker = proposal.spec.requested_by.lower()
        bound = [
            spec
            for spec in mine
            if spec.policy_generation == world.policy_generation and spec.user != asker
        ]
        yes = {spec.user for spec in bound if spec.decision == "Approve"} & {"ada", "ben", "eve"}
        pairs = [{"ada", "ben"}, {"ada", "eve"}, {"ben", "eve"}]
        glass = any(spec.decision == "BreakGlass" and spec.user == "lea" for spec in bound)
        return any(pair <= yes for pair in pairs), glass

    # what always holds

    @invariant()
    def a_pod_runs_nothing_that_it_was_not_told(self) -> None:
        for pod in self.world.pods.values():
            allowed = {digest for uid, digest in self.told if uid in (pod.uid, "*")}
            assert pod.active is None or pod.active in allowed  # I1

    @invariant()
    def few_pods_are_swapped_at_one_time(self) -> None:
        flying = 0
        for each in self.world.proposals.values():
            rollout = each.status.rollout
            present = [t for t in rollout.pods if t.uid in self.world.pods] if rollout else []
            uids = [t.uid for t in present]
            assert len(uids) == len(set(uids))  # I5
            flying += sum(t.wants is PodState.SWAP and not t.done for t in present)
        assert flying <= 2  # I3

    def teardown(self) -> None:
        """Whatever happened, with everybody at work it comes to rest, and says what is so (I5)."""
        world = self.world
        world.leading = world.readable = world.checked = True
        for pod in world.pods.values():
            pod.ready = True
        for name in world.proposals:
            world.abort(name)
        world.settle(rounds=40)
        for proposal in world.proposals.values():
            assert proposal.status.phase.is_terminal, proposal.status
            assert proposal.status.phase is not P.PROMOTED or not any(
                entry.proposal == proposal.metadata.name
                for entry in world.target.status.active_kernels
            )
        for uid in list(world.pods):
            world.sidecar(uid)
        entries = world.target.status.active_kernels
        wanted = entries[0].digest if entries else None
        assert {pod.active for pod in world.pods.values()} <= {wanted, None}


def beginning(start: datetime) -> type[Operator]:
    """Return the machine in a night."""
    return type("Operator", (Operator,), {"start": start})


NIGHT = pytest.mark.parametrize("start", STARTS, ids=["ordinary", "hour-missing", "hour-twice"])


@pytest.mark.slow
@NIGHT
def test_whatever_happens_in_a_night_the_invariants_hold(start: datetime) -> None:
    usual = settings(max_examples=30, stateful_step_count=30, deadline=None)
    run_state_machine_as_test(beginning(start), settings=usual)


def harmed(machine: Operator, name: str) -> None:
    next(iter(machine.world.pods.values())).report = "rollback"
    machine.all_are_at_work(minutes=1, rounds=6)


def stuck(machine: Operator, name: str) -> None:
    next(iter(machine.world.pods.values())).report = "rollback"
    for _ in range(40):
        machine.the_operator_dies_in_the_middle(name, dies_after=1)
        machine.time_passes(5)


def silent(machine: Operator, name: str) -> None:
    for pod in machine.world.pods.values():
        pod.report = "none"
    machine.all_are_at_work(minutes=1, rounds=20)


def unproven(machine: Operator, name: str) -> None:
    machine.live_traffic_shows(Consequence.WAIT)
    machine.all_are_at_work(minutes=1, rounds=45)


def unchecked(machine: Operator, name: str) -> None:
    machine.policies_can_be_read_and_evidence_checked_or_not(readable=True, checked=False)
    machine.all_are_at_work(minutes=1, rounds=1)


def frozen(machine: Operator, name: str) -> None:
    machine.somebody_freezes(StopPolicy.HOLD, hours=1)
    machine.two_people_approve(name)
    machine.all_are_at_work(minutes=1, rounds=3)


def forgotten(machine: Operator, name: str) -> None:
    machine.all_are_at_work(minutes=1, rounds=1)
    for _ in range(2):
        machine.time_passes(3000)
    machine.all_are_at_work(minutes=1, rounds=1)


def refused(machine: Operator, name: str) -> None:
    machine.somebody_says_no(name, DecisionKind.REJECT)
    machine.all_are_at_work(minutes=1, rounds=2)


def overtaken(machine: Operator, name: str) -> None:
    machine.somebody_proposes(DIGESTS[1], "retuned")
    machine.all_are_at_work(minutes=1, rounds=2)


def proposed_in_quarantine(machine: Operator, name: str) -> None:
    harmed(machine, name)
    machine.somebody_proposes(DIGESTS[0], "retuned")
    machine.all_are_at_work(minutes=1, rounds=2)


WAYS: tuple[tuple[int, Callable[[Operator, str], None], set[P]], ...] = (
    (45, lambda *_: None, {P.APPROVED, P.CANARY, P.ANALYZING, P.PROMOTING, P.WATCHING, P.PROMOTED}),
    (45, harmed, {P.PROMOTED, P.ROLLING_BACK, P.ROLLED_BACK}),
    (12, stuck, {P.ROLLBACK_FAILED}),
    (3, silent, {P.PAUSED}),
    (3, unproven, {P.PROVING}),
    (0, unchecked, {P.VALIDATING}),
    (0, frozen, {P.SCHEDULED}),
    (0, forgotten, {P.AWAITING_APPROVAL, P.EXPIRED}),
    (0, refused, {P.REJECTED}),
    (0, Operator.somebody_aborts_and_it_goes_back_at_once, {P.ABORTED}),
    (0, overtaken, {P.SUPERSEDED}),
    (12, proposed_in_quarantine, {P.INVALID}),
)
"""Rounds of a good night, what is done then by the machine's own rules, and where that leads."""


@NIGHT
def test_the_rules_of_the_machine_lead_to_every_phase(start: datetime) -> None:
    reached: set[P] = set()
    for rounds, way, phases in WAYS:
        machine = beginning(start)()
        name = machine.begins(pods=3, rounds=rounds)
        assert isinstance(name, str)
        way(machine, name)
        machine.a_pod_runs_nothing_that_it_was_not_told()
        machine.few_pods_are_swapped_at_one_time()
        assert machine.reached >= phases, way
        reached |= machine.reached
        machine.teardown()
    assert reached == set(P) - {P.PENDING}

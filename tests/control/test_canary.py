"""Canary replicas in virtual time: pods, their boots, holds, ends, restarts and lies."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.operators import examples
from tests.operators.world import World
from tests.stages.watch_proof.test_replicas import boot

from retuned.api.agent import BootPhase, PodBoot
from retuned.api.replicas import ReplicaPairStatus, ReplicaProofStatus
from retuned.api.target import ActiveKernel
from retuned.contract import Digest, Guard
from retuned.control import RolloutFacts, RolloutStep, canary
from retuned.control.facts import ReplicaFact, ReplicaFacts
from retuned.control.live_proofs import NO_CANARY_REPLICAS
from retuned.control.orders import desired_orders, replica_order
from retuned.stages.gate import DecisionKind, StopPolicy
from retuned.stages.watch.proof import Arm, ReplicaState
from retuned_operator.schema import ProposalPhase as P

OPEN = datetime(2026, 3, 3, 1, 0, tzinfo=UTC)
NEW = examples.ARTIFACT
WORLD = examples.WORLD
TEMPLATE: Digest = "sha256:" + 64 * "7"
OTHER: Digest = "sha256:" + 64 * "8"


@dataclass
class Replica:
    """One pod that the operator made."""

    name: str
    uid: str
    made_at: datetime
    arm: Arm
    level: float
    """Of its step time: boots differ."""


class Canaries(World):
    """A world whose operator makes replicas; the plans of the status decide which."""

    def __init__(self, *, effect: float = 0.0, seed: int = 5, **rule: Any) -> None:
        super().__init__(OPEN, pods=2)
        proof = {"mode": "required", "whenNotSwitchable": "canary"} | rule
        self.change_policy(liveProof=proof, windows=[])
        self.effect, self.chance = effect, random.Random(seed)
        self.existing: dict[str, Replica] = {}
        self.states: dict[str, ReplicaState] = {}
        """What the operator's store has, by digest."""
        self.templates: tuple[Digest, ...] = (TEMPLATE,)
        self.no_template = ""
        self.enabled = True
        self.made: list[str] = []
        self.most = 0
        """Most replicas that existed at one time."""
        self.running: Callable[[Replica], bool] = lambda _: True
        self.alters: Callable[[Replica, ReplicaFact], ReplicaFact] = lambda _, fact: fact

    # --- what is observed -------------------------------------------------------------------------

    def facts(self, name: str) -> RolloutFacts:
        facts, status = super().facts(name), self.proposals[name].status
        kept = status.replicas
        digest = kept.state if kept is not None else None
        pods = tuple(self.seen(each) for each in self.existing.values())
        found = ReplicaFacts(
            pods=pods,
            templates=self.templates,
            no_template=self.no_template,
            state=self.states.get(digest or ""),
            lost=digest is not None and digest not in self.states,
            coin=self.chance,
        )
        return replace(
            facts,
            unavailable=NO_CANARY_REPLICAS,
            live_proofs=(),
            replicas=found if self.enabled else None,
        )

    def seen(self, each: Replica) -> ReplicaFact:
        age, running = self.now - each.made_at, self.running(each)
        serving = running and age >= timedelta(minutes=3)
        fact = ReplicaFact(
            name=each.name,
            uid=each.uid,
            made_at=each.made_at,
            running=running,
            environment=WORLD if serving else None,
            active=NEW if serving and each.arm is Arm.ON else None,
            reports=serving,
            ready_since=each.made_at + timedelta(minutes=3) if serving else None,
            boot=self.boot(each, age) if serving else None,
        )
        return self.alters(each, fact)

    def boot(self, each: Replica, age: timedelta) -> PodBoot:
        done = age >= timedelta(minutes=24)
        ratio = each.level * (1.0 + self.effect * (each.arm is Arm.ON))
        window = boot(
            each.name,
            1,
            each.arm,
            ratio=ratio,
            environment=WORLD,
            began_s=each.made_at.timestamp() + 180.0,
        )
        return PodBoot(
            proposal="p",
            definition="k",
            replica=each.name,
            phase=BootPhase.DONE if done else BootPhase.RECORDING,
            window=window.model_copy(update={"boot": f"{each.uid}/1"}) if done else None,
        )

    # --- what is done -----------------------------------------------------------------------------

    def reconcile(self, name: str, *, dies_after: int = 99) -> RolloutStep:
        """Do one step. The operator dies after so many of: keep a state, write, act, each pod."""
        step = super().reconcile(name, dies_after=99 if dies_after > 1 else 0)
        if step.replica_state is not None and dies_after >= 1:
            digest = "sha256:" + f"{len(self.states):064x}"
            self.states[digest] = step.replica_state
            if dies_after > 1:
                resource = self.proposals[name]
                kept = self.kept(name).model_copy(update={"state": digest})
                status = resource.status.model_copy(update={"replicas": kept})
                self.proposals[name] = resource.model_copy(update={"status": status})
        self.pods_of(name, most=dies_after - 2)
        return step

    def pods_of(self, name: str, *, most: int) -> None:
        """Make and delete pods, as many as the operator does before it dies."""
        status = self.proposals[name].status
        existing = {each.name: each.uid for each in self.existing.values()}
        make, delete = canary.due(status, existing)
        for gone in delete[: max(most, 0)]:
            del self.existing[gone]
        for each in make[: max(most - len(delete), 0)]:
            pair = next(p for p in self.pairs(name) if p.name == each.pair)
            arm = pair.runs[pair.pods.index(each.name)]
            uid = f"{each.name}-uid-{len(self.made)}"
            level = self.chance.lognormvariate(0.0, 0.004)
            self.existing[each.name] = Replica(each.name, uid, self.now, arm, level)
            self.made.append(each.name)
        self.most = max(self.most, len(self.existing))

    # --- shorthands -------------------------------------------------------------------------------

    def begun(self) -> str:
        name = self.propose(NEW)
        self.reconcile(name)
        self.say(name, "ada")
        self.say(name, "ben")
        return name

    def phase(self, name: str) -> P:
        return self.proposals[name].status.phase

    def kept(self, name: str) -> ReplicaProofStatus:
        found = self.proposals[name].status.replicas
        assert found is not None
        return found

    def pairs(self, name: str) -> tuple[ReplicaPairStatus, ...]:
        return self.kept(name).open

    def serving(self) -> set[Digest | None]:
        return {pod.active for pod in self.pods.values()}

    def turn(self, name: str, *, minutes: float = 2.0) -> None:
        for uid in list(self.pods):
            self.sidecar(uid)
        self.reconcile(name)
        self.now += timedelta(minutes=minutes)

    def until(self, name: str, wanted: Callable[[], bool], *, turns: int = 900) -> None:
        for _ in range(turns):
            if wanted():
                return
            self.turn(name)
        raise AssertionError(self.proposals[name].status)

    def over(self, name: str) -> bool:
        return self.phase(name) in (P.PROMOTED, P.ROLLED_BACK, P.ABORTED, P.SUPERSEDED)


def proving(**more: Any) -> tuple[Canaries, str]:
    """Return a world in the middle of its first pair."""
    w = Canaries(**more)
    name = w.begun()
    w.until(name, lambda: len(w.existing) == 2)
    w.turn(name)
    return w, name


# --- ends -----------------------------------------------------------------------------------------


def test_a_swap_that_helps_is_proven_by_pairs_and_goes_through_its_waves() -> None:
    w = Canaries(effect=-0.05)
    name = w.begun()
    w.until(name, lambda: w.phase(name) is P.PROVING)
    w.until(name, lambda: w.phase(name) is not P.PROVING)
    assert w.phase(name) is P.CANARY, "the first serving pod has its order after the verdict"
    assert w.existing == {}
    kept = w.kept(name)
    assert (kept.verdict, kept.reason, kept.kept) == ("helps", "faster", True)
    assert kept.sham_pairs == 8
    assert kept.pairs >= 8
    assert kept.boot_spread is not None
    assert kept.effect == pytest.approx(-0.05, abs=0.01)
    assert w.most == 2, "one pair at a time"
    w.until(name, lambda: w.over(name))
    assert w.phase(name) is P.PROMOTED
    assert w.serving() == {NEW}
    assert w.proposals[name].status.live_proofs == ()


@pytest.mark.parametrize(
    ("effect", "reason"), [(0.0, "live-proof-boot-spread"), (0.08, "live-proof-slower")]
)
def test_anything_else_goes_back_before_a_serving_pod_had_it(effect: float, reason: str) -> None:
    w = Canaries(effect=effect)
    name = w.begun()
    w.until(name, lambda: w.over(name))
    assert w.phase(name) is P.ROLLED_BACK
    assert w.proposals[name].status.reason == reason
    assert w.serving() == {None}
    assert all(not pod.carried_out for pod in w.pods.values())
    assert w.existing == {}
    harmed = bool(w.target.status.quarantine)
    assert harmed is (effect > 0.0)


def test_too_little_traffic_goes_on_where_the_rule_keeps_it() -> None:
    w = Canaries(onTooLittleTraffic="keep", effect=-0.003)
    name = w.begun()
    w.until(name, lambda: w.phase(name) in (P.CANARY, P.ROLLED_BACK))
    kept = w.kept(name)
    assert kept.kept is (kept.verdict == "too-little-traffic")
    assert (w.phase(name) is P.CANARY) is kept.kept


def test_more_pairs_run_where_the_policy_allows_it() -> None:
    w = Canaries(effect=-0.05, canaryPairs=3)
    name = w.begun()
    w.until(name, lambda: w.phase(name) is P.CANARY)
    assert w.most == 6


# --- plans ----------------------------------------------------------------------------------------


def test_the_plan_with_its_coin_is_stored_before_its_pods_are_made() -> None:
    w = Canaries()
    name = w.begun()
    w.reconcile(name, dies_after=2)  # the status is written, no pod is made
    assert w.phase(name) is P.PROVING
    (pair,) = w.pairs(name)
    assert w.made == []
    w.reconcile(name)
    assert w.made == list(pair.pods)
    assert w.pairs(name)[0].first is pair.first
    w.turn(name)
    assert w.pairs(name)[0].uids == tuple(each.uid for each in w.existing.values())


@pytest.mark.parametrize("dies_after", [0, 1, 2, 3])
def test_an_operator_that_dies_at_each_write_ends_the_same(dies_after: int) -> None:
    w = Canaries(effect=-0.05)
    name = w.begun()
    for turn in range(2000):
        if w.phase(name) is P.CANARY:
            break
        w.reconcile(name, dies_after=dies_after if turn % 2 else 99)
        assert len(w.existing) <= 2
        w.now += timedelta(minutes=1)
    assert w.kept(name).verdict == "helps"
    assert len(w.made) == len(set(w.made)), "no pod was made twice"
    assert w.kept(name).made == len(w.made) // 2


def test_only_the_canary_gets_the_order_and_both_are_asked_for_their_boots() -> None:
    w = Canaries(effect=-0.05)
    name = w.begun()
    shams = 0
    while not (w.existing and not w.pairs(name)[0].sham and w.pairs(name)[0].uids[1]):
        w.turn(name)
        shams += w.phase(name) is P.PROVING and all(pair.sham for pair in w.pairs(name))
    resource, (pair,) = w.proposals[name], w.pairs(name)
    for pod, uid, arm in zip(pair.pods, pair.uids, pair.runs, strict=True):
        orders = desired_orders(pod, uid, target=w.target, proposals=[resource])
        asked = canary.boot_order(uid, [resource], target=w.target)
        assert asked is not None
        assert (asked.replica, asked.arm) == (pod, arm)
        assert (asked.leave_out_s, asked.window_s) == (600.0, 600.0)
        assert [each.artifact for each in orders] == ([NEW] if arm is Arm.ON else [])
        assert asked.order == (orders[0].id if orders else "")
    assert canary.boot_order("u0", [resource], target=w.target) is None
    assert desired_orders("chat-0", "u0", target=w.target, proposals=[resource]) == ()
    assert shams


def test_a_canary_goes_from_what_serves_now() -> None:
    w = Canaries(effect=-0.05)
    kernel = w.proposals[w.propose(NEW)].spec.kernel
    w.proposals.clear()
    entry = ActiveKernel(
        kernel=kernel, digest=OTHER, guard=Guard(), epoch=7, proposal="swp-0", since=OPEN
    )
    status = w.target.status.model_copy(update={"active_kernels": (entry,)})
    w.target = w.target.model_copy(update={"status": status})
    name = w.begun()
    w.until(name, lambda: bool(w.existing) and not w.pairs(name)[0].sham)
    w.turn(name)
    (pair,) = w.pairs(name)
    uid = pair.uids[pair.runs.index(Arm.ON)]
    order = replica_order(w.proposals[name], uid, target=w.target)
    assert order is not None
    assert (order.artifact, order.previous, order.epoch) == (NEW, OTHER, 8)


def test_two_proofs_of_one_target_never_run_together() -> None:
    w, name = proving()
    again = w.propose("sha256:" + 64 * "5")
    spec = w.proposals[again].spec.model_copy(update={"kernel": "another"})
    w.proposals[again] = w.proposals[again].model_copy(update={"spec": spec})
    w.reconcile(again)
    w.say(again, "ada")
    w.say(again, "ben")
    w.reconcile(again)
    status = w.proposals[again].status
    assert (status.phase, status.reason) == (P.SCHEDULED, "other-rollout")
    assert w.phase(name) is P.PROVING


# --- holds and other ends -------------------------------------------------------------------------


def test_without_the_right_to_make_pods_it_is_held_by_name() -> None:
    w = Canaries()
    w.enabled = False
    name = w.begun()
    w.reconcile(name)
    status = w.proposals[name].status
    assert (status.phase, status.reason) == (P.SCHEDULED, NO_CANARY_REPLICAS)
    w.enabled, w.templates, w.no_template = True, (), "chat-0 has no owner"
    w.reconcile(name)
    status = w.proposals[name].status
    assert (status.phase, status.reason) == (P.SCHEDULED, NO_CANARY_REPLICAS)
    assert status.detail == "chat-0 has no owner"
    assert status.replicas is None


@pytest.mark.parametrize("end", ["abort", "reject", "target-gone", "baseline", "expired"])
def test_any_other_end_of_the_proposal_deletes_the_replicas(end: str) -> None:
    w, name = proving()
    if end == "abort":
        w.abort(name)
    elif end == "reject":
        w.say(name, "ada", DecisionKind.REJECT)
    elif end == "baseline":
        w.live = lambda: OTHER  # type: ignore[method-assign]
    elif end == "expired":
        w.now += timedelta(days=4)
    else:
        facts = w.facts
        w.facts = lambda name: replace(facts(name), target=None)  # type: ignore[method-assign]
    w.reconcile(name)
    assert w.existing == {}
    assert w.phase(name) in (P.ABORTED, P.REJECTED, P.SUPERSEDED, P.EXPIRED)
    kept = w.kept(name)
    assert (kept.verdict, kept.reason, kept.kept) == ("not-concluded", "interrupted", False)


@pytest.mark.parametrize("policy", list(StopPolicy))
def test_a_freeze_deletes_the_replicas_and_its_end_lets_the_proof_go_on(policy: StopPolicy) -> None:
    w, name = proving(effect=-0.05)
    w.until(name, lambda: w.kept(name).sham_pairs == 2)
    made = w.kept(name).made
    w.freeze(policy)
    w.reconcile(name)
    assert w.phase(name).is_before_swap
    assert w.existing == {}
    w.freezes.clear()
    w.until(name, lambda: w.phase(name) is P.PROVING)
    assert w.kept(name).sham_pairs == 2, "pairs that counted still count"
    w.until(name, lambda: w.phase(name) is P.CANARY)
    assert w.kept(name).made >= made
    assert w.kept(name).verdict == "helps"


def test_what_an_operator_does_not_know_yet_deletes_no_replica() -> None:
    w, name = proving()
    before, pods = w.proposals[name].status, dict(w.existing)
    facts = w.facts
    unknown: list[dict[str, Any]] = [
        {"policies": None},
        {"evidence_checked": False},
        {"live_baseline": None},
        {"slo_firing": None},
        {"pods": tuple(replace(p, ready=False) for p in facts(name).pods)},
    ]
    for changes in unknown:
        w.facts = lambda name, c=changes: replace(facts(name), **c)  # type: ignore[method-assign,misc]
        w.reconcile(name)
        assert w.phase(name) is P.PROVING
        assert w.existing == pods
        assert w.proposals[name].status.replicas == before.replicas


def test_a_replica_that_is_gone_is_not_made_again_while_something_is_unknown() -> None:
    w, name = proving()
    w.turn(name)
    (pair,) = w.pairs(name)
    assert all(pair.uids)
    gone, other = pair.pods
    w.existing.pop(gone)
    w.existing[other].uid = "another"
    facts = w.facts
    w.facts = lambda name: replace(facts(name), policies=None)  # type: ignore[method-assign]
    w.reconcile(name)
    assert w.phase(name) is P.PROVING
    assert w.existing == {}


def test_windows_wait_until_their_pods_have_reported_the_rest() -> None:
    w, name = proving()
    w.until(name, lambda: bool(w.existing) and not w.pairs(name)[0].sham)

    def only_boots(each: Replica, fact: ReplicaFact) -> ReplicaFact:
        return replace(fact, environment=None, active=None)

    w.alters = only_boots
    w.now += timedelta(minutes=24)
    w.turn(name)
    w.turn(name)
    assert w.kept(name).failures == 0
    assert len(w.pairs(name)) == 1
    w.alters = lambda _, fact: fact
    w.turn(name)
    assert w.kept(name).pairs == 1


def test_a_policy_that_keeps_it_unmeasured_ends_the_proof() -> None:
    w, name = proving()
    facts = w.facts
    w.facts = lambda name: replace(facts(name), unavailable="")  # type: ignore[method-assign]
    w.change_policy(liveProof={"mode": "required", "whenNotSwitchable": "keep"})
    w.say(name, "ada")
    w.say(name, "ben")
    w.reconcile(name)
    assert w.phase(name) is P.CANARY
    assert w.existing == {}
    assert w.kept(name).verdict == "not-concluded"


# --- pods that fail, and pods that lie ------------------------------------------------------------


def ended(w: Canaries, name: str) -> tuple[str, str]:
    """Return the reason of a proof that ended without boots that count, and why pairs did not."""
    w.until(name, lambda: w.over(name))
    assert w.phase(name) is P.ROLLED_BACK
    assert w.serving() == {None}
    assert w.existing == {}
    assert not w.target.status.quarantine
    return w.proposals[name].status.reason, w.kept(name).why


def test_pods_that_never_run_end_the_proof_by_name() -> None:
    w = Canaries()
    w.running = lambda _: False
    name = w.begun()
    assert ended(w, name) == ("live-proof-interrupted", canary.PENDING)
    assert w.kept(name).made == canary.MOST_FAILURES


def altered(**changes: Any) -> Callable[[Replica, ReplicaFact], ReplicaFact]:
    def alters(each: Replica, fact: ReplicaFact) -> ReplicaFact:
        return replace(fact, **changes) if each.name.endswith("-b") else fact

    return alters


def reported(**changes: Any) -> Callable[[Replica, ReplicaFact], ReplicaFact]:
    """Return what lets the second pod report other numbers."""

    def alters(each: Replica, fact: ReplicaFact) -> ReplicaFact:
        window = fact.boot.window if fact.boot is not None else None
        if window is None or fact.boot is None or each.name.endswith("-a"):
            return fact
        lie = window.model_copy(update=changes)
        return replace(fact, boot=fact.boot.model_copy(update={"window": lie}))

    return alters


FAILED = PodBoot(
    proposal="p",
    definition="k",
    replica="r",
    phase=BootPhase.FAILED,
    reason="interrupted",
)


@pytest.mark.parametrize(
    ("alters", "why", "made"),
    [
        (altered(failed="replica-failed"), "replica-failed", 3),
        (altered(environment=OTHER), canary.DIFFERENT, 3),
        (altered(boot=FAILED), "interrupted", 3),
        (altered(boot=None), canary.NO_BOOTS, 1),
        (altered(boot=None, ready_since=None), canary.NOT_SERVING, 3),
        (altered(active=NEW), canary.MIXED, 3),
        (reported(arm=Arm.ON), canary.MIXED, 3),
        (reported(environment=OTHER), canary.DIFFERENT, 3),
        (reported(replica="another"), canary.CONTRADICTED, 3),
        (reported(boot="another/1"), canary.CONTRADICTED, 3),
        (reported(began_s=0.0), canary.CONTRADICTED, 3),
        (reported(began_s=4e9), canary.CONTRADICTED, 3),
    ],
)
def test_pods_that_fail_or_lie_end_the_proof_by_name(
    alters: Callable[[Replica, ReplicaFact], ReplicaFact], why: str, made: int
) -> None:
    w = Canaries()
    w.alters = alters
    name = w.begun()
    assert ended(w, name) == ("live-proof-interrupted", why)
    assert w.kept(name).made == made


def test_numbers_that_no_boot_has_are_contradicted() -> None:
    w = Canaries()

    def alters(each: Replica, fact: ReplicaFact) -> ReplicaFact:
        if fact.boot is None or fact.boot.window is None:
            return fact
        sums = fact.boot.window.sums.model_copy(update={"seconds": 1e9})
        return reported(sums=sums)(each, fact)

    w.alters = alters
    assert ended(w, w.begun()) == ("live-proof-interrupted", canary.CONTRADICTED)


def test_a_sidecar_is_of_an_older_release_only_after_it_was_asked() -> None:
    w = Canaries(effect=-0.05)
    name = w.begun()

    def if_asked(each: Replica, fact: ReplicaFact) -> ReplicaFact:
        pair = next((p for p in w.pairs(name) if each.uid in p.uids), None)
        since = pair.seen if pair is not None else None
        if since is None or w.now - since < timedelta(seconds=30):  # its answer is on the way
            return replace(fact, boot=None)
        return fact

    w.alters = if_asked
    w.reconcile(name)
    assert len(w.existing) == 2
    w.now += timedelta(minutes=30)  # nobody decides meanwhile, and no pod is asked
    w.reconcile(name)
    w.reconcile(name)
    assert w.kept(name).failures == 0
    assert len(w.existing) == 2
    w.turn(name)
    w.turn(name)
    assert w.kept(name).sham_pairs == 1


def test_a_pod_that_is_deleted_by_others_abandons_its_pair_and_is_not_made_again() -> None:
    w, name = proving(effect=-0.05)
    (pair,) = w.pairs(name)
    w.existing.pop(pair.pods[0])
    w.turn(name)
    assert w.kept(name).why == canary.GONE
    w.turn(name)
    assert set(w.existing).isdisjoint(pair.pods)
    w.until(name, lambda: w.phase(name) is P.CANARY)
    assert w.kept(name).failures == 0
    assert w.kept(name).verdict == "helps"


def test_another_pod_under_the_name_of_a_replica_is_deleted() -> None:
    w, name = proving()
    (pair,) = w.pairs(name)
    w.existing[pair.pods[0]].uid = "another"
    w.reconcile(name)
    assert w.kept(name).why == canary.GONE
    assert "another" not in {each.uid for each in w.existing.values()}


# --- templates and states that change -------------------------------------------------------------


def test_another_pod_template_begins_the_proof_anew() -> None:
    w, name = proving(effect=-0.05)
    w.until(name, lambda: w.kept(name).sham_pairs == 3)
    w.templates = (OTHER,)
    w.reconcile(name)
    kept = w.kept(name)
    assert (kept.template, kept.anew, kept.sham_pairs) == (OTHER, 1, 0)
    w.until(name, lambda: w.phase(name) is P.CANARY)
    assert len(w.made) == len(set(w.made))
    assert w.kept(name).verdict == "helps"


def test_a_template_that_keeps_changing_ends_it_by_name() -> None:
    w, name = proving()
    for number in range(canary.MOST_RESTARTS + 1):
        assert w.phase(name) is P.PROVING
        w.templates = ("sha256:" + f"{number + 1:064x}",)
        w.reconcile(name)
    assert ended(w, name) == ("live-proof-interrupted", canary.TEMPLATE_CHANGED)


def test_both_templates_of_a_rollout_in_the_middle_count() -> None:
    w, name = proving()
    w.templates = (OTHER, TEMPLATE)
    w.turn(name)
    assert w.kept(name).anew == 0


def test_a_state_that_is_lost_ends_it_by_name() -> None:
    w, name = proving()
    w.states.clear()
    assert ended(w, name) == ("live-proof-interrupted", canary.STATE_LOST)


def test_a_new_proof_does_not_need_the_state_of_an_earlier_one() -> None:
    w, name = proving()
    made, resource = w.kept(name).made, w.proposals[name]
    over = w.kept(name).model_copy(update={"verdict": "not-concluded", "open": ()})
    update = {"phase": P.SCHEDULED, "replicas": over}
    status = resource.status.model_copy(update=update)
    w.proposals[name] = resource.model_copy(update={"status": status})
    w.states.clear()
    w.reconcile(name)
    kept = w.kept(name)
    assert (w.phase(name), kept.verdict, kept.made) == (P.PROVING, "", made + 1)


def test_the_status_stays_small() -> None:
    w = Canaries(effect=-0.05)
    name = w.begun()
    w.until(name, lambda: w.phase(name) is P.CANARY)
    assert len(w.kept(name).model_dump_json()) < 4_000

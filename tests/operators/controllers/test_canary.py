"""Canary replicas in a cluster: their pods, what they report, evidence, kills, and ends."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest
from tests.coins import same_coins
from tests.operators.controllers.canary_cluster import CanaryCluster, RealCanaries, policy
from tests.operators.controllers.server import Died, Hit, Moment
from tests.operators.controllers.test_live_proofs import NEW
from tests.operators.controllers.test_swaps import agree, phase, propose, reached

from retuned.api.agent import BootPhase, PodBoot, ProfileReport
from retuned.control import canary
from retuned.errors import TemporaryError
from retuned.ports import ObservedSteps
from retuned.stages.gate import DecisionKind, StopPolicy
from retuned.stages.watch.proof import ReplicaState
from retuned_operator.agent_api import Receipt, Reports
from retuned_operator.agent_api.ports import Said
from retuned_operator.controllers import cluster_view, replicas
from retuned_operator.kube.errors import Forbidden
from retuned_operator.kube.resources import PODS, POLICIES, REPLICA_SETS, TARGETS, Obj, Resource
from retuned_operator.pods import CachedFleet
from retuned_operator.schema import ProposalPhase as P

C = TypeVar("C", bound=CanaryCluster)


@pytest.fixture(autouse=True)
def _coins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw the same coins in each run: a real one shows an effect that is none in one of 100."""
    same_coins(monkeypatch, replicas)


def begun(cluster: C) -> C:
    propose(cluster)
    agree(cluster)
    reached(cluster, P.PROVING)
    return cluster


def in_pair(cluster: C) -> C:
    """Let two replicas of a pair run, and the operator know them."""
    begun(cluster)
    cluster.until(lambda: bool(cluster.kept().open and all(cluster.kept().open[0].uids)))
    return cluster


# --- ends -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("switching", [True, False])
def test_a_swap_that_helps_reaches_serving_pods_after_its_replicas(switching: bool) -> None:
    cluster = begun(CanaryCluster(effect=-0.05, switching=switching))
    cluster.until(lambda: phase(cluster) is not P.PROVING)
    assert phase(cluster) in (P.CANARY, P.ANALYZING)
    kept = cluster.kept()
    assert (kept.verdict, kept.reason, kept.kept) == ("helps", "faster", True)
    assert kept.sentence.startswith("helps (faster): steps take ")
    assert "boots of one configuration differ by" in kept.sentence
    assert cluster.replica_pods() == []
    assert cluster.most == 2
    reached(cluster, P.PROMOTED)
    assert cluster.serving() == {NEW}
    assert cluster.target().status.pods == 2, "replicas are no pods of the target"
    assert cluster.operator.errors == []
    labels = frozenset({"verdict": "helps", "reason": "faster"}.items())
    assert cluster.telemetry.counters["retuned_live_proof_verdicts_total", labels] == 1
    document = json.loads(cluster.ledger.proofs[-1])
    state = ReplicaState.model_validate_json(json.dumps(document["state"]))
    assert (document["gate"], document["artifact"]) == ("live-proof", NEW)
    assert state.report is not None
    assert len(state.boots) == 2 * (kept.sham_pairs + kept.pairs)
    assert len(cluster.kept().model_dump_json()) < 8_000


@pytest.mark.parametrize(
    ("effect", "reason"), [(0.0, "live-proof-boot-spread"), (0.08, "live-proof-slower")]
)
def test_anything_else_ends_it_before_a_serving_pod_had_it(effect: float, reason: str) -> None:
    cluster = begun(CanaryCluster(effect=effect))
    cluster.until(lambda: phase(cluster) is P.ROLLED_BACK)
    cluster.turn()
    status = cluster.proposals()[0].status
    assert status.reason == reason
    assert status.detail == cluster.kept().sentence != ""
    assert all(
        each.swaps == [] for uid, each in cluster.servers.items() if uid not in cluster.replicas
    )
    assert cluster.replica_pods() == []
    assert cluster.ledger.learned == {}, "boots leave no lesson"
    assert bool(cluster.target().status.quarantine) is (effect > 0.0)


@pytest.mark.parametrize("end", ["reject", "target", "drain", "hold"])
def test_a_withdrawal_in_the_middle_deletes_the_replicas(end: str) -> None:
    cluster = in_pair(CanaryCluster())
    assert len(cluster.replica_pods()) == 2
    if end == "reject":
        cluster.say("ada", DecisionKind.REJECT)
    elif end == "target":
        cluster.remove(TARGETS, "chat")
    else:
        cluster.freeze(StopPolicy.HOLD if end == "hold" else StopPolicy.HOLD_AND_DRAIN)
    cluster.turn()
    cluster.turn()
    assert phase(cluster) is not P.PROVING
    assert cluster.replica_pods() == []
    assert cluster.serving() == {None}


# --- pods -----------------------------------------------------------------------------------------


def test_a_replica_is_a_pod_of_the_workload_that_no_workload_owns() -> None:
    cluster = begun(CanaryCluster())
    cluster.turn()
    first, second = sorted(cluster.replica_pods(), key=lambda body: body["metadata"]["name"])
    assert [first["metadata"]["name"], second["metadata"]["name"]] == ["swp-1-0-a", "swp-1-0-b"]
    labels = first["metadata"]["labels"]
    assert labels["app"] == "chat", "Services send it traffic"
    assert "pod-template-hash" not in labels
    assert (labels["retuned.dev/replica-of"], labels["retuned.dev/replica-pair"]) == (
        "swp-1",
        "swp-1-0",
    )
    (owner,) = first["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["controller"]) == ("SwapProposal", True)
    assert owner["uid"] == cluster.proposals()[0].metadata.uid
    assert first["spec"]["nodeSelector"] == {"gpu": "mi300x"}


def test_replicas_are_no_pods_of_their_target() -> None:
    cluster = in_pair(CanaryCluster())
    cluster.turn()
    assert len(cluster.replica_pods()) == 2
    status = cluster.target().status
    assert (status.pods, status.reporting_pods) == (2, 2)
    target = cluster.operator.world.caches.get(TARGETS, "serving/chat")
    assert target is not None
    rollouts = cluster_view.rollouts_of(cluster.operator.world, "serving/chat")
    assert rollouts is not None
    assert [each.name for each in rollouts.pods] == ["chat-0", "chat-1"]
    body = cluster.replica_pods()[0]
    fleet = CachedFleet(cluster.operator.world.caches, artifact=lambda _: None, key=lambda: "")
    record = fleet.pod("serving", body["metadata"]["name"])
    assert record is not None
    assert (record.target, record.replica) == ("serving/chat", True), "its sidecar is served"
    asked = fleet.boot(record)
    assert asked is not None
    assert asked.replica == record.name
    serving = fleet.pod("serving", "chat-0")
    assert serving is not None
    assert (serving.replica, fleet.boot(serving)) == (False, None)


def test_while_boots_run_nothing_is_written() -> None:
    cluster = in_pair(CanaryCluster())
    cluster.turn(seconds=30.0)
    version = cluster.proposals()[0].metadata.resource_version
    writes, kept = len(cluster.api.kinds), len(cluster.ledger.proofs)
    for _ in range(4):
        cluster.turn(seconds=30.0)
    assert cluster.kept().open
    assert cluster.proposals()[0].metadata.resource_version == version
    assert (len(cluster.api.kinds), len(cluster.ledger.proofs)) == (writes, kept)


def test_a_rule_that_allows_switching_again_deletes_the_replicas_and_proves_in_serving_pods() -> (
    None
):
    cluster = in_pair(CanaryCluster(switching=False))
    cluster.change(POLICIES, "prod", {"spec": policy(mode="observe", switching=True)["spec"]})
    cluster.until(lambda: phase(cluster) is not P.PROVING)
    cluster.turn()
    assert cluster.replica_pods() == []
    agree(cluster)
    cluster.until(lambda: phase(cluster) is P.PROVING)
    cluster.until(lambda: bool(cluster.proposals()[0].status.live_proofs))


def test_where_the_operator_may_make_none_it_is_held_by_name() -> None:
    cluster = CanaryCluster()
    cluster.owners = None
    cluster.restart()
    propose(cluster)
    agree(cluster)
    for _ in range(5):
        cluster.turn()
    status = cluster.proposals()[0].status
    assert (status.phase, status.reason) == (P.SCHEDULED, "canary-replicas-unavailable")
    assert cluster.replica_pods() == []


def no_workload(cluster: CanaryCluster) -> None:
    for name in ("chat-0", "chat-1"):
        cluster.change(PODS, name, {"metadata": {"ownerReferences": []}})


def own_volumes(cluster: CanaryCluster) -> None:
    change = {"spec": {"volumeClaimTemplates": [{"metadata": {"name": "data"}}]}}
    cluster.change(REPLICA_SETS, "chat-abc", change)


def no_right(cluster: CanaryCluster) -> None:
    class Owners:
        def get(self, resource: Resource, name: str, *, namespace: str = "") -> Obj:
            raise Forbidden("no", status=403)

    cluster.owners = Owners()
    cluster.restart()


@pytest.mark.parametrize("breaks", [no_workload, own_volumes, no_right])
def test_pods_without_a_template_of_use_hold_it_by_name(
    breaks: Callable[[CanaryCluster], None],
) -> None:
    cluster = CanaryCluster()
    breaks(cluster)
    propose(cluster)
    agree(cluster)
    for _ in range(5):
        cluster.turn()
    status = cluster.proposals()[0].status
    assert (status.phase, status.reason) == (P.SCHEDULED, "canary-replicas-unavailable")
    assert status.detail
    assert status.replicas is None


def test_pods_that_find_no_room_end_the_proof_by_name() -> None:
    cluster = CanaryCluster()
    cluster.schedules = lambda _: False
    begun(cluster)
    reached(cluster, P.ROLLED_BACK)
    cluster.turn()
    assert cluster.kept().why == canary.PENDING
    assert canary.PENDING in cluster.proposals()[0].status.detail
    assert cluster.replica_pods() == []


def test_a_pod_that_the_api_server_refuses_ends_the_proof_by_name() -> None:
    cluster = CanaryCluster()

    def refused() -> None:
        raise Forbidden("exceeded quota", status=403)

    hit = Hit(when=Moment.BEFORE, does=refused)
    cluster.api.hits = lambda _, kind, __: hit if kind.startswith("create pods") else None
    begun(cluster)
    reached(cluster, P.ROLLED_BACK)
    assert cluster.kept().why == canary.PENDING
    assert cluster.operator.errors == [], "it holds up no other proposal"


def test_pods_that_only_carry_the_label_are_left_alone() -> None:
    cluster = in_pair(CanaryCluster())
    cluster.change(PODS, "chat-1", {"metadata": {"labels": {"retuned.dev/replica-of": "swp-1"}}})
    cluster.turn()
    assert cluster.target().status.pods == 2, "it is a pod of the target still"
    cluster.say("ada", DecisionKind.REJECT)
    cluster.turn()
    cluster.turn()
    names = {body["metadata"]["name"] for body in cluster.all(PODS)}
    assert names == {"chat-0", "chat-1"}


def test_a_pod_that_ends_or_starts_again_abandons_its_pair() -> None:
    cluster = in_pair(CanaryCluster())
    body = cluster.replica_pods()[0]
    again = [{"name": "server", "restartCount": 1, "state": {"running": {}}}]
    ready = [{"type": "Ready", "status": "True"}]
    status = {"phase": "Running", "conditions": ready, "containerStatuses": again}
    cluster.change(TARGETS, "chat", {"spec": {"container": "server"}})
    cluster.pod_is(body, status)
    cluster.turn()
    assert cluster.kept().why == "replica-restarted"
    cluster.until(lambda: bool(cluster.kept().open))
    cluster.turn()
    cluster.pod_is(cluster.replica_pods()[0], {"phase": "Failed"})
    cluster.turn()
    assert cluster.kept().why == "replica-failed"


def lying(**changes: Any) -> Callable[[PodBoot], PodBoot | None]:
    def lies(said: PodBoot) -> PodBoot:
        if said.window is None or said.replica.endswith("-a"):
            return said
        return said.model_copy(update={"window": said.window.model_copy(update=changes)})

    return lies


def mute(_: PodBoot) -> PodBoot | None:
    return None


def of_another(said: PodBoot) -> PodBoot:
    return said.model_copy(update={"proposal": "another"})


def failed(said: PodBoot) -> PodBoot:
    return said.model_copy(
        update={"phase": BootPhase.FAILED, "reason": "interrupted", "window": None}
    )


@pytest.mark.parametrize(
    ("reports", "why"),
    [
        (lying(boot="another/1"), canary.CONTRADICTED),
        (lying(replica="chat-0"), canary.CONTRADICTED),
        (lying(environment="sha256:" + 64 * "9"), canary.DIFFERENT),
        (lying(began_s=1.0), canary.CONTRADICTED),
        (mute, canary.NO_BOOTS),
        (of_another, canary.NO_BOOTS),
        (failed, "interrupted"),
    ],
)
def test_replicas_that_lie_or_do_not_know_boots_end_the_proof_by_name(
    reports: Callable[[PodBoot], PodBoot | None], why: str
) -> None:
    cluster = CanaryCluster(effect=-0.05)
    cluster.reports_boot = reports
    begun(cluster)
    reached(cluster, P.ROLLED_BACK)
    assert cluster.kept().why == why
    assert cluster.proposals()[0].status.reason == "live-proof-interrupted"
    assert cluster.serving() == {None}


def test_what_a_replica_reports_of_its_work_is_not_that_of_the_target() -> None:
    class Archive:
        def __init__(self) -> None:
            self.taken: list[str] = []

        def take(self, receipt: Receipt, said: Said) -> None:
            self.taken.append(receipt.pod.name)

    cluster, archive = in_pair(CanaryCluster()), Archive()
    reports = Reports(archive)
    said = ProfileReport.model_construct(profile=SimpleNamespace(stats=()))
    uid = next(iter(cluster.replicas))
    for who in (cluster.record_of("swp-1-0-a", uid), cluster.record_of("chat-0", "u")):
        reports.take(Receipt(pod=who, at=cluster.clock.now()), said)
    assert archive.taken == ["chat-0"]


# --- restarts and kills ---------------------------------------------------------------------------


def test_another_template_in_the_middle_begins_the_proof_anew() -> None:
    cluster = in_pair(CanaryCluster(effect=-0.05))
    cluster.until(lambda: cluster.kept().sham_pairs == 2)
    before = cluster.kept().template
    cluster.retemplate("vllm:2")
    cluster.turn()
    assert cluster.kept().template != before
    assert (cluster.kept().anew, cluster.kept().sham_pairs) == (1, 0)
    cluster.until(lambda: phase(cluster) is not P.PROVING)
    assert cluster.kept().verdict == "helps"


def test_an_operator_that_begins_again_goes_on_with_the_same_pods() -> None:
    cluster = in_pair(CanaryCluster(effect=-0.05))
    pods = [body["metadata"]["uid"] for body in cluster.replica_pods()]
    pair = cluster.kept().open
    cluster.restart()
    cluster.operator.sync()
    cluster.operator.look()  # before any sidecar was heard
    assert cluster.kept().open == pair
    cluster.turn()
    assert [body["metadata"]["uid"] for body in cluster.replica_pods()] == pods
    cluster.until(lambda: phase(cluster) is not P.PROVING)
    assert cluster.kept().verdict == "helps"


def test_a_state_that_cannot_be_kept_now_makes_no_pod() -> None:
    cluster = CanaryCluster()
    kept = cluster.ledger.keep_proof

    def full(document: bytes) -> str:
        raise TemporaryError("the disk is full", delay_s=1.0)

    cluster.ledger.keep_proof = full  # type: ignore[method-assign]
    propose(cluster)
    agree(cluster)
    for _ in range(5):
        cluster.turn()
    assert cluster.replica_pods() == []
    assert cluster.proposals()[0].status.replicas is None
    cluster.ledger.keep_proof = kept  # type: ignore[method-assign]
    reached(cluster, P.PROVING)


def test_a_state_that_is_lost_ends_the_proof_by_name() -> None:
    cluster = in_pair(CanaryCluster())
    cluster.ledger.proofs.clear()
    reached(cluster, P.ROLLED_BACK)
    assert cluster.kept().why == canary.STATE_LOST


@pytest.mark.parametrize("when", list(Moment))
@pytest.mark.parametrize("writes", ["create pods", "delete pods", "status swapproposals Proving"])
def test_an_operator_that_is_killed_at_each_write_of_a_proof_ends_the_same(
    writes: str, when: Moment
) -> None:
    cluster, hits = CanaryCluster(effect=-0.05), Counter[str]()
    propose(cluster)
    agree(cluster)

    def dies() -> None:
        raise Died

    def hit(number: int, kind: str, name: str) -> Hit | None:
        if not kind.startswith(writes) or hits["all"] % 2:  # each second try gets through
            hits["all"] += kind.startswith(writes)
            return None
        hits["all"] += 1
        return Hit(when=when, does=dies)

    cluster.api.hits = hit
    deaths = 0
    for _ in range(1500):
        if phase(cluster) not in (P.AWAITING_APPROVAL, P.APPROVED, P.SCHEDULED, P.PROVING):
            break
        try:
            cluster.turn()
        except Died:
            deaths += 1
            cluster.restart()
        assert len(cluster.replica_pods()) <= 2
    assert deaths > 10
    assert cluster.kept().verdict == "helps"
    made = Counter(each for each in cluster.api.made if each.startswith("pods "))
    assert set(made.values()) == {1}, "no pod is made twice"
    cluster.api.hits = lambda *_: None
    cluster.turn()
    cluster.turn()
    assert cluster.replica_pods() == []


def test_an_operator_that_dies_before_it_deletes_leaves_no_replica_of_an_ended_proposal() -> None:
    cluster = in_pair(CanaryCluster())
    cluster.say("ada", DecisionKind.REJECT)

    def dies() -> None:
        raise Died

    hit = Hit(when=Moment.BEFORE, does=dies)
    cluster.api.hits = lambda _, kind, __: hit if kind.startswith("delete pods") else None
    with pytest.raises(Died):
        cluster.turn()
    assert phase(cluster) is P.REJECTED
    assert len(cluster.replica_pods()) == 2
    cluster.api.hits = lambda *_: None
    cluster.restart()
    cluster.turn()
    assert cluster.replica_pods() == []


# --- with real sidecars ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "rule", [{}, {"switching": False, "canaryLeaveOut": "2m", "canaryWindow": "5m"}]
)
def test_real_sidecars_prove_a_swap_that_helps(tmp_path: Path, rule: dict[str, Any]) -> None:
    cluster = begun(RealCanaries(tmp_path, effect=-0.05, **rule))
    cluster.until(lambda: phase(cluster) is not P.PROVING)
    kept = cluster.kept()
    assert (kept.verdict, kept.why, kept.failures) == ("helps", "", 0)
    assert kept.effect == pytest.approx(-0.05, abs=0.01)
    assert cluster.operator.errors == []
    state = json.loads(cluster.ledger.proofs[-1])["state"]
    settings = ReplicaState.model_validate_json(json.dumps(state)).settings
    assert (settings.leave_out_s, settings.window_s) == ((120, 300) if rule else (600, 600))
    voids = [pair["void"] for pair in state["pairs"]]
    assert voids == [None] * len(voids)


def test_real_sidecars_show_nothing_where_there_is_nothing(tmp_path: Path) -> None:
    cluster = begun(RealCanaries(tmp_path))
    reached(cluster, P.ROLLED_BACK)
    assert cluster.kept().reason == "boot-spread"
    assert cluster.serving() == {None}


def test_a_sidecar_that_is_killed_in_its_window_reports_the_boot_as_failed(tmp_path: Path) -> None:
    cluster = begun(RealCanaries(tmp_path))
    cluster.until(lambda: len(cluster.booted) == 2)
    first = next(iter(cluster.booted.values()))
    first.steps.dies_at = 20
    with pytest.raises(KeyboardInterrupt):
        cluster.until(lambda: False, turns=5)
    first.start()
    cluster.until(lambda: cluster.kept().failures == 1)
    assert cluster.kept().why == "interrupted"


def test_a_server_that_starts_again_within_its_window_is_another_boot(tmp_path: Path) -> None:
    cluster = begun(RealCanaries(tmp_path))
    cluster.until(lambda: len(cluster.booted) == 2)
    first = next(iter(cluster.booted.values()))
    look = first.steps.observe

    def observe(seconds: float) -> ObservedSteps:
        seen = look(seconds)
        return replace(seen, instance="i-2") if first.steps.looks > 10 else seen

    first.steps.observe = observe  # type: ignore[method-assign]
    cluster.until(lambda: cluster.kept().failures == 1)
    assert cluster.kept().why == "server-restarted"


def test_a_withdrawal_ends_replicas_with_real_sidecars(tmp_path: Path) -> None:
    cluster = begun(RealCanaries(tmp_path, effect=-0.05))
    cluster.until(lambda: cluster.kept().pairs == 1)

    def running() -> set[str | None]:
        return {pod.server.slots()[0].active for pod in cluster.booted.values()}

    cluster.until(lambda: running() == {None, NEW})
    cluster.say("ada", DecisionKind.ABORT)
    cluster.turn()
    cluster.turn()
    assert phase(cluster) is P.ABORTED
    assert (cluster.replica_pods(), cluster.booted) == ([], {})
    assert cluster.serving() == {None}
    assert (cluster.kept().verdict, cluster.kept().kept) == ("not-concluded", False)

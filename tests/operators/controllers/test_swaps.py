"""What happens to swaps in a whole cluster: freezes, rivals, clocks, silence, deletion."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest import mock

import pytest
from tests.operators import examples
from tests.operators.controllers.cluster import Cluster
from tests.operators.controllers.memory import ANOTHER, LIVE
from tests.operators.controllers.memory_server import MemoryServer
from tests.operators.controllers.server_pods import WORLD

from retuned.control.analysis import Compared
from retuned.stages.gate import DecisionKind, StopPolicy
from retuned_operator.controllers import Proposals, cluster_view
from retuned_operator.controllers.objects import ObservedPod, pod_seen
from retuned_operator.kube.resources import DECISIONS, FREEZES, PODS, POLICIES, PROPOSALS, TARGETS
from retuned_operator.manifests.sidecar import SIDECAR
from retuned_operator.schema import ProposalPhase as P
from retuned_operator.schema import SwapProposal, proposal_spec

OPEN = datetime(2026, 3, 3, 0, 30, tzinfo=UTC)
"""A Tuesday, half past one in Berlin, in the window."""
NEW = examples.ARTIFACT
OTHER = "sha256:" + "9" * 64


def propose(cluster: Cluster, name: str = "swp-1", artifact: str = NEW) -> None:
    now = cluster.clock.now()
    record = examples.a_proposal(
        artifact=artifact, environment=WORLD, created_at=now, expires_at=now + timedelta(days=3)
    )
    spec = proposal_spec(record, target="chat", gpu_model="MI300X", experiment="exp-1")
    cluster.put(PROPOSALS, examples.an_object("SwapProposal", name, spec))


def phase(cluster: Cluster, name: str = "swp-1") -> P:
    return next(p for p in cluster.proposals() if p.metadata.name == name).status.phase


def agree(cluster: Cluster, name: str = "swp-1") -> None:
    cluster.until(lambda: phase(cluster, name) is P.AWAITING_APPROVAL)
    cluster.say("ada", on=name)
    cluster.say("ben", on=name)


def reached(cluster: Cluster, wanted: P, name: str = "swp-1") -> None:
    cluster.until(lambda: phase(cluster, name) is wanted)


def at_canary(pods: int = 3) -> Cluster:
    cluster = Cluster(OPEN, pods=pods)
    propose(cluster)
    agree(cluster)
    reached(cluster, P.ANALYZING)
    return cluster


def active(cluster: Cluster) -> list[str | None]:
    return [each.active for each in cluster.servers.values()]


def test_a_freeze_in_the_middle_of_a_canary_holds_it_and_its_end_lets_it_go_on() -> None:
    cluster = at_canary()
    cluster.freeze(StopPolicy.HOLD)
    for _ in range(30):
        cluster.turn()
    assert active(cluster).count(NEW) == 1
    assert phase(cluster) is P.ANALYZING
    cluster.remove(FREEZES, "stop", namespace="")
    reached(cluster, P.PROMOTED)


@pytest.mark.parametrize("policy", [StopPolicy.HOLD_AND_DRAIN, StopPolicy.HOLD_AND_ROLLBACK])
def test_a_freeze_that_drains_takes_a_canary_back_and_blames_nobody(policy: StopPolicy) -> None:
    cluster = at_canary()
    cluster.freeze(policy)
    reached(cluster, P.ROLLED_BACK)
    assert active(cluster) == [None] * 3
    assert cluster.target().status.quarantine == ()


def test_freezes_that_cannot_be_listed_hold_a_canary_and_do_not_hold_its_way_back() -> None:
    cluster = at_canary()
    cluster.operator.world.caches._current = lambda plural: plural != "tuningfreezes"  # type: ignore[attr-defined]
    for _ in range(30):
        cluster.turn()
    assert active(cluster).count(NEW) == 1
    cluster.say("eve", DecisionKind.REJECT)
    reached(cluster, P.ROLLED_BACK)


def test_a_freeze_that_cannot_be_read_stands() -> None:
    server = MemoryServer()
    cluster = Cluster(OPEN, server=server)
    propose(cluster)
    cluster.freeze()
    storage = server.objects.storage
    with storage.changed:
        key, body = next(each for each in storage.all() if each[0][0] == FREEZES)
        storage.put(key, {**body, "spec": {"stopPolicy": "Someday"}})
    for _ in range(20):
        cluster.turn()
    assert phase(cluster) is P.AWAITING_APPROVAL
    assert active(cluster) == [None] * 3


def test_two_proposals_for_one_kernel_the_newer_one_takes_over() -> None:
    cluster = Cluster(OPEN)
    propose(cluster, "swp-a", NEW)
    cluster.turn()
    propose(cluster, "swp-b", OTHER)
    cluster.turn()
    assert phase(cluster, "swp-a") is P.SUPERSEDED
    agree(cluster, "swp-b")
    reached(cluster, P.PROMOTED, "swp-b")
    assert active(cluster) == [OTHER] * 3


def propose_for_another_kernel(cluster: Cluster) -> None:
    body = next(each for each in cluster.all(PROPOSALS))
    spec = body["spec"] | {"kernel": ANOTHER, "artifact": {"digest": OTHER}}
    cluster.put(PROPOSALS, examples.an_object("SwapProposal", "swp-b", spec))


def test_of_two_agreed_proposals_for_one_target_one_begins_and_the_other_waits() -> None:
    cluster = Cluster(OPEN)
    propose(cluster, "swp-a", NEW)
    agree(cluster, "swp-a")
    reached(cluster, P.ANALYZING, "swp-a")
    propose_for_another_kernel(cluster)
    agree(cluster, "swp-b")
    for _ in range(4):
        cluster.turn()
    waiting = next(p for p in cluster.proposals() if p.spec.kernel == ANOTHER)
    assert (waiting.status.phase, waiting.status.reason) == (P.SCHEDULED, "other-rollout")
    assert waiting.status.rollout is None


def test_caches_that_lag_never_let_two_rollouts_begin_at_once() -> None:
    """The watch brings nothing for a while: what was written is what counts."""
    cluster = Cluster(OPEN)
    propose(cluster, "swp-a", NEW)
    propose_for_another_kernel(cluster)
    cluster.until(lambda: {p.status.phase for p in cluster.proposals()} == {P.AWAITING_APPROVAL})
    for name in ("swp-a", "swp-b"):
        for user in ("ada", "ben"):
            cluster.say(user, on=name)
    cluster.sidecars()
    cluster.operator.sync()
    with cluster.virtual_time():
        for _ in range(6):
            cluster.operator.look(sync=False)
            cluster.clock.advance(1.0)
    under_way = [p for p in cluster.proposals() if p.status.rollout is not None]
    assert [p.metadata.name for p in under_way] == ["swp-a"]
    assert cluster.operator.errors == []  # nobody has written over anybody


@pytest.mark.parametrize("hours", [-3, 3])
def test_pods_whose_clock_is_hours_off_are_swapped_and_taken_back_all_the_same(hours: int) -> None:
    cluster = Cluster(OPEN)
    propose(cluster)
    agree(cluster)
    cluster.skew = timedelta(hours=hours)
    reached(cluster, P.PROMOTED)
    assert active(cluster) == [NEW] * 3
    next(iter(cluster.servers.values())).says = "rollback"
    reached(cluster, P.ROLLED_BACK)
    assert active(cluster) == [None] * 3


def test_an_operator_that_begins_anew_does_not_take_silence_for_a_swap_that_never_was() -> None:
    cluster = at_canary()
    (swapped,) = (each for each in cluster.servers.values() if each.active == NEW)
    for each in cluster.servers.values():
        each.says = "silent"
    cluster.clock.advance(3600.0)
    cluster.restart()
    cluster.turn()
    (proposal,) = cluster.proposals()
    assert not proposal.status.phase.is_going_back
    assert proposal.status.rollout is not None
    assert [t.done for t in proposal.status.rollout.pods] == [True]
    for each in cluster.servers.values():
        each.says = "keep"
    reached(cluster, P.PROMOTED)
    assert len(swapped.swaps) == 1


def ended(cluster: Cluster, pod: str, *, clock_apart: timedelta) -> None:
    """Let the server of a pod end once, on a node whose clock is apart from the operator's."""
    at = (cluster.clock.now() + clock_apart).strftime("%Y-%m-%dT%H:%M:%SZ")
    last = {"terminated": {"exitCode": 139, "finishedAt": at}}
    containers = [
        {"name": "server", "restartCount": 1, "state": {"running": {}}, "lastState": last}
    ]
    cluster.change(PODS, pod, {"status": {"containerStatuses": containers}}, subresource="status")


APART = pytest.mark.parametrize("hours", [-2, 0, 2], ids=["behind", "alike", "ahead"])


@APART
def test_a_server_that_crashes_after_its_swap_takes_everybody_back(hours: int) -> None:
    cluster = at_canary(pods=2)
    (swapped,) = (each for each in cluster.servers.values() if each.active == NEW)
    ended(cluster, swapped.name, clock_apart=timedelta(hours=hours))
    reached(cluster, P.ROLLED_BACK)
    assert [q.digest for q in cluster.target().status.quarantine] == [NEW]


@APART
def test_a_server_that_crashed_before_its_swap_says_nothing_against_it(hours: int) -> None:
    cluster = Cluster(OPEN)
    for name in [each.name for each in cluster.servers.values()]:
        ended(cluster, name, clock_apart=timedelta(hours=hours))
    propose(cluster)
    agree(cluster)
    reached(cluster, P.PROMOTED)


@pytest.mark.parametrize(
    ("status", "ends"),
    [
        ({"restartCount": 0, "state": {"running": {}}}, 0),
        ({"restartCount": 0, "state": {"waiting": {"reason": "ContainerCreating"}}}, 0),
        ({"restartCount": 0, "state": {"terminated": {"exitCode": 1}}}, 1),
        ({"restartCount": 1, "state": {"waiting": {}}, "lastState": {"terminated": {}}}, 2),
        ({"restartCount": 2, "state": {"running": {}}, "lastState": {"terminated": {}}}, 2),
        ({"restartCount": "many"}, 0),
    ],
)
def test_the_ends_of_a_server_are_counted_however_it_stands(
    status: dict[str, Any], ends: int
) -> None:
    body = {
        "metadata": {"name": "chat-0", "uid": "u-0"},
        "spec": {"containers": [{"name": "server"}], "initContainers": [{"name": SIDECAR}]},
        "status": {"containerStatuses": [{"name": "other"}, {"name": "server", **status}]},
    }
    seen = pod_seen(body, container="server")
    assert seen is not None
    assert seen.ends == ends


def going_back(cluster: Cluster, *, turns: int = 4) -> SwapProposal:
    """Return the proposal once it goes back, within two minutes of its first order."""
    for _ in range(turns):
        cluster.turn()
    (proposal,) = cluster.proposals()
    assert proposal.status.phase is P.ROLLED_BACK
    return proposal


def refused_at_once(code: str) -> Cluster:
    cluster = Cluster(OPEN)
    propose(cluster)
    agree(cluster)
    for each in cluster.servers.values():
        each.refuses = code
    return cluster


def test_a_swap_that_a_sidecar_refuses_goes_back_at_once_and_says_why() -> None:
    cluster = refused_at_once("signature-missing")
    proposal = going_back(cluster)
    assert proposal.status.reason == "order-refused"
    steps = [(step.to, step.reason) for step in proposal.status.history]
    assert (P.ROLLING_BACK, "order-refused") in steps
    assert "signature-missing" in cluster.events("RollingBack")[0]
    assert cluster.target().status.quarantine == ()


def test_code_that_a_server_finds_wrong_is_kept_away_for_a_while() -> None:
    cluster = refused_at_once("self-check-failed")
    going_back(cluster)
    assert [q.digest for q in cluster.target().status.quarantine] == [NEW]


def test_an_operator_that_begins_anew_learns_of_a_refusal_that_another_was_told() -> None:
    cluster = refused_at_once("signature-missing")
    cluster.turn()  # the order is out
    cluster.sidecars()  # and refused, which the operator hears and dies
    cluster.restart()
    assert going_back(cluster).status.reason == "order-refused"


def test_a_pod_that_cannot_swap_yet_says_why_and_has_its_time() -> None:
    cluster = Cluster(OPEN)
    propose(cluster)
    agree(cluster)
    for each in cluster.servers.values():
        each.waits = "self-check-no-shape"
    for _ in range(6):
        cluster.turn()
    (proposal,) = cluster.proposals()
    assert proposal.status.phase is P.CANARY
    assert proposal.status.rollout is not None
    assert [told.held for told in proposal.status.rollout.pods] == ["self-check-no-shape"]
    for each in cluster.servers.values():
        each.waits = ""
    reached(cluster, P.PROMOTED)


def test_a_pod_that_could_not_swap_in_time_is_named_with_what_it_waited_for() -> None:
    cluster = Cluster(OPEN)
    propose(cluster)
    agree(cluster)
    for each in cluster.servers.values():
        each.waits = "self-check-no-shape"
    reached(cluster, P.ROLLED_BACK)
    assert "swap-timeout (chat-0 (self-check-no-shape))" in cluster.events("RollingBack")[0]


def test_a_pod_that_knows_a_later_order_is_told_again_under_a_newer_epoch() -> None:
    cluster = refused_at_once("out-of-epoch")
    for _ in range(3):
        cluster.turn()
    for each in cluster.servers.values():
        each.refuses = ""
    reached(cluster, P.PROMOTED)


METRIC = {"name": "ttft_p95", "query": "q", "max": "1.02x baseline"}


def measured(**said: float | None) -> Cluster:
    """Return a cluster in which a policy names a metric, with what monitoring says of it."""
    cluster = Cluster(OPEN)
    analysis = {"metrics": [METRIC], "interval": "1m", "inconclusiveLimit": 2, "failureLimit": 0}
    cluster.change(POLICIES, "prod", {"spec": {"rollout": {"analysis": analysis}}})
    cluster.signals.says = {"ttft_p95": Compared(before=1.0, samples=500, **said)}
    propose(cluster)
    agree(cluster)
    return cluster


def test_metrics_that_stay_good_let_a_swap_spread_and_are_asked_for_the_pods_that_have_it() -> None:
    cluster = measured(now=1.01)
    reached(cluster, P.PROMOTED)
    (proposal,) = cluster.proposals()
    assert proposal.status.rollout is not None
    assert {since for _, since in cluster.signals.asked} == {proposal.status.rollout.started_at}
    sets = [about.pods for about, _ in cluster.signals.asked]
    assert sets[0] == ("chat-0",)
    assert sets[-1] == ("chat-0", "chat-1", "chat-2")
    assert len(sets) <= 5, "once a look, and no more"


def test_a_metric_that_gets_worse_goes_back_with_its_numbers() -> None:
    cluster = measured(now=1.5)
    reached(cluster, P.ROLLED_BACK)
    note = cluster.events("RollingBack")[0]
    assert note.endswith("analysis-failed (ttft_p95 is 1.5, before 1, at most 1.02)")
    assert [q.digest for q in cluster.target().status.quarantine] == [NEW]


def test_a_metric_of_which_nobody_knows_anything_pauses() -> None:
    cluster = measured(now=None)
    reached(cluster, P.PAUSED)
    assert active(cluster).count(NEW) == 1
    (proposal,) = cluster.proposals()
    assert proposal.status.reason == "metric-no-data"
    assert proposal.status.detail == "ttft_p95 has no value now"


def test_who_deletes_a_proposal_that_is_under_way_holds_nothing_up_and_its_pods_go_back() -> None:
    cluster = at_canary()
    cluster.remove(PROPOSALS, "swp-1")
    assert cluster.proposals() == []
    cluster.turn()
    assert active(cluster) == [None] * 3


def test_who_deletes_what_is_in_force_takes_it_out_of_the_target_too() -> None:
    cluster = at_canary()
    reached(cluster, P.PROMOTED)
    cluster.turn()
    assert len(cluster.target().status.active_kernels) == 1
    cluster.remove(PROPOSALS, "swp-1")
    cluster.turn()
    assert active(cluster) == [None] * 3
    assert cluster.target().status.active_kernels == ()


@pytest.mark.parametrize("at", [P.ANALYZING, P.PROMOTED])
def test_a_target_that_is_deleted_ends_its_proposals_and_its_pods_go_back(at: P) -> None:
    cluster = at_canary()
    reached(cluster, at)
    cluster.remove(TARGETS, "chat")
    cluster.turn()
    (proposal,) = cluster.proposals()  # an owner would have taken it along
    assert (proposal.status.phase, proposal.status.reason) == (P.ROLLED_BACK, "target-gone")
    assert active(cluster) == [None] * 3
    assert "target-gone" in cluster.events("RollingBack")[0]


def test_what_an_earlier_version_held_a_proposal_by_is_taken_away() -> None:
    cluster = at_canary()
    held = {"metadata": {"finalizers": ["retuned.dev/rollout", "example.org/other"]}}
    cluster.change(PROPOSALS, "swp-1", held)
    cluster.remove(PROPOSALS, "swp-1")
    cluster.turn()
    (body,) = cluster.all(PROPOSALS)
    assert body["metadata"]["finalizers"] == ["example.org/other"]
    cluster.change(PROPOSALS, "swp-1", {"metadata": {"finalizers": ["retuned.dev/rollout"]}})
    cluster.turn()
    assert cluster.all(PROPOSALS) == []
    assert cluster.operator.errors == []


def test_a_policy_that_cannot_be_used_is_said_so_and_holds_everything() -> None:
    cluster = Cluster(OPEN)
    propose(cluster)
    cluster.until(lambda: phase(cluster) is P.AWAITING_APPROVAL)
    window = {"kind": "deny", "schedule": "0 9 * * *", "duration": "8h", "timeZone": "Mars/Base"}
    cluster.change(POLICIES, "prod", {"spec": {"windows": [window]}})
    cluster.say("ada")
    cluster.say("ben")
    for _ in range(5):
        cluster.turn()
    conditions = cluster.all(POLICIES)[0]["status"]["conditions"]
    assert [c["status"] for c in conditions if c["type"] == "Ready"] == ["False"]
    (proposal,) = cluster.proposals()
    assert (proposal.status.reason, proposal.status.rollout) == ("unreadable", None)


def test_a_decision_is_marked_with_whether_it_counts() -> None:
    cluster = Cluster(OPEN)
    propose(cluster)
    cluster.until(lambda: phase(cluster) is P.AWAITING_APPROVAL)
    cluster.say("ada")
    cluster.say("mallory")
    for _ in range(2):
        cluster.turn()
    said = {
        body["spec"]["user"]: body["status"]["conditions"][0]["status"]
        for body in cluster.all(DECISIONS)
    }
    assert said == {"ada": "True", "mallory": "False"}
    assert cluster.telemetry.total("retuned_swap_decisions_total") == 2


def test_break_glass_reaches_one_pod_and_waits_for_a_quorum() -> None:
    cluster = Cluster(OPEN.replace(hour=12))
    propose(cluster)
    cluster.until(lambda: phase(cluster) is P.AWAITING_APPROVAL)
    cluster.say("lea", DecisionKind.BREAK_GLASS)
    for _ in range(80):
        cluster.turn()
    assert active(cluster).count(NEW) == 1
    assert phase(cluster) is P.WATCHING


def test_a_target_says_how_many_pods_report_and_what_they_run_on() -> None:
    cluster = Cluster(OPEN)
    cluster.turn()
    status = cluster.target().status
    assert (status.pods, status.reporting_pods) == (3, 3)
    assert status.environment == WORLD
    for each in cluster.servers.values():
        each.says = "silent"
    cluster.turn(seconds=200.0)
    cluster.turn()
    status = cluster.target().status
    assert (status.reporting_pods, status.environment) == (0, None)


def test_pods_and_swaps_leave_no_more_than_twenty_steps_of_history() -> None:
    cluster = at_canary()
    for _ in range(12):
        for each in cluster.servers.values():
            each.says = "none"
        cluster.until(lambda: phase(cluster) is P.PAUSED)
        cluster.clock.advance(60.0)
        cluster.say("eve")
        cluster.until(lambda: phase(cluster) is not P.PAUSED)
    (proposal,) = cluster.proposals()
    assert len(proposal.status.history) <= 20
    assert len(proposal.status.conditions) <= 16


@pytest.mark.parametrize(
    ("environment", "allowed"), [("staging", True), ("prod", False), ("", False)]
)
def test_a_target_without_an_environment_has_that_of_the_operator(
    environment: str, allowed: bool
) -> None:
    cluster = Cluster(OPEN)
    cluster.change(TARGETS, "chat", {"metadata": {"labels": {"env": None}}})
    gates = [{"name": "own", "when": {"env": ["staging"]}, "approvals": {"required": 0}}]
    cluster.change(POLICIES, "prod", {"spec": {"gates": gates}})
    world = replace(cluster.operator.world, environment=environment)
    controllers = Proposals(world, cluster.operator.acting, telemetry=cluster.telemetry)
    propose(cluster)
    for _ in range(3):
        cluster.sidecars()
        cluster.operator.sync()
        with cluster.virtual_time():
            cluster.operator.controllers[2][1].reconcile("serving/chat")
            controllers.reconcile("serving/chat")
    (proposal,) = cluster.proposals()
    assert (proposal.status.rollout is not None) is allowed


def test_a_pod_whose_live_kernel_has_no_slot_yet_can_be_told_and_others_that_say_nothing_not() -> (
    None
):
    resource = mock.Mock()
    resource.spec.kernel = LIVE
    resource.status.rollout = None
    seen = ObservedPod(name="chat-0", uid="u-0", ready=True)
    watch = mock.Mock(slots=(), held=())
    said = mock.Mock(watch=watch, hello=None, proofs=None)

    def ready(*, is_live: bool, says: object) -> bool:
        world = mock.Mock()
        world.reports.of.return_value = says
        return cluster_view._pod(world, resource, seen, now=OPEN, is_live=is_live).ready

    assert ready(is_live=True, says=said)
    assert not ready(is_live=False, says=said), "a server that is still building its model"
    assert not ready(is_live=True, says=None), "nobody has heard of it"
    assert not ready(is_live=True, says=mock.Mock(watch=None, hello=None, proofs=None))

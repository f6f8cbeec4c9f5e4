"""What a cluster's operator shows: what stands is there, and what is over is there no more."""

from __future__ import annotations

from datetime import timedelta

import pytest
from tests.operators import examples
from tests.operators.controllers.cluster import Cluster
from tests.operators.controllers.memory import KERNEL
from tests.operators.controllers.test_swaps import (
    OPEN,
    agree,
    at_canary,
    measured,
    propose,
    reached,
)

from retuned.api.experiment import Spell
from retuned.stages.gate import DecisionKind
from retuned.telemetry import Exporter
from retuned.telemetry.loop_metrics import PENDING_ROWS
from retuned.telemetry.prometheus import FakeTelemetry, PrometheusTelemetry
from retuned_operator.controllers.writer import experiment_moved
from retuned_operator.kube.resources import FREEZES, POLICIES, Resource
from retuned_operator.metrics import ClusterMetrics
from retuned_operator.schema import ExperimentPhase as E
from retuned_operator.schema import KernelExperimentStatus
from retuned_operator.schema import ProposalPhase as P

AWAITING = "retuned_swap_proposal_awaiting_approval"
BACK, FAILED = "retuned_swap_rolled_back", "retuned_swap_rollback_failed"
PAUSED = "retuned_swap_paused"


def look(cluster: Cluster) -> FakeTelemetry:
    cluster.operator.sync()
    world = cluster.operator.world
    ClusterMetrics(world.caches, cluster.telemetry, clock=cluster.clock).show()
    return cluster.telemetry


def waiting() -> Cluster:
    cluster = Cluster(OPEN)
    propose(cluster)
    reached(cluster, P.AWAITING_APPROVAL)
    return cluster


def test_a_proposal_is_shown_only_while_it_waits_for_people() -> None:
    cluster = waiting()
    shown = look(cluster)
    labels = {"namespace": "serving", "proposal": "swp-1", "target": "chat", "kernel": KERNEL}
    more = {"gpu_model": "MI300X", "digest": examples.ARTIFACT}
    assert shown.row(AWAITING, **labels, **more) == 1.0
    assert shown.row("retuned_swap_proposal_approvals_missing", proposal="swp-1") == 2.0
    assert shown.row("retuned_swap_proposal_pods", proposal="swp-1") == 3.0
    cluster.say("ada")
    cluster.turn()
    assert look(cluster).row("retuned_swap_proposal_approvals_missing", proposal="swp-1") == 1.0
    agree(cluster)
    reached(cluster, P.ANALYZING)
    shown = look(cluster)
    assert shown.tables[AWAITING] == {}
    assert shown.row("retuned_proposals", phase="analyzing") == 1.0
    assert shown.total("retuned_swap_decisions_total", decision="approve", channel="kubectl") >= 2
    reached(cluster, P.PROMOTED)
    saving = look(cluster).row("retuned_swap_in_force_saving_ratio", target="chat", kernel=KERNEL)
    assert saving == examples.a_proposal().expected_saving


def test_ways_back_are_counted_with_their_reason() -> None:
    cluster = at_canary()
    for server in cluster.servers.values():
        server.says = "rollback"
    reached(cluster, P.ROLLED_BACK)
    shown = look(cluster)
    assert shown.total("retuned_rollbacks_total") == 1
    assert shown.total("retuned_rollbacks_total", reason="(other)") == 0
    assert shown.total("retuned_swap_phases_total", phase="rolled-back") == 1


def test_a_way_back_that_does_not_arrive_is_counted_as_failed() -> None:
    cluster = at_canary()
    for server in cluster.servers.values():
        server.says = "rollback"
    cluster.turn()
    for server in cluster.servers.values():
        server.says = "silent"
    reached(cluster, P.ROLLBACK_FAILED)
    shown = look(cluster)
    assert shown.row("retuned_proposals", phase="rollback-failed") == 1.0
    assert shown.total("retuned_rollbacks_failed_total") == 1
    about = {"namespace": "serving", "proposal": "swp-1", "target": "chat", "kernel": KERNEL}
    assert shown.row(FAILED, **about, server="chat-0") == 1.0
    for server in cluster.servers.values():
        server.says = "rollback"
    reached(cluster, P.ROLLED_BACK)
    assert look(cluster).tables[FAILED] == {}


def test_a_swap_that_went_back_is_named_for_a_quarter_of_an_hour() -> None:
    cluster = at_canary()
    assert look(cluster).tables[BACK] == {}
    for server in cluster.servers.values():
        server.says = "rollback"
    reached(cluster, P.ROLLED_BACK)
    (step,) = [s for s in cluster.proposals()[0].status.history if s.to is P.ROLLING_BACK]
    about = {"namespace": "serving", "proposal": "swp-1", "target": "chat", "kernel": KERNEL}
    assert look(cluster).row(BACK, **about, reason=step.reason) == 1.0
    cluster.clock.advance(901.0)
    assert look(cluster).tables[BACK] == {}


def test_a_paused_rollout_is_named_with_what_an_approval_has_to_name() -> None:
    cluster = measured(now=None)
    assert look(cluster).tables[PAUSED] == {}
    reached(cluster, P.PAUSED)
    about = {"namespace": "serving", "proposal": "swp-1", "target": "chat", "kernel": KERNEL}
    assert look(cluster).row(PAUSED, **about, digest=examples.ARTIFACT) == 1.0
    cluster.say("ada", DecisionKind.REJECT)
    cluster.until(lambda: cluster.proposals()[0].status.phase is not P.PAUSED)
    assert look(cluster).tables[PAUSED] == {}


def test_experiments_are_counted_from_begin_to_end() -> None:
    cluster = Cluster(OPEN)
    cluster.experiment()
    cluster.until(lambda: cluster.experiments()[0].status.phase.is_terminal)
    shown = look(cluster)
    assert shown.total("retuned_experiments_started_total") == 1
    assert shown.total("retuned_experiments_ended_total", outcome="succeeded") == 1
    assert shown.row("retuned_experiments", phase="succeeded") == 1.0


def test_what_an_experiment_held_is_counted_at_its_end_and_once() -> None:
    telemetry = FakeTelemetry(exporter=Exporter.OPERATOR)
    waits = KernelExperimentStatus(phase=E.QUEUED)
    runs = KernelExperimentStatus(phase=E.RUNNING, started_at=OPEN)
    again = runs.model_copy(update={"phase": E.PREEMPTED})
    minutes = [OPEN + timedelta(minutes=n) for n in range(8)]
    spells = tuple(
        Spell(job="search-1", started_at=begin, ended_at=end)
        for begin, end in ((minutes[0], minutes[1]), (minutes[5], minutes[7]))
    )
    over = KernelExperimentStatus(
        phase=E.NO_IMPROVEMENT, started_at=OPEN, finished_at=minutes[7], device_time=spells
    )
    for before, after in ((waits, runs), (runs, again), (again, runs), (runs, over), (over, over)):
        experiment_moved(telemetry, before, after)
    assert telemetry.total("retuned_experiments_started_total") == 1
    assert telemetry.total("retuned_experiment_phases_total") == 4
    assert telemetry.total("retuned_experiments_ended_total", outcome="no-improvement") == 1
    assert telemetry.total("retuned_experiment_gpu_seconds_total") == 180.0, "waiting is free"
    assert list(telemetry.observed.values()) == [[420.0]]


def test_freezes_policies_and_pods_are_shown_as_they_stand() -> None:
    cluster = Cluster(OPEN)
    cluster.freeze()
    cluster.turn()
    cluster.turn()
    shown = look(cluster)
    since = shown.row("retuned_freeze_since_timestamp_seconds", freeze="stop")
    assert since == OPEN.timestamp()
    assert shown.row("retuned_policy_valid", namespace="serving", policy="prod") == 1.0
    assert shown.row("retuned_target_pods", target="chat", state="reporting") == 3.0
    assert shown.row("retuned_target_ready", target="chat") == 1.0
    cluster.remove(FREEZES, "stop", namespace="")
    assert look(cluster).tables["retuned_freeze_since_timestamp_seconds"] == {}


def test_pods_that_say_nothing_any_more_are_shown_as_silent() -> None:
    cluster = Cluster(OPEN)
    cluster.turn()
    for server in cluster.servers.values():
        server.says = "silent"
    for _ in range(20):
        cluster.turn()
    assert look(cluster).row("retuned_target_pods", target="chat", state="silent") == 3.0


def test_a_policy_that_cannot_be_used_is_shown_as_such() -> None:
    cluster = Cluster(OPEN)
    cluster.turn()
    ready = {"type": "Ready", "status": "False", "reason": "unreadable", "message": "no"}
    ready["lastTransitionTime"] = "2026-03-03T00:30:00Z"
    change = {"status": {"conditions": [ready]}}
    cluster.change(POLICIES, "prod", change, subresource="status")
    assert look(cluster).row("retuned_policy_valid", policy="prod") == 0.0


def test_what_is_not_known_is_left_as_it_was() -> None:
    cluster = waiting()
    before = dict(look(cluster).tables)
    cluster.operator.current = False
    assert look(cluster).tables == before


def test_of_very_many_proposals_those_that_expire_first_are_shown() -> None:
    real = PrometheusTelemetry(Exporter.OPERATOR)
    rows = [
        ({"namespace": "serving", "proposal": f"swp-{n}"}, 1.0) for n in range(PENDING_ROWS + 50)
    ]
    real.table("retuned_swap_proposal_approvals_missing", rows)
    text = real.text()
    assert 'proposal="swp-199"' in text
    assert 'proposal="swp-200"' not in text
    assert 'retuned_metrics_refused_total{reason="too-many"} 50.0' in text


@pytest.mark.parametrize("kind", [POLICIES, FREEZES])
def test_an_object_that_makes_no_sense_hides_no_other(kind: Resource) -> None:
    cluster = waiting()
    metadata = {"name": "odd", "namespace": "serving" if kind is POLICIES else ""}
    cluster.operator.sync()
    cluster.operator.stores[kind].put({"metadata": metadata, "spec": 7, "status": {}})
    world = cluster.operator.world
    ClusterMetrics(world.caches, cluster.telemetry, clock=cluster.clock).show()
    assert cluster.telemetry.row(AWAITING, proposal="swp-1") == 1.0

"""Alarms in a cluster: a pod tries its swaps off, and harm that its pairs show rolls them back."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.operators.controllers.server import Died, Hit, Hits, Moment
from tests.operators.controllers.test_live_proofs import NEW, ProvingCluster, ProvingPod, policy
from tests.operators.controllers.test_sentinels import promoted
from tests.operators.controllers.test_swaps import phase
from tests.sidecar.test_attribution import alarmed

from retuned.api.agent import ProofPost
from retuned.api.proposal import LiveProofStatus
from retuned.node.attribution import ATTRIBUTION
from retuned.stages.gate import StopPolicy
from retuned.stages.watch.proof import ProofClaim, ProofReason, Verdict
from retuned_operator.kube.resources import FREEZES, POLICIES
from retuned_operator.schema import ProposalPhase as P


def kept(folder: Path, **rule: Any) -> ProvingCluster:
    """Return a cluster whose promoted swap has no sentinel that would find harm first."""
    cluster = promoted(folder, sentinel=0.0, **rule)
    cluster.turn()
    return cluster


def raises_an_alarm(cluster: ProvingCluster, name: str = "chat-1") -> ProvingPod:
    """Let kernels of one pod take another time, and the pod try its swaps off."""
    pod = cluster.pods[name]
    alarmed(pod)
    pod.sidecar.prove(threading.Event())
    return pod


def trials(cluster: ProvingCluster) -> tuple[LiveProofStatus, ...]:
    (proposal,) = cluster.proposals()
    return proposal.status.attributions


def outcome(pod: ProvingPod) -> str:
    (stored,) = pod.ctx.store.list(ATTRIBUTION)
    return stored.phase


def turns(cluster: ProvingCluster, count: int = 4) -> None:
    for _ in range(count):
        cluster.turn(seconds=5.0)


def goes_back(cluster: ProvingCluster) -> None:
    for _ in range(60):
        cluster.turn(seconds=5.0)
        if phase(cluster) is P.ROLLED_BACK:
            return
    raise AssertionError(cluster.standing())


def test_a_swap_that_is_the_cause_goes_back_everywhere(tmp_path: Path) -> None:
    cluster = kept(tmp_path)
    for pod in cluster.pods.values():
        pod.live.effect = 0.05
    pod = raises_an_alarm(cluster)
    assert outcome(pod) == "swap"
    goes_back(cluster)
    assert cluster.serving() == {None}
    (entry,) = trials(cluster)
    assert (entry.name, entry.verdict, entry.reason) == ("chat-1", "harms", "slower")
    assert entry.evidence is not None
    document = json.loads(cluster.ledger.proofs[-1])
    assert document["judged"]["verdict"] == "harms"
    (proposal,) = cluster.proposals()
    back = next(each for each in proposal.status.history if each.to is P.ROLLING_BACK)
    assert back.reason == "attribution-slower"
    (quarantined,) = cluster.target().status.quarantine
    assert quarantined.reason == "attribution-slower"
    assert proposal.status.alarm_rule is None


def test_where_swaps_are_not_the_cause_they_stay(tmp_path: Path) -> None:
    cluster = kept(tmp_path)
    pod = raises_an_alarm(cluster)
    turns(cluster)
    assert outcome(pod) == "not-swaps"
    (entry,) = trials(cluster)
    assert entry.verdict == "helps"
    assert phase(cluster) is P.PROMOTED
    assert cluster.serving() == {NEW}
    before = trials(cluster)
    turns(cluster)
    assert trials(cluster) == before, "the same trial is told again and again"


def test_where_it_is_observed_harm_is_only_reported(tmp_path: Path) -> None:
    cluster = kept(tmp_path, mode="observe")
    for pod in cluster.pods.values():
        pod.live.effect = 0.05
    raises_an_alarm(cluster)
    turns(cluster)
    assert [each.verdict for each in trials(cluster)] == ["harms"]
    assert phase(cluster) is P.PROMOTED
    assert cluster.serving() == {NEW}


def test_while_frozen_or_where_nothing_is_measured_no_swap_is_tried(tmp_path: Path) -> None:
    cluster = kept(tmp_path)
    (proposal,) = cluster.proposals()
    assert proposal.status.alarm_rule is not None
    assert [len(cluster.alarms_of(s)) for s in cluster.servers.values()] == [1, 1]
    cluster.freeze(StopPolicy.HOLD)
    turns(cluster)
    assert [len(cluster.alarms_of(s)) for s in cluster.servers.values()] == [0, 0]
    pod = raises_an_alarm(cluster)
    assert outcome(pod) == "unknown"
    cluster.remove(FREEZES, "stop", namespace="")
    turns(cluster)
    assert [len(cluster.alarms_of(s)) for s in cluster.servers.values()] == [1, 1]
    cluster.change(POLICIES, "prod", {"spec": policy(mode="off")["spec"]})
    turns(cluster)
    assert [len(cluster.alarms_of(s)) for s in cluster.servers.values()] == [0, 0]


def test_a_pod_that_only_says_that_a_swap_harms_takes_nothing_back(tmp_path: Path) -> None:
    cluster = kept(tmp_path)
    pod = raises_an_alarm(cluster)
    lies(pod, lambda true: true.model_copy(
        update={"verdict": Verdict.HARMS, "reason": ProofReason.SLOWER}
    ))  # fmt: skip
    turns(cluster, 10)
    (entry,) = trials(cluster)
    assert (entry.verdict, entry.reason) == ("not-concluded", "contradicted")
    assert phase(cluster) is P.PROMOTED


def lies(pod: ProvingPod, lie: Callable[[ProofClaim], ProofClaim]) -> None:
    """Let a pod report other trials than it has made."""
    post = pod.ctx.operator.post

    def posts(report: Any, *, traceparent: str = "") -> Any:
        if isinstance(report, ProofPost):
            trials = tuple(
                each.model_copy(update={"claim": lie(each.claim)})
                for each in report.trials
                if each.claim is not None
            )
            report = report.model_copy(update={"trials": trials})
        return post(report, traceparent=traceparent)

    operator = pod.ctx.operator
    object.__setattr__(operator, "post", posts)


def test_a_trial_of_another_order_counts_for_nothing(tmp_path: Path) -> None:
    cluster = kept(tmp_path)
    for each in cluster.pods.values():
        each.live.effect = 0.05
    pod = raises_an_alarm(cluster)
    post = pod.ctx.operator.post

    def posts(report: Any, *, traceparent: str = "") -> Any:
        if isinstance(report, ProofPost):
            others = tuple(t.model_copy(update={"epoch": t.epoch + 7}) for t in report.trials)
            report = report.model_copy(update={"trials": others})
        return post(report, traceparent=traceparent)

    object.__setattr__(pod.ctx.operator, "post", posts)
    turns(cluster, 10)
    assert trials(cluster) == ()
    assert phase(cluster) is P.PROMOTED


def dies() -> None:
    raise Died


@pytest.mark.parametrize("when", [Moment.BEFORE, Moment.AFTER])
def test_an_operator_that_is_killed_at_any_write_takes_the_swap_back_once(
    tmp_path: Path, when: Moment
) -> None:
    plain = begun_with_harm(tmp_path / "plain")
    first = len(plain.api.kinds)
    went_back(plain)
    kinds = plain.api.kinds
    for fatal in range(first, len(kinds), 3):
        cluster = begun_with_harm(tmp_path / f"{fatal}")
        cluster.api.hits = hits_at(fatal, Hit(when=when, does=dies))
        went_back(cluster)
        assert cluster.serving() == {None}, kinds[fatal]
        (entry,) = trials(cluster)
        assert (entry.verdict, entry.evidence is not None) == ("harms", True), kinds[fatal]
        assert len(cluster.target().status.quarantine) == 1


def hits_at(fatal: int, hit: Hit) -> Hits:
    return lambda number, *_: hit if number == fatal else None


def begun_with_harm(folder: Path) -> ProvingCluster:
    cluster = kept(folder)
    for pod in cluster.pods.values():
        pod.live.effect = 0.05
    raises_an_alarm(cluster)
    return cluster


def went_back(cluster: ProvingCluster) -> None:
    for _ in range(80):
        try:
            cluster.turn(seconds=5.0)
        except Died:
            cluster.restart()
        quarantined = cluster.target().status.quarantine
        if phase(cluster) is P.ROLLED_BACK and quarantined and cluster.serving() == {None}:
            return
    raise AssertionError(cluster.standing())

"""Sentinels in a cluster: the pod that proved measures on, reports its day, and harm rolls back."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from tests.coins import same_coins
from tests.operators.controllers.server_pods import WORLD
from tests.operators.controllers.test_live_proofs import NEW, ProvingCluster, policy, proofs
from tests.operators.controllers.test_swaps import agree, phase, propose, reached

from retuned.api.agent import ProofPost
from retuned.api.proposal import LiveProofStatus
from retuned.node import sentinel
from retuned.node.sentinel import DAY
from retuned.stages.gate import StopPolicy
from retuned.stages.watch.proof import DAY_S, ProofClaim, ProofReason, Verdict
from retuned_operator.kube.resources import FREEZES, POLICIES
from retuned_operator.schema import ProposalPhase as P

PERIOD_S = 1_250.0
STEP_S = 250.0


@pytest.fixture(autouse=True)
def _moments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw the same moments in each run: coarse steps of time miss some periods."""
    same_coins(monkeypatch, sentinel)


def promoted(folder: Path, **rule: object) -> ProvingCluster:
    cluster = ProvingCluster(folder, **rule)
    for pod in cluster.pods.values():
        pod.live.effect = -0.04
    propose(cluster)
    agree(cluster)
    reached(cluster, P.PROMOTED)
    return cluster


def passes(cluster: ProvingCluster, periods: float) -> None:
    """Let time pass with everybody at work."""
    until = cluster.clock.monotonic_s() + periods * PERIOD_S
    while cluster.clock.monotonic_s() < until:
        cluster.turn(seconds=STEP_S)


def day_over(cluster: ProvingCluster, periods: float) -> None:
    """Let pairs of some periods run, and the rest of the day pass without any."""
    passes(cluster, periods)
    cluster.clock.advance(DAY_S)
    passes(cluster, 2)


def days(cluster: ProvingCluster) -> tuple[LiveProofStatus, ...]:
    (proposal,) = cluster.proposals()
    return proposal.status.sentinels


def pairs(cluster: ProvingCluster) -> dict[str, int]:
    """Return how many pairs each pod has measured since the promotion."""
    found = {}
    for name, pod in cluster.pods.items():
        stored = [each.body["state"] for each in pod.ctx.store.list(DAY)]
        found[name] = sum(
            p["kind"] == "long" and p["void"] is None for state in stored for p in state["pairs"]
        )
    return found


def test_the_pod_that_proved_last_measures_once_a_period(tmp_path: Path) -> None:
    cluster = promoted(tmp_path)
    passes(cluster, 8)
    (entry,) = days(cluster)
    last = proofs(cluster)[-1]
    assert (entry.uid, entry.environment, entry.phase) == (last.uid, WORLD, "sentinel")
    measured = pairs(cluster)
    assert 4 <= measured.pop(last.name) <= 9
    assert set(measured.values()) == {0}, "one pod of an environment is enough"
    assert cluster.serving() == {NEW}
    assert phase(cluster) is P.PROMOTED


def test_what_harms_later_goes_back_everywhere(tmp_path: Path) -> None:
    cluster = promoted(tmp_path)
    for pod in cluster.pods.values():
        pod.live.effect = 0.08
    for _ in range(60):
        passes(cluster, 0.4)
        if phase(cluster) is P.ROLLED_BACK:
            break
    assert cluster.serving() == {None}
    (proposal,) = cluster.proposals()
    back = next(each for each in proposal.status.history if each.to is P.ROLLING_BACK)
    assert back.reason.startswith("sentinel-slow")
    (entry,) = days(cluster)
    assert entry.verdict == "harms"
    assert entry.evidence is not None
    document = json.loads(cluster.ledger.proofs[-1])
    assert document["judged"]["verdict"] == "harms"
    (quarantined,) = cluster.target().status.quarantine
    assert quarantined.reason == back.reason


def test_where_it_is_observed_harm_is_only_reported(tmp_path: Path) -> None:
    cluster = promoted(tmp_path, mode="observe")
    for pod in cluster.pods.values():
        pod.live.effect = 0.08
    passes(cluster, 16)
    (entry,) = days(cluster)
    assert entry.verdict == "harms"
    assert phase(cluster) is P.PROMOTED
    assert cluster.serving() == {NEW}


def test_a_day_is_reported(tmp_path: Path) -> None:
    cluster = promoted(tmp_path)
    day_over(cluster, 14)
    (entry,) = days(cluster)
    assert entry.verdict in ("helps", "too-little-traffic"), "by the coins of so few pairs"
    assert entry.effect == pytest.approx(math.log1p(-0.04), abs=0.005)
    assert "pairs in" in entry.sentence
    assert entry.phase == "sentinel", "the next day has begun"
    assert entry.pairs > 8
    assert entry.evidence is None, "nothing follows from it"
    version = cluster.proposals()[0].metadata.resource_version
    passes(cluster, 2)
    assert cluster.proposals()[0].metadata.resource_version == version, "a day is written once"


@pytest.mark.parametrize("rule", [{"sentinel": 0.0}, {"mode": "off"}])
def test_the_policy_ends_it(tmp_path: Path, rule: dict[str, object]) -> None:
    cluster = promoted(tmp_path)
    passes(cluster, 1)
    cluster.change(POLICIES, "prod", {"spec": policy(**rule)["spec"]})
    cluster.turn(seconds=1.0)
    cluster.turn(seconds=1.0)
    before = pairs(cluster)
    passes(cluster, 4)
    assert [each.phase for each in days(cluster)] == [""]
    assert pairs(cluster) == before


def test_while_frozen_no_pair_runs(tmp_path: Path) -> None:
    cluster = promoted(tmp_path)
    cluster.freeze(StopPolicy.HOLD)
    passes(cluster, 5)
    assert set(pairs(cluster).values()) == {0}
    cluster.remove(FREEZES, "stop", namespace="")
    passes(cluster, 5)
    assert max(pairs(cluster).values()) >= 2


def test_another_pod_that_has_proved_goes_on_where_one_is_gone(tmp_path: Path) -> None:
    cluster = promoted(tmp_path)
    passes(cluster, 1)
    first = days(cluster)[0]
    cluster.stop_pod(first.name)
    passes(cluster, 5)
    (entry,) = days(cluster)
    assert entry.uid != first.uid
    assert entry.phase == "sentinel"
    assert pairs(cluster)[entry.name] >= 2


def test_a_restarted_sidecar_and_operator_go_on_with_the_day(tmp_path: Path) -> None:
    cluster = promoted(tmp_path)
    passes(cluster, 5)
    (entry,) = days(cluster)
    before = pairs(cluster)[entry.name]
    cluster.pods[entry.name].start()
    cluster.restart()
    passes(cluster, 5)
    assert pairs(cluster)[entry.name] > before
    assert len(cluster.pods[entry.name].ctx.store.list(DAY)) == 1
    assert days(cluster) == (entry,)


def test_a_sidecar_that_is_killed_in_a_pair_goes_on(tmp_path: Path) -> None:
    cluster = promoted(tmp_path)
    passes(cluster, 2)
    (entry,) = days(cluster)
    pod = cluster.pods[entry.name]
    pod.live.dies_at = pod.live.reads + 5
    with pytest.raises(KeyboardInterrupt):
        passes(cluster, 6)
    pod.start()
    passes(cluster, 4)
    voids = [p["void"] for s in pod.ctx.store.list(DAY) for p in s.body["state"]["pairs"]]
    assert "abandoned" in voids
    assert cluster.serving() == {NEW}
    assert phase(cluster) is P.PROMOTED


def test_a_pod_that_only_says_that_a_day_harmed_takes_nothing_back(tmp_path: Path) -> None:
    cluster = promoted(tmp_path)
    day_over(cluster, 3)
    (entry,) = days(cluster)
    pod = cluster.pods[entry.name]
    take = cluster.operator.reports.take

    def lies(receipt: object, said: object) -> None:
        if isinstance(said, ProofPost) and said.days:
            claim = said.days[0].claim
            assert isinstance(claim, ProofClaim)
            update = {"verdict": Verdict.HARMS, "reason": ProofReason.SLOWER}
            day = said.days[0].model_copy(update={"claim": claim.model_copy(update=update)})
            said = said.model_copy(update={"days": (day,)})
        take(receipt, said)  # type: ignore[arg-type]

    cluster.operator.reports.take = lies  # type: ignore[method-assign]
    pod.work()
    passes(cluster, 1)
    (entry,) = days(cluster)
    assert (entry.verdict, entry.reason) == ("not-concluded", "contradicted")
    assert phase(cluster) is P.PROMOTED

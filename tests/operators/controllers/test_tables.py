"""Proposals of tables in a cluster: pods without the kernel, and servers that cannot take one."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import yaml
from tests.operators import examples
from tests.operators.controllers.cluster import Cluster
from tests.operators.controllers.server_pods import WORLD
from tests.operators.controllers.test_swaps import OPEN
from tests.operators.table_wins import LAUNCHED, NAME, Tunables, with_launched
from tests.operators.world import POLICY

from retuned.api.proposal import PodState
from retuned_operator.controllers.cluster_view import baseline
from retuned_operator.kube.resources import PROPOSALS
from retuned_operator.schema import ProposalPhase as P
from retuned_operator.schema import SwapProposal, proposal_spec


def a_cluster(**spec: Any) -> tuple[Cluster, Tunables]:
    policy = yaml.safe_load(POLICY)
    policy["spec"] |= spec
    cluster, tunables = Cluster(OPEN, pods=2, policy=policy), Tunables()
    cluster.tunables = tunables
    cluster.restart()
    now = cluster.clock.now()
    record = examples.a_proposal(
        definition=NAME,
        baseline=LAUNCHED.incumbent.digest,
        environment=WORLD,
        created_at=now,
        expires_at=now + timedelta(days=3),
    )
    spec_ = proposal_spec(record, target="chat", gpu_model="MI300X", experiment="exp-1")
    cluster.put(PROPOSALS, examples.an_object("SwapProposal", "swp-1", spec_))
    return cluster, tunables


def agreed(cluster: Cluster) -> None:
    cluster.until(lambda: cluster.proposals()[0].status.phase is P.AWAITING_APPROVAL)
    cluster.say("ada")
    cluster.say("ben")


def test_a_pod_that_has_not_reported_the_kernel_gets_the_order() -> None:
    cluster, tunables = a_cluster()
    agreed(cluster)
    cluster.until(lambda: cluster.proposals()[0].status.phase is P.CANARY)
    told = cluster.proposals()[0].status.rollout
    assert told is not None
    assert [each.wants for each in told.pods] == [PodState.SWAP]
    assert ("serving/chat", NAME) in tunables.asked


def test_a_pod_without_the_kernel_has_nothing_to_roll_back() -> None:
    """Its server has started again, and has not launched the kernel since."""
    cluster, _ = a_cluster()
    agreed(cluster)
    cluster.until(lambda: cluster.proposals()[0].status.phase is P.CANARY)
    abort = {"spec": {"abort": {"requested": True, "reason": "a test"}}}
    cluster.change(PROPOSALS, "swp-1", abort)
    cluster.until(lambda: cluster.proposals()[0].status.phase is P.ROLLED_BACK, turns=20)


@pytest.mark.parametrize(
    ("refused", "reason"),
    [("batch-invariant", "batch-invariant"), ("<b>no</b>", "server-refuses")],
)
def test_a_server_that_refuses_tables_gets_no_order(refused: str, reason: str) -> None:
    cluster, tunables = a_cluster()
    agreed(cluster)
    tunables.found = with_launched(refused=refused)
    cluster.until(lambda: cluster.proposals()[0].status.reason == reason, turns=20)
    assert cluster.proposals()[0].status.phase is P.SCHEDULED
    assert cluster.proposals()[0].status.rollout is None


def test_a_canary_over_launches_says_nothing_against_a_kernel() -> None:
    cluster, _ = a_cluster(rollout={"canary": {"steps": [{"fraction": 0.1}]}, "waves": ["100%"]})
    agreed(cluster)
    cluster.until(lambda: cluster.proposals()[0].status.reason == "canary-not-possible", turns=20)
    kernel = examples.a_proposal(
        environment=WORLD,
        created_at=cluster.clock.now(),
        expires_at=cluster.clock.now() + timedelta(days=3),
    )
    spec = proposal_spec(kernel, target="chat", gpu_model="MI300X", experiment="exp-1")
    cluster.put(PROPOSALS, examples.an_object("SwapProposal", "swp-2", spec))

    def two() -> SwapProposal:
        return next(p for p in cluster.proposals() if p.metadata.name == "swp-2")

    cluster.until(lambda: two().status.phase is P.AWAITING_APPROVAL)
    cluster.say("ada", on="swp-2")
    cluster.say("ben", on="swp-2")
    cluster.until(lambda: two().status.rollout is not None, turns=20)


def test_the_baseline_of_a_tunable_is_the_servers_own_choice() -> None:
    cluster, tunables = a_cluster()
    world = cluster.operator.world
    assert baseline(world, cluster.target(), NAME) == LAUNCHED.incumbent.digest
    frozen = with_launched(frozen={"BLOCK": 16})
    tunables.found = frozen
    assert baseline(world, cluster.target(), NAME) == frozen.incumbent.digest
    assert frozen.incumbent.digest != LAUNCHED.incumbent.digest
    tunables.found = None
    assert baseline(world, cluster.target(), NAME) is None


def test_a_proposal_over_another_choice_is_superseded() -> None:
    cluster, tunables = a_cluster()
    tunables.found = with_launched(source="sha256:" + "6" * 64)
    cluster.until(lambda: cluster.proposals()[0].status.phase is P.SUPERSEDED, turns=20)
    assert cluster.proposals()[0].status.reason == "baseline-changed"

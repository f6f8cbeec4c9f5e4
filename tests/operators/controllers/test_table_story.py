"""From a won experiment on a tunable to a table in force in every pod, and back.

The API server is the fake one in memory. Store, evidence, signatures, sidecars, sockets and server
processes are real; the servers run a real autotuner in Triton's interpreter.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.operators.controllers.table_cluster import TableCluster
from tests.standalone.tunable_world import SIZE

from retuned.contract import Digest
from retuned_operator.kube.resources import PROPOSALS
from retuned_operator.schema import ExperimentPhase
from retuned_operator.schema import ProposalPhase as P

pytestmark = pytest.mark.slow


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[TableCluster]:
    made = TableCluster(tmp_path)
    yield made
    made.close()


def proposed(cluster: TableCluster, name: str = "exp-1", *, size: int = SIZE) -> Digest:
    """Go as far as a proposal that waits; return what people approve."""
    before = len(cluster.proposals())
    cluster.finished_experiment(name, size=size)
    cluster.until(lambda: len(cluster.proposals()) > before, turns=20)
    reached(cluster, P.AWAITING_APPROVAL, name)
    return cluster.proposal(name).spec.artifact.digest


def reached(cluster: TableCluster, wanted: P, name: str = "exp-1") -> None:
    cluster.until(lambda: cluster.proposal(name).status.phase is wanted, turns=120)


def agree(cluster: TableCluster, name: str = "exp-1") -> None:
    for user in ("ada", "ben"):
        cluster.say(user, on=cluster.proposal(name).metadata.name)


def promoted(cluster: TableCluster, name: str = "exp-1", *, size: int = SIZE) -> Digest:
    digest = proposed(cluster, name, size=size)
    agree(cluster, name)
    reached(cluster, P.PROMOTED, name)
    return digest


def roll_back(cluster: TableCluster, name: str = "exp-1") -> None:
    abort = {"spec": {"abort": {"requested": True, "reason": "a test"}}}
    cluster.change(PROPOSALS, cluster.proposal(name).metadata.name, abort)
    reached(cluster, P.ROLLED_BACK, name)


def test_a_win_becomes_a_table_in_force_in_every_pod_and_the_original_again(
    cluster: TableCluster,
) -> None:
    digest = proposed(cluster)
    assert cluster.blocks() == {16}, "nothing is in force before people agree"
    (experiment,) = cluster.experiments()
    cluster.until(lambda: cluster.experiments()[0].status.phase is ExperimentPhase.SUCCEEDED)
    assert experiment.spec.kernel.name == cluster.proposal().spec.kernel
    agree(cluster)
    cluster.until(lambda: len(cluster.blocks()) == 2, turns=20)  # the canary alone
    cluster.restart()  # the operator begins again, and has heard nothing
    reached(cluster, P.PROMOTED)
    assert cluster.blocks() == {256}
    assert all(pod.server.launch(1, size=64) == 16 for pod in cluster.pods.values())
    (entry,) = cluster.target().status.active_kernels
    assert (entry.kernel, entry.digest) == (experiment.spec.kernel.name, digest)
    roll_back(cluster)
    assert cluster.blocks() == {16}
    assert cluster.target().status.active_kernels == ()


def test_a_second_table_keeps_the_rules_of_the_first_and_gives_way_to_it(
    cluster: TableCluster,
) -> None:
    large = 4 * SIZE
    first = promoted(cluster)
    for pod in cluster.pods.values():
        assert pod.server.launch(2, size=large) == 16
    second = promoted(cluster, "exp-2", size=large)
    assert cluster.blocks() == {256}
    assert {pod.server.launch(1, size=large) for pod in cluster.pods.values()} == {256}
    assert [each.digest for each in cluster.target().status.active_kernels] == [second]
    roll_back(cluster, "exp-2")
    assert cluster.blocks() == {256}
    assert {pod.server.launch(1, size=large) for pod in cluster.pods.values()} == {16}
    assert [each.digest for each in cluster.target().status.active_kernels] == [first]
    cluster.pods["chat-0"].began_again()
    cluster.until(lambda: cluster.blocks() == {256}, turns=20)


def test_pods_and_servers_that_start_later_get_the_table(cluster: TableCluster) -> None:
    promoted(cluster)
    cluster.start_pod("chat-2")
    cluster.pods["chat-0"].began_again()
    cluster.until(lambda: cluster.blocks() == {256}, turns=20)
    assert cluster.proposal().status.phase is P.PROMOTED


def test_a_server_of_another_version_takes_the_table_out_of_all_pods(
    cluster: TableCluster,
) -> None:
    promoted(cluster)
    cluster.pods["chat-1"].began_again(RETUNED_TEST_PRODUCT="2.0 * x")
    reached(cluster, P.ROLLED_BACK)
    assert cluster.blocks() == {16}
    assert cluster.proposal().status.history[-1].reason == "source-differs"
    assert cluster.target().status.quarantine == (), "the table is not at fault"


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"validation": {"endToEnd": "required"}}, "end-to-end-unavailable"),
        ({"liveProof": {"mode": "required"}}, "live-proof-unavailable"),
        (
            {"rollout": {"canary": {"steps": [{"fraction": 0.1}]}, "waves": ["100%"]}},
            "canary-not-possible",
        ),
    ],
    ids=["whole", "live", "canary"],
)
def test_a_policy_that_wants_what_a_table_cannot_do_holds_it_back(
    tmp_path: Path, spec: dict[str, Any], reason: str
) -> None:
    cluster = TableCluster(tmp_path, pods=1, **spec)
    try:
        proposed(cluster)
        agree(cluster)
        reached(cluster, P.SCHEDULED)
        cluster.turn()
        assert cluster.proposal().status.reason == reason
        assert cluster.proposal().status.rollout is None
        assert cluster.blocks() == {16}
    finally:
        cluster.close()

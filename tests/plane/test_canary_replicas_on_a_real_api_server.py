"""Canary replicas on a real API server: its schemas take their status, and no workload adopts them.

The ReplicaSet controller of a real control plane runs beside the operator: it would adopt pods
that it takes for its own, or delete them as too many.
"""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from tests.operators.controllers.canary_cluster import CanaryCluster
from tests.operators.controllers.test_canary import _coins as _coins
from tests.operators.controllers.test_swaps import agree, phase, propose, reached
from tests.plane.control_plane import ControlPlane
from tests.plane.real_cluster import real_cluster
from tests.plane.servers import eventually
from tests.plane.test_kill_points_on_a_real_api_server import AHEAD

from retuned_operator.controllers import objects
from retuned_operator.kube.resources import PODS
from retuned_operator.schema import ProposalPhase as P

pytestmark = pytest.mark.plane


class RealWorkload(CanaryCluster):
    """A `CanaryCluster` whose ReplicaSet has a controller."""

    def adopt(self) -> None:
        uid = self.workload["metadata"]["uid"]
        eventually(lambda: {objects.owner_uid(body) for body in self.all(PODS)} == {uid})


def test_replicas_prove_a_swap_beside_the_controller_of_their_workload(
    plane: ControlPlane,
) -> None:
    with real_cluster(plane, replicas=True) as server:
        now = datetime.now(UTC).replace(microsecond=0) + AHEAD
        cluster = RealWorkload(effect=-0.05, server=server, now=now)
        propose(cluster)
        agree(cluster)
        reached(cluster, P.PROVING)
        cluster.until(lambda: bool(cluster.kept().open and all(cluster.kept().open[0].uids)))
        proposal = cluster.proposals()[0].metadata.uid
        assert {objects.owner_uid(body) for body in cluster.replica_pods()} == {proposal}
        cluster.until(lambda: phase(cluster) is not P.PROVING)
        assert cluster.kept().verdict == "helps"
        cluster.turn()
        assert cluster.replica_pods() == []
        names = {body["metadata"]["name"] for body in cluster.all(PODS)}
        assert names == {"chat-0", "chat-1"}, "its workload neither lost nor made one"
        assert cluster.operator.errors == []

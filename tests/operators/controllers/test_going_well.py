from __future__ import annotations

from datetime import UTC, datetime

from tests.operators import examples
from tests.operators.controllers.cluster import Cluster

from retuned_operator.schema import ExperimentPhase, ProposalPhase

OPEN = datetime(2026, 3, 3, 0, 30, tzinfo=UTC)
"""A Tuesday, half past one in Berlin, in the window."""
NEW = examples.ARTIFACT


def test_an_experiment_becomes_a_proposal_that_people_agree_to_and_every_pod_runs() -> None:
    cluster = Cluster(OPEN)
    cluster.experiment()
    cluster.until(
        lambda: bool(cluster.proposals()) and cluster.proposals()[0].status.gate is not None
    )
    (proposal,) = cluster.proposals()
    assert proposal.status.phase is ProposalPhase.AWAITING_APPROVAL
    assert proposal.spec.artifact.digest == NEW
    cluster.turn()
    (experiment,) = cluster.experiments()
    assert experiment.status.phase is ExperimentPhase.SUCCEEDED
    cluster.say("ada")
    cluster.say("ben")
    cluster.until(lambda: cluster.proposals()[0].status.phase is ProposalPhase.PROMOTED)
    cluster.turn()
    assert [each.active for each in cluster.servers.values()] == [NEW] * 3
    (entry,) = cluster.target().status.active_kernels
    assert entry.digest == NEW
    assert cluster.operator.errors == []

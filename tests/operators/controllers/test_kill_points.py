"""The operator is killed at every write of a whole story, and it always ends the same (I5)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from tests.operators import examples
from tests.operators.controllers.cluster import Cluster
from tests.operators.controllers.memory import Died

from retuned_operator.crds import ExperimentPhase, ProposalPhase
from retuned_operator.runtime.errors import Conflict, Unavailable

OPEN = datetime(2026, 3, 3, 0, 30, tzinfo=UTC)
"""A Tuesday, half past one in Berlin, in the window."""
NEW = examples.ARTIFACT


class Story:
    """An experiment, its proposal, canary, waves, promotion, harm, and the way back."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.agreed = False
        self.harmed = False

    def people(self) -> None:
        """Let people do what they have not done yet; they look at what the API server shows."""
        proposals = self.cluster.proposals()
        gate = proposals[0].status.gate if proposals else None
        if not self.agreed and gate is not None:
            self.agreed = True
            self.cluster.say("ada")
            self.cluster.say("ben")
        promoted = bool(proposals) and proposals[0].status.phase is ProposalPhase.PROMOTED
        if not self.harmed and promoted and self.cluster.target().status.active_kernels:
            self.harmed = True
            next(iter(self.cluster.servers.values())).says = "rollback"

    def is_over(self) -> bool:
        proposals, target = self.cluster.proposals(), self.cluster.target()
        (experiment,) = self.cluster.experiments()
        return (
            self.harmed
            and proposals[0].status.phase is ProposalPhase.ROLLED_BACK
            and target.status.active_kernels == ()
            and len(target.status.quarantine) == 1
            and experiment.status.phase is ExperimentPhase.SUCCEEDED
        )

    def play(self) -> None:
        """Play it to its end, whatever happens to operators."""
        for _ in range(200):
            self.people()
            try:
                self.cluster.turn()
            except Died:
                self.cluster.api.fatal_at = None
                self.cluster.restart()
            if self.is_over():
                return
        raise AssertionError(self.cluster.operator.errors[-5:])


def played(fatal_at: int | None = None, **hooks: Callable[[], None]) -> Cluster:
    cluster = Cluster(OPEN, pods=3)
    cluster.experiment()
    cluster.api.fatal_at = fatal_at
    for name, hook in hooks.items():
        setattr(cluster.api, name, hook)
    Story(cluster).play()
    return cluster


def check(cluster: Cluster) -> None:
    """Whatever happened, everything was done once, and everybody is where they should be."""
    made = Counter(cluster.api.made)
    assert set(made.values()) == {1}
    kinds = Counter(each.split()[0] for each in made)
    assert kinds["jobs"] == kinds["configmaps"] == 3
    assert kinds["swapproposals"] == 1
    for server in cluster.servers.values():
        assert server.active is None
        assert [artifact for _, artifact in server.swaps] == [NEW, None]
        epochs = [epoch for epoch, _ in server.swaps]
        assert epochs == sorted(set(epochs))
    (quarantined,) = cluster.target().status.quarantine
    assert quarantined.digest == NEW
    (proposal,) = cluster.proposals()
    seen = [step.to for step in proposal.status.history]
    assert seen.count(ProposalPhase.CANARY) == 1
    assert seen.count(ProposalPhase.PROMOTED) == 1
    assert seen[-2:] == [ProposalPhase.ROLLING_BACK, ProposalPhase.ROLLED_BACK]


@pytest.fixture(scope="module")
def writes() -> int:
    """Return how many writes the story has; without any fault nothing is even repeated."""
    cluster = played()
    check(cluster)
    assert cluster.operator.errors == []
    return len(cluster.api.writes)


def test_a_story_without_faults_has_no_write_too_many(writes: int) -> None:
    assert 40 < writes < 200


def dies() -> None:
    raise Died


def answer_lost() -> None:
    raise Unavailable("the connection broke")


def refused() -> None:
    raise Conflict("somebody was faster", status=409)


FAULTS: list[tuple[str, str, Callable[[], None], int]] = [
    ("killed", "after", dies, 1),  # dying before a write is dying after the one before it
    ("answer-lost", "after", answer_lost, 4),
    ("refused", "before", refused, 4),
]


@pytest.mark.slow
@pytest.mark.timeout(900)  # a story for every write: minutes where others use the machine, too
@pytest.mark.parametrize(
    ("when", "hook", "every"), [each[1:] for each in FAULTS], ids=[each[0] for each in FAULTS]
)
def test_an_operator_that_is_hit_at_any_write_does_nothing_twice_and_ends_the_same(
    writes: int, when: str, hook: Callable[[], None], every: int
) -> None:
    for fatal_at in range(0, writes, every):
        cluster = played(fatal_at, **{when: hook})
        try:
            check(cluster)
        except AssertionError as error:
            raise AssertionError(f"at {cluster.api.writes[fatal_at]} ({fatal_at})") from error

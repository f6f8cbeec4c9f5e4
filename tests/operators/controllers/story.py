"""One story from an experiment to the way back, and what must be so at its end.

Whatever happens to operators on the way, and wherever its API server is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from tests.operators import examples
from tests.operators.controllers.cluster import Cluster
from tests.operators.controllers.server import Died, Hit, Hits, Moment

from retuned_operator.schema import ExperimentPhase, ProposalPhase

NEW = examples.ARTIFACT
KILLERS = ("all-but-events", "first-events", "last-events")
"""Names of those who together hit every write."""
TURNS = 600
"""The most of them that a story may take, those in which an operator dies included."""


class Story:
    """An experiment, its proposal, canary, waves, promotion, harm, and the way back."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.deaths = 0
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
        for _ in range(TURNS):
            self.people()
            try:
                self.cluster.turn()
            except Died:
                self.deaths += 1
                self.cluster.restart()
            if self.is_over():
                return
        raise AssertionError(self.cluster.standing())


def played(cluster: Cluster, hits: Hits | None = None) -> Story:
    """Return a story that was played to its end, and was checked."""
    cluster.experiment()
    cluster.api.hits = hits or cluster.api.hits
    story = Story(cluster)
    story.play()
    check(cluster)
    return story


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


def dies() -> None:
    """Be killed."""
    raise Died


class Killer:
    """Kills at every write of some kinds, so that no operator gets past one of them.

    What did not reach the API server is tried again by the next operator, so that each write of a
    status is hit at each moment in turn. What is made or deleted is tried again by every operator
    that cannot see it, and is hit once a moment.

    Parameters
    ----------
    kinds
        Kinds of writes.
    moments
        When, in turn.
    """

    def __init__(self, kinds: Iterable[str], *, moments: Sequence[Moment] = tuple(Moment)) -> None:
        self.kinds = frozenset(kinds)
        self.moments = moments
        self.hit: dict[Moment, set[str]] = {each: set() for each in moments}
        """Kinds that were hit, by when."""
        self._hits: Counter[tuple[str, str]] = Counter()

    def __call__(self, number: int, kind: str, name: str) -> Hit | None:
        before = self._hits[kind, name]
        is_over = before >= len(self.moments) and kind.startswith(("create", "delete"))
        if kind not in self.kinds or is_over:
            return None
        self._hits[kind, name] += 1
        when = self.moments[before % len(self.moments)]
        self.hit[when].add(kind)
        return Hit(when=when, does=dies)

    @property
    def kills(self) -> int:
        """How often it has killed."""
        return self._hits.total()


def killers(kinds: Sequence[str]) -> dict[str, Killer]:
    """Return killers that together hit every write of a story; by a name.

    Events come after the write of a status that no later operator writes again, so they are not
    seen where that one is hit; nor is a second Event where the first is.

    Parameters
    ----------
    kinds
        Its writes in their order, when nothing is hit.
    """
    is_event = [kind.startswith("create events") for kind in kinds]
    first = {
        kind
        for kind, is_one, before in zip(kinds, is_event, [False, *is_event], strict=False)
        if is_one and not before
    }
    last = {
        kind
        for kind, is_one, after in zip(kinds, is_event, [*is_event[1:], False], strict=True)
        if is_one and not after
    }
    return {
        "all-but-events": Killer(
            {k for k, is_one in zip(kinds, is_event, strict=True) if not is_one}
        ),
        "first-events": Killer(first, moments=[Moment.BEFORE]),
        "last-events": Killer(last, moments=[Moment.AFTER]),
    }


def killed(cluster: Cluster, killer: Killer) -> None:
    """Play a story in which operators are killed, and look that everything was hit."""
    story = played(cluster, killer)
    assert story.deaths == killer.kills
    assert all(hit == killer.kinds for hit in killer.hit.values())

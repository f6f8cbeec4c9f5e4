"""Lessons of live proofs in a whole cluster: taught, shown, asked before a proposal, and lifted."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from tests.operators.controllers.cluster import Cluster
from tests.operators.controllers.memory import KERNEL
from tests.operators.controllers.server_pods import WORLD
from tests.operators.controllers.test_following import condition
from tests.operators.controllers.test_live_proofs import OPEN, able, policy, reports
from tests.operators.controllers.test_trials import another

from retuned.errors import TemporaryError
from retuned.stages.proposal import Lesson, LessonKind
from retuned_operator.kube.resources import PROPOSALS, TARGETS
from retuned_operator.schema import ExperimentPhase as E
from retuned_operator.schema import ProposalPhase as P
from retuned_operator.schema import SwapProposal


def proven(by: float, *, engine: str = "", **rule: Any) -> Cluster:
    """Return a cluster in which the proposal of a win was proven, and what followed has ended."""
    cluster = Cluster(OPEN, policy=policy(**rule))
    able(cluster, reports(by))
    for server in cluster.servers.values():
        server.engine = engine
    cluster.experiment()
    cluster.until(lambda: bool(cluster.proposals()))
    agree(cluster)
    cluster.until(lambda: ended(cluster)[0].status.phase in (P.ROLLED_BACK, P.PROMOTED))
    return cluster


def ended(cluster: Cluster) -> list[SwapProposal]:
    return sorted(cluster.proposals(), key=lambda each: each.spec.attempt)


def agree(cluster: Cluster) -> None:
    cluster.until(lambda: ended(cluster)[-1].status.phase is P.AWAITING_APPROVAL)
    for person in ("ada", "ben"):
        cluster.say(person, on=ended(cluster)[-1].metadata.name)


def lessons(cluster: Cluster) -> list[Lesson]:
    return list(cluster.ledger.lessons("serving/chat"))


def second(cluster: Cluster) -> None:
    """Let a later experiment find the same win, and come to its end."""
    another(cluster, "exp-2")
    cluster.until(lambda: cluster.experiments()[1].status.phase.is_terminal)


def shown(cluster: Cluster) -> int:
    """Return how many lessons the target's status has after the next look at it."""
    for _ in range(4):
        cluster.turn()
    return len(cluster.target().status.lessons)


@pytest.mark.parametrize(
    ("by", "kind"), [(0.03, LessonKind.HARMS), (0.0, LessonKind.NO_MEASURABLE_EFFECT)]
)
def test_a_verdict_against_a_swap_is_a_lesson_and_the_same_win_is_not_proposed_again(
    by: float, kind: LessonKind
) -> None:
    cluster = proven(by, engine="vllm 0.33.0")
    (proposal,) = cluster.proposals()
    (lesson,) = lessons(cluster)
    entry = proposal.status.live_proofs[0]
    assert (lesson.kind, lesson.reason, lesson.sentence) == (kind, entry.reason, entry.sentence)
    assert (lesson.key.environment, lesson.key.engine) == (WORLD, "vllm 0.33.0")
    assert lesson.artifacts == (proposal.spec.artifact.digest,)
    assert (lesson.claimed_saving, lesson.effect) == (proposal.spec.expected_saving, entry.effect)
    cluster.clock.advance(timedelta(days=8).total_seconds())
    cluster.until(lambda: not cluster.target().status.quarantine)
    second(cluster)
    status = cluster.experiments()[1].status
    assert (status.phase, status.reason) == (E.NO_IMPROVEMENT, "live-lesson")
    assert entry.sentence in status.detail, "people read why"
    assert len(cluster.proposals()) == 1
    assert shown(cluster) == 1
    (told,) = cluster.target().status.lessons
    assert (told.kernel, told.kind, told.sentence) == (KERNEL, str(kind), entry.sentence)


def test_a_swap_that_helps_teaches_nothing() -> None:
    cluster = proven(-0.03)
    assert ended(cluster)[0].status.phase is P.PROMOTED
    assert lessons(cluster) == []


def test_where_it_is_observed_the_lesson_is_kept_as_well() -> None:
    cluster = proven(0.0, mode="observe")
    assert ended(cluster)[0].status.phase is P.PROMOTED
    assert {each.kind for each in lessons(cluster)} == {LessonKind.NO_MEASURABLE_EFFECT}


@pytest.mark.parametrize("engine", ["vllm 0.33.0", "vllm 0.34.0"])
def test_another_engine_is_another_server(engine: str) -> None:
    cluster = proven(0.0, engine="vllm 0.33.0")
    for server in cluster.servers.values():
        server.engine = engine
    second(cluster)
    same = engine == "vllm 0.33.0"
    assert cluster.experiments()[1].status.reason == ("live-lesson" if same else "proposed")
    assert [each.spec.attempt for each in ended(cluster)] == ([1] if same else [1, 2])


def test_a_win_is_proposed_once_a_person_has_lifted_the_lessons() -> None:
    cluster = proven(0.0)
    second(cluster)
    lift = {"kernel": KERNEL, "at": cluster.clock.now().isoformat(), "reason": "another model"}
    cluster.change(TARGETS, "chat", {"spec": {"liftedLessons": [lift]}})
    cluster.until(lambda: len(cluster.proposals()) == 2)
    assert [each.spec.attempt for each in ended(cluster)] == [1, 2]
    cluster.until(lambda: condition(cluster.experiments()[1], "ProposedAgain") is not None)
    found = cluster.experiments()[1]
    said = condition(found, "ProposedAgain")
    assert said is not None
    assert (said.reason, found.status.proposal) == ("LessonOver", ended(cluster)[1].metadata.name)
    assert shown(cluster) == 0
    agree(cluster)
    cluster.until(lambda: ended(cluster)[1].status.phase is P.ROLLED_BACK)
    assert shown(cluster) == 1, "what was shown once more holds again"


def test_a_win_that_a_lesson_refuses_ends_with_its_evidence() -> None:
    cluster = proven(0.0)
    second(cluster)
    cluster.clock.advance(timedelta(days=20).total_seconds())
    cluster.until(lambda: condition(cluster.experiments()[1], "ProposedAgain") is not None)
    said = condition(cluster.experiments()[1], "ProposedAgain")
    assert said is not None
    assert said.reason == "OldEvidence"
    assert len(cluster.proposals()) == 1


def test_an_operator_that_dies_between_verdict_and_lesson_keeps_the_lesson_later() -> None:
    cluster = Cluster(OPEN, policy=policy())
    able(cluster, reports(0.03))
    cluster.experiment()
    cluster.until(lambda: bool(cluster.proposals()))
    agree(cluster)
    teach = cluster.ledger.keep_lesson

    def full(lesson: Lesson, *, id: str, target: str) -> None:
        raise TemporaryError("the disk is full", delay_s=1.0)

    cluster.ledger.keep_lesson = full  # type: ignore[method-assign]
    cluster.until(lambda: ended(cluster)[0].status.phase is P.ROLLED_BACK)
    assert cluster.target().status.quarantine, "a rollback does not wait for the lesson"
    assert lessons(cluster) == []
    cluster.ledger.keep_lesson = teach  # type: ignore[method-assign]
    cluster.restart()
    cluster.until(lambda: bool(lessons(cluster)))
    for _ in range(5):
        cluster.turn()
    assert len(lessons(cluster)) == 1


def test_a_verdict_of_another_release_teaches_nothing_and_stops_nobody() -> None:
    cluster = proven(0.0)
    cluster.ledger.learned.clear()
    (proposal,) = cluster.proposals()
    status = proposal.status.model_dump(mode="json", by_alias=True, exclude_none=True)
    for each in status["liveProofs"]:
        each["reason"] = "of-another-release"
    name = proposal.metadata.name
    cluster.change(PROPOSALS, name, {"status": status}, subresource="status")
    for _ in range(3):
        cluster.turn()
    assert cluster.operator.errors == []
    assert lessons(cluster) == []

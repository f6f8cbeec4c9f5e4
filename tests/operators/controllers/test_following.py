"""What follows an experiment that is over, in a whole cluster."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from tests.operators.controllers.cluster import Cluster
from tests.operators.controllers.memory import ORIGINAL
from tests.operators.controllers.test_beliefs import drifted

from retuned.api.target import ActiveKernel
from retuned.contract import Language, Solution, SourceFile, TrustClass
from retuned.ports import Finding
from retuned.stages.gate import DecisionKind
from retuned.stages.verdict import Reason, Status, Verdict
from retuned_operator.kube.resources import EXPERIMENTS, POLICIES, TARGETS
from retuned_operator.schema import Condition, ExperimentPhase, KernelExperiment, ProposalPhase

OPEN = datetime(2026, 3, 3, 0, 30, tzinfo=UTC)
HOURS_6 = 6 * 3600.0


def failed(structure: str, number: int) -> Finding:
    solution = Solution(
        name=f"{structure}{number}",
        definition="rmsnorm_h512",
        language=Language.CPU_CPP,
        structure=structure,
        entry="run",
        sources=(SourceFile(path="kernel.cpp", content=f"// {number}"),),
        trust=TrustClass.PARAMETERS,
    )
    verdict = Verdict(
        status=Status.REJECT,
        reason=Reason.WRONG_OUTPUT,
        gate="G3",
        candidate=solution.digest,
        incumbent=ORIGINAL,
    )
    return Finding(solution=solution, verdict=verdict, seconds=2.0)


def condition(experiment: KernelExperiment, type: str) -> Condition | None:
    return next((c for c in experiment.status.conditions if c.type == type), None)


def answered(cluster: Cluster) -> list[str]:
    found = [condition(each, "Refined") for each in cluster.experiments()]
    return sorted(each.reason for each in found if each is not None)


def test_an_experiment_that_found_nothing_is_followed_by_others_until_that_stops_to_pay() -> None:
    cluster = Cluster(OPEN)
    cluster.wins = False
    cluster.ledger.tried = [failed("tiles", 1), failed("tiles", 2)]
    cluster.ledger.reports.append(drifted())
    cluster.until(lambda: answered(cluster) == ["AttemptsSpent", "Refined", "Refined"])
    for _ in range(10):
        cluster.turn()
    found = cluster.experiments()
    assert len(found) == 3
    assert {each.status.phase for each in found} == {ExperimentPhase.NO_IMPROVEMENT}
    tried = sorted(len(each.attempts) for each in cluster.ledger.beliefs)
    assert tried == [0, 1, 2]
    second = next(each for each in cluster.ledger.beliefs if len(each.attempts) == 1)
    assert second.attempts[0].hopeless == ("tiles",)
    assert second.structures == ("rows",), "what did not work is not looked at again"
    assert second.attempts[0].seconds == 4.0
    stopped = [condition(each, "Refined") for each in found]
    assert any(c and "3 attempts were made, and 3 are allowed" in c.message for c in stopped)


def test_an_operator_killed_between_the_writes_asks_for_the_same_experiment_again() -> None:
    cluster = Cluster(OPEN)
    cluster.wins = False
    cluster.ledger.reports.append(drifted())
    cluster.until(lambda: len(cluster.experiments()) == 2)
    (first,) = [e for e in cluster.experiments() if condition(e, "Refined")]
    said = first.status.model_dump(mode="json", by_alias=True)["conditions"]
    kept = [each for each in said if each["type"] != "Refined"]
    cluster.change(
        EXPERIMENTS,
        first.metadata.name,
        {"status": {"conditions": kept}},
        subresource="status",
    )  # as if it had died before it wrote that
    cluster.restart()
    cluster.until(lambda: answered(cluster).count("Refined") == 2)
    assert len([e for e in cluster.experiments() if e.spec.plan != first.spec.plan]) <= 2


def test_an_experiment_that_a_person_asked_for_tests_nobodys_belief() -> None:
    cluster = Cluster(OPEN)
    cluster.wins = cluster.ledger.believes = False
    cluster.experiment()
    cluster.until(lambda: answered(cluster) == ["BeliefUnknown"])
    assert len(cluster.experiments()) == 1


def lost_and_not_answered() -> Cluster:
    """Return a cluster in which an experiment has just found nothing."""
    cluster = Cluster(OPEN)
    cluster.wins = False
    cluster.ledger.reports.append(drifted())
    cluster.until(
        lambda: [e.status.phase for e in cluster.experiments()] == [ExperimentPhase.NO_IMPROVEMENT]
    )
    return cluster


def test_what_a_policy_forbids_by_now_is_not_tried_again_and_that_is_said() -> None:
    cluster = lost_and_not_answered()
    cluster.change(POLICIES, "prod", {"spec": {"mode": "ObserveOnly"}})
    cluster.until(lambda: answered(cluster) == ["PolicyForbids"])
    assert len(cluster.experiments()) == 1


def test_a_belief_about_another_world_is_not_tried_again() -> None:
    cluster = lost_and_not_answered()
    entry = ActiveKernel(
        kernel="rmsnorm_h512", digest="sha256:" + "9" * 64, epoch=4, proposal="other", since=OPEN
    )
    status = cluster.target().status.model_copy(update={"active_kernels": (entry,)})
    body = status.model_dump(mode="json", by_alias=True, exclude_none=True)
    cluster.change(TARGETS, "chat", {"status": body}, subresource="status")
    cluster.until(lambda: answered(cluster) == ["WorldChanged"])


def test_a_win_that_nobody_decided_on_rests_comes_again_and_ends_after_three_times() -> None:
    cluster = Cluster(OPEN)
    cluster.experiment()
    seen: set[tuple[str, str]] = set()
    for _ in range(80):
        if ("ExpiredTooOften", "False") in seen:
            break
        cluster.turn(seconds=HOURS_6 if cluster.proposals() else 30.0)
        (experiment,) = cluster.experiments()
        said = condition(experiment, "ProposedAgain")
        if said is not None:
            seen.add((said.reason, said.status.value))
    assert cluster.operator.errors == []
    found = sorted(cluster.proposals(), key=lambda each: each.spec.attempt)
    assert [each.spec.attempt for each in found] == [1, 2, 3]
    assert {each.status.phase for each in found} == {ProposalPhase.EXPIRED}
    assert seen == {("Resting", "False"), ("ProposedAgain", "True"), ("ExpiredTooOften", "False")}
    (experiment,) = cluster.experiments()
    assert experiment.status.proposal == found[-1].metadata.name
    between = found[1].metadata.creation_timestamp
    assert between is not None
    expired = found[0].status.history[-1]
    assert (between - expired.at).total_seconds() >= 3 * 86_400


@pytest.mark.parametrize("agreed", [True, False])
def test_a_win_that_was_decided_on_does_not_come_again(agreed: bool) -> None:
    cluster = Cluster(OPEN)
    cluster.experiment()
    cluster.until(
        lambda: bool(cluster.proposals()) and cluster.proposals()[0].status.gate is not None
    )
    for user in ("ada", "ben"):
        cluster.say(user, DecisionKind.APPROVE if agreed else DecisionKind.REJECT)
    wanted = ProposalPhase.PROMOTED if agreed else ProposalPhase.REJECTED
    cluster.until(lambda: cluster.proposals()[0].status.phase is wanted)
    for _ in range(30):
        cluster.turn(seconds=HOURS_6)
    assert len(cluster.proposals()) == 1

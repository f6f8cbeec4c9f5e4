"""Lessons of live proofs in a cluster: verdicts in a status make them, and they refuse proposals.

A verdict is in the status before its lesson is stored. The next pass over the proposal stores a
missing lesson, so that an operator that was killed between both loses none.
"""

from __future__ import annotations

import logging

from retuned.api.target import TargetLesson
from retuned.control import lessons as rule
from retuned.stages.proposal import (
    Lesson,
    Refusal,
    ServerKey,
    SwapClaim,
    lesson_against,
    saving_of,
    share_in,
)
from retuned_operator.controllers.cluster_view import ClusterView, pods_of
from retuned_operator.controllers.ports import Ledger, Reports, VerifiedWin
from retuned_operator.schema import (
    KernelExperiment,
    ProposalPhase,
    SwapProposal,
    TuningTarget,
    TuningTargetStatus,
)

log = logging.getLogger(__name__)

_SHOWN = 64
"""Lessons in a target's status, the newest."""
_SENTENCE = 1000


def keep(resource: SwapProposal, *, ledger: Ledger, reports: Reports) -> None:
    """Keep the lessons that the verdicts in a proposal's status leave.

    Raises
    ------
    TemporaryError
        If a lesson cannot be kept now.
    """
    for entry in rule.with_lesson(resource):
        table = ledger.table(resource.spec.artifact.digest)
        made_from = None if table is None else table.solution
        engine = _engine(reports, entry.uid)
        try:
            lesson = rule.lesson_from(resource, entry, made_from=made_from, engine=engine)
        except ValueError as error:  # a status of another release: other lessons count
            log.error("%s: a proof leaves no lesson: %s", resource.metadata.name, error)
            continue
        id = f"{lesson.proposal}/{entry.uid}/{entry.epoch}"
        ledger.keep_lesson(lesson, id=id, target=resource.target)


def in_force(world: ClusterView, target: TuningTarget) -> tuple[Lesson, ...]:
    """Return the lessons of a target that hold, oldest first.

    Raises
    ------
    TemporaryError
        If they cannot be read now.
    """
    return rule.in_force(world.ledger.lessons(target.full_name), target)


def against(
    world: ClusterView, experiment: KernelExperiment, target: TuningTarget, win: VerifiedWin
) -> Refusal | None:
    """Return the refusal of a win by the lessons of its target; None if none holds against it.

    The share of a step in which the GPU works, and whether graphs are captured, are not known in a
    cluster: they equal those of every lesson.

    Raises
    ------
    TemporaryError
        As `in_force`.
    """
    known = in_force(world, target)
    if not known:
        return None
    claim = SwapClaim(
        definition=experiment.spec.kernel.name,
        guard=win.verdict.guard,
        artifact=win.verdict.candidate,
        saving=saving_of(
            win.verdict,
            share=share_in(world.ledger.belief(experiment.spec.hypothesis), win.verdict),
        ),
        key=ServerKey(
            environment=target.status.environment or experiment.spec.environment,
            engine=_engine_of(world, target),
        ),
    )
    return lesson_against(known, claim)


def had_a_lesson(resource: SwapProposal) -> bool:
    """Whether a proposal was rolled back after a live proof that has left a lesson.

    Callers check before whether the lesson still applies.
    """
    rolled_back = resource.status.phase is ProposalPhase.ROLLED_BACK
    return rolled_back and any(rule.with_lesson(resource))


def with_lessons(
    status: TuningTargetStatus, world: ClusterView, target: TuningTarget
) -> TuningTargetStatus:
    """Return the status with the lessons in force."""
    shown = tuple(
        TargetLesson(
            kernel=each.definition,
            guard=each.guard,
            kind=str(each.kind),
            sentence=each.sentence[:_SENTENCE],
            claimed_saving=each.claimed_saving,
            at=each.at,
        )
        for each in in_force(world, target)[-_SHOWN:]
    )
    return status.model_copy(update={"lessons": shown})


def _engine_of(world: ClusterView, target: TuningTarget) -> str:
    """Return the engine of a target's servers; empty if they differ, or if one is unknown."""
    pods = pods_of(world, target) or ()
    found = {_engine(world.reports, pod.uid) for pod in pods}
    return found.pop() if len(found) == 1 else ""


def _engine(reports: Reports, uid: str) -> str:
    said = reports.of(uid)
    return said.proofs.engine if said is not None and said.proofs is not None else ""

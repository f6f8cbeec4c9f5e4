"""What verdicts of live proofs leave: lessons in force, and claims beside what was shown. Pure.

The daemon of one machine and the operator both use it. Whether a lesson refuses a claim is
`retuned.stages.proposal.lesson_against`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime

from retuned.api.proposal import LiveProofStatus, SwapProposal
from retuned.api.target import TuningTarget
from retuned.contract import Digest
from retuned.stages.proposal import Lesson, LessonKind, Proposal, ServerKey
from retuned.stages.watch.proof import Calibration, ProofReason, ProofReport, Verdict, calibrate

_KINDS = {
    Verdict.HARMS: LessonKind.HARMS,
    Verdict.NO_MEASURABLE_EFFECT: LessonKind.NO_MEASURABLE_EFFECT,
}
"""Other verdicts leave no lesson: they are about the traffic or the proof, not about the swap."""


def lesson_of(
    proposal: Proposal,
    report: ProofReport,
    *,
    sentence: str,
    made_from: Digest | None,
    key: ServerKey,
    at: datetime,
) -> Lesson | None:
    """Return the lesson that a proof leaves of a claim; None if its verdict leaves none.

    Parameters
    ----------
    proposal
        The swap that was proven.
    report
        The verdict.
    sentence
        The verdict in one sentence.
    made_from
        Variant that the artifact was made from, where it has another digest, as of a table; None
        otherwise.
    key
        The server.
    at
        Time of the verdict.
    """
    kind = _KINDS.get(report.verdict)
    if kind is None:
        return None
    artifacts = (proposal.artifact, *(() if made_from is None else (made_from,)))
    return Lesson(
        proposal=proposal.id,
        experiment=proposal.experiment,
        definition=proposal.definition,
        guard=proposal.guard,
        artifacts=tuple(dict.fromkeys(artifacts)),
        key=key,
        kind=kind,
        reason=str(report.reason),
        sentence=sentence,
        claimed_saving=proposal.expected_saving,
        claimed_speedup=proposal.speedup.point,
        effect=report.effect,
        low=report.low,
        high=report.high,
        pairs=report.pairs,
        at=at,
    )


def with_lesson(resource: SwapProposal) -> Iterator[LiveProofStatus]:
    """Yield the proofs of a proposal whose verdict leaves a lesson."""
    kinds = {str(verdict) for verdict in _KINDS}
    return (each for each in resource.status.live_proofs if each.verdict in kinds)


def lesson_from(
    resource: SwapProposal, entry: LiveProofStatus, *, made_from: Digest | None, engine: str
) -> Lesson:
    """Return the lesson of a proof that `with_lesson` yields.

    Parameters
    ----------
    resource
        The proposal, from an API server.
    entry
        Its proof.
    made_from
        As in `lesson_of`.
    engine
        Name and version of the server's engine; empty if unknown.
    """
    at = entry.at
    assert at is not None, "a proof with a verdict has its time"
    lesson = lesson_of(
        resource.stage_proposal(),
        report_of(entry),
        sentence=entry.sentence,
        made_from=made_from,
        key=ServerKey(environment=entry.environment or resource.spec.environment, engine=engine),
        at=at,
    )
    assert lesson is not None, "its verdict leaves a lesson"
    return lesson


def report_of(entry: LiveProofStatus) -> ProofReport:
    """Return the verdict of a proof in a status as a report.

    Raises
    ------
    ValueError
        If the proof has no verdict.
    """
    return ProofReport(
        verdict=Verdict(entry.verdict),
        reason=ProofReason(entry.reason),
        effect=entry.effect,
        low=entry.low,
        high=entry.high,
        pairs=entry.pairs,
    )


def in_force(lessons: Iterable[Lesson], target: TuningTarget) -> tuple[Lesson, ...]:
    """Return the lessons that no person has lifted in the target's spec, oldest first."""
    lifted = {each.kernel: each.at for each in target.spec.lifted_lessons}
    found = [
        each
        for each in lessons
        if each.definition not in lifted or each.at > lifted[each.definition]
    ]
    return tuple(sorted(found, key=lambda each: each.at))


def calibrations_of(resource: SwapProposal) -> tuple[Calibration, ...]:
    """Return what live proofs of a proposal showed beside its claim, by environment.

    In each environment the newest proof with an effect counts: earlier waves had fewer pods of the
    same. Nothing is predicted before a proof in a cluster. On one machine the record is written
    with the verdict.

    Raises
    ------
    ValueError
        If a verdict is of another release.
    """
    found: dict[str, Calibration] = {}
    for entry in resource.status.live_proofs:
        if not entry.verdict or entry.at is None:
            continue
        one = calibrate(
            report_of(entry),
            proposal=resource.metadata.name,
            definition=resource.spec.kernel,
            artifact=resource.spec.artifact.digest,
            at=entry.at,
            share=resource.spec.share,
            speedup=resource.spec.speedup,
            forecast=None,
        )
        if one is not None:
            found[entry.environment] = one
    return tuple(found.values())

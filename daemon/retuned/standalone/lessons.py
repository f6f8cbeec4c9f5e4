"""Lessons of live proofs on one machine: kept beside the experiment, in force until lifted.

A lesson is signed. It survives restarts, and no cleaning removes it.
"""

from __future__ import annotations

import logging
from datetime import datetime

from pydantic import ValidationError

from retuned.control.outcome import best_finding
from retuned.ports import Event, Store
from retuned.report.live_proof import sentence_of
from retuned.stages.proposal import Lesson, LessonKind, Proposal
from retuned.stages.swap import SwapOrder
from retuned.stages.watch import proof
from retuned.standalone import server_pace
from retuned.standalone.context import Context, RecordKind
from retuned.standalone.findings import findings
from retuned.store.envelopes import seal

log = logging.getLogger(__name__)

HOLDS = "holds"
"""Phase of a lesson in force."""
_LIFTED = "lifted"
_KINDS = {
    proof.Verdict.HARMS: LessonKind.HARMS,
    proof.Verdict.NO_MEASURABLE_EFFECT: LessonKind.NO_MEASURABLE_EFFECT,
}
"""Other verdicts teach nothing: they are about the traffic or the proof, not about the swap."""


def learn(ctx: Context, order: SwapOrder, report: proof.ProofReport, *, pace: proof.Pace) -> None:
    """Keep what a proof has shown beside its claim, and a lesson if it did not show a gain.

    Call it within the transaction that keeps the verdict.

    Parameters
    ----------
    pace
        Steps of the proof's pilot, which ran without the swap.
    """
    stored = ctx.store.get(RecordKind.PROPOSAL, order.proposal)
    assert stored is not None, "it was proven"
    proposal = Proposal.model_validate(stored.body)
    _calibrate(ctx, proposal, report)
    if report.verdict is not proof.Verdict.HELPS:
        _teach(ctx, order, proposal, report, pace=pace)


def _calibrate(ctx: Context, proposal: Proposal, report: proof.ProofReport) -> None:
    found = proof.calibrate(
        report,
        proposal=proposal.id,
        definition=proposal.definition,
        artifact=proposal.artifact,
        at=ctx.clock.now(),
        share=proposal.share,
        speedup=proposal.speedup,
        forecast=server_pace.forecast_of(ctx.store, proposal.id),
    )
    if found is not None:
        phase = "differs" if found.differs else "agrees"
        body = found.model_dump(mode="json")
        ctx.store.add(RecordKind.CALIBRATION, proposal.id, body, phase=phase)


def _teach(
    ctx: Context,
    order: SwapOrder,
    proposal: Proposal,
    report: proof.ProofReport,
    *,
    pace: proof.Pace,
) -> None:
    """Write beside the experiment that its claim did not hold in the server."""
    detail: dict[str, object] = {
        "definition": order.definition,
        "candidate": order.artifact,
        "reason": str(report.reason),
        "verdict": str(report.verdict),
        "effect": report.effect,
    }
    kind = _KINDS.get(report.verdict)
    if kind is not None:
        detail["lesson"] = _keep(ctx, _lesson(ctx, proposal, report, kind=kind, pace=pace))
    ctx.store.record(
        Event(
            at=ctx.clock.now(),
            kind=RecordKind.EXPERIMENT,
            id=proposal.experiment,
            what="live-proof-lesson",
            who="retuned",
            detail=detail,
        )
    )


def _lesson(
    ctx: Context,
    proposal: Proposal,
    report: proof.ProofReport,
    *,
    kind: LessonKind,
    pace: proof.Pace,
) -> Lesson:
    best = best_finding(findings(ctx, proposal.experiment))
    made_from = () if best is None else (best.solution.digest,)  # a table has a digest of its own
    return Lesson(
        proposal=proposal.id,
        experiment=proposal.experiment,
        definition=proposal.definition,
        guard=proposal.guard,
        artifacts=tuple(dict.fromkeys((proposal.artifact, *made_from))),
        key=server_pace.key_of(ctx, proposal.definition, pace=pace),
        kind=kind,
        reason=str(report.reason),
        sentence=sentence_of(report),
        claimed_saving=proposal.expected_saving,
        claimed_speedup=proposal.speedup.point,
        effect=report.effect,
        low=report.low,
        high=report.high,
        pairs=report.pairs,
        at=ctx.clock.now(),
    )


def _keep(ctx: Context, lesson: Lesson) -> str:
    """Keep a lesson, and return the digest of its signed form."""
    signed = ctx.store.put_blob(seal(lesson.model_dump_json().encode(), notary=ctx.notary))
    body = {"lesson": lesson.model_dump(mode="json"), "evidence": signed}
    if not ctx.store.add(RecordKind.LESSON, lesson.proposal, body, phase=HOLDS):
        ctx.store.advance(  # it was lifted, and shown once more
            RecordKind.LESSON, lesson.proposal, expect=_LIFTED, to=HOLDS, body=body
        )
    return signed


def in_force(store: Store) -> list[Lesson]:
    """Return the lessons that were not lifted, oldest first; one that cannot be read is logged."""
    found = []
    for stored in store.list(RecordKind.LESSON, phase=HOLDS):
        try:
            found.append(Lesson.model_validate(stored.body["lesson"]))
        except (KeyError, ValidationError) as error:
            log.error("lesson %s cannot be understood: %s", stored.id, error)
    return found


def lift(
    store: Store, definition: str, *, who: str, reason: str, at: datetime
) -> tuple[Lesson, ...]:
    """Lift the lessons on a kernel, so that such claims may be proposed again; return them."""
    lifted = []
    with store.transaction():
        for lesson in in_force(store):
            if lesson.definition != definition:
                continue
            kept = store.get(RecordKind.LESSON, lesson.proposal)
            assert kept is not None, "it was listed"
            body = {**kept.body, "lifted": {"who": who, "reason": reason, "at": at.isoformat()}}
            if store.advance(
                RecordKind.LESSON, lesson.proposal, expect=HOLDS, to=_LIFTED, body=body
            ):
                lifted.append(lesson)
        for lesson in lifted:
            store.record(
                Event(
                    at=at,
                    kind=RecordKind.EXPERIMENT,
                    id=lesson.experiment,
                    what="live-proof-lesson-lifted",
                    who=who,
                    detail={"definition": definition, "reason": reason, "was": lesson.sentence},
                )
            )
    return tuple(lifted)

"""Lessons of live proofs on one machine: kept beside the experiment, in force until lifted.

The records are `retuned.store.lessons`.
"""

from __future__ import annotations

import logging
from datetime import datetime

from retuned.control.lessons import lesson_of
from retuned.control.outcome import best_finding
from retuned.ports import Event, Store
from retuned.report.live_proof import sentence_of
from retuned.stages.proposal import Lesson, Proposal
from retuned.stages.swap import SwapOrder
from retuned.stages.watch import proof
from retuned.standalone.context import Context, RecordKind
from retuned.standalone.findings import findings
from retuned.standalone.proofs import server_pace
from retuned.store.lessons import HOLDS, LIFTED, keep, kept

log = logging.getLogger(__name__)


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
    best = best_finding(findings(ctx, proposal.experiment))
    lesson = lesson_of(
        proposal,
        report,
        sentence=sentence_of(report),
        made_from=None if best is None else best.solution.digest,  # a table has its own digest
        key=server_pace.key_of(ctx, proposal.definition, pace=pace),
        at=ctx.clock.now(),
    )
    if lesson is not None:
        detail["lesson"] = keep(ctx.store, lesson, id=lesson.proposal, notary=ctx.notary)
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


def lift(
    store: Store, definition: str, *, who: str, reason: str, at: datetime
) -> tuple[Lesson, ...]:
    """Lift the lessons on a kernel, so that such claims may be proposed again; return them."""
    lifted = []
    with store.transaction():
        for lesson in kept(store):
            if lesson.definition != definition:
                continue
            stored = store.get(RecordKind.LESSON, lesson.proposal)
            assert stored is not None, "it was listed"
            body = {**stored.body, "lifted": {"who": who, "reason": reason, "at": at.isoformat()}}
            if store.advance(
                RecordKind.LESSON, lesson.proposal, expect=HOLDS, to=LIFTED, body=body
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

"""Live proof on one machine: a swap is switched off and on in random pairs of blocks.

The runner is `retuned.node.live_proof`. It runs on the thread of gate G7, in the phase `Proving`.
A daemon that stops before a required verdict leaves the swap off, and so does a verdict against it,
which the state machine follows by a rollback. A daemon that is killed in a block with the swap
leaves it on until another one runs.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Mapping
from typing import Any

from retuned.api.proposal import ProposalPhase
from retuned.control import MeasuredFact
from retuned.control.live_proofs import held
from retuned.errors import RetunedError, TemporaryError, UnreadableInput
from retuned.node import live_proof as node_proof
from retuned.node.live_proof import (
    PROVING,
    ProofNeed,
    ProofRunner,
    StoredProof,
    report_in,
)
from retuned.node.order_store import bringer
from retuned.node.service_levels import lacks_levels, levels_of
from retuned.report.live_proof import sentence_of
from retuned.stages import watch
from retuned.stages.gate import LiveProof, LiveProofMode
from retuned.stages.proposal import Proposal
from retuned.stages.swap import SwapKind, SwapOrder
from retuned.stages.watch import proof
from retuned.standalone.context import Context, RecordKind
from retuned.standalone.proofs import lessons
from retuned.standalone.records import UNDER_WAY, committed, say
from retuned.standalone.tunables import tuned_files
from retuned.store.approvals import Approvals
from retuned.store.envelopes import seal

log = logging.getLogger(__name__)

_AGAIN = (PROVING, *map(str, proof.Verdict))
"""Phases of further proofs."""


def prove(ctx: Context, stop: threading.Event) -> None:
    """Prove the swap that waits for it, until there is a verdict or `stop` is set."""
    for order in (kept.order for kept in committed(ctx.store).values()):
        if stop.is_set() or ctx.live_steps is None:
            return
        rule = rule_of(ctx, order.definition)
        if rule is not None and _is_due(ctx, order):
            ProofRunner(
                order,
                rule,
                record=_Record(ctx, order, ends=_cannot_go_on(ctx, order.proposal)),
                swapper=ctx.swapper,
                live=ctx.live_steps,
                clock=ctx.clock,
                levels=levels_of(ctx.service_counts, rule),
            ).run(stop)


def is_wanted(ctx: Context) -> bool:
    """Whether a swap is being proven, or could be; experiments wait for its verdict."""
    if ctx.live_steps is None:
        return False
    try:
        return any(
            _is_due(ctx, kept.order) and rule_of(ctx, kept.order.definition) is not None
            for kept in committed(ctx.store).values()
        )
    except (RetunedError, OSError) as error:
        log.warning("experiments do not wait for a live proof: %s", error)
        return False


def switch_on(ctx: Context) -> None:
    """Switch on swaps that a proof has left off and that are to serve.

    The server did not answer when their verdict came, or the policy asks for no proof any more.
    """
    wanted = {
        (kept.order.definition, kept.order.artifact)
        for kept in committed(ctx.store).values()
        if kept.order.artifact is not None and _must_serve(ctx, kept.order)
    }
    node_proof.switch_on(ctx.swapper, wanted)


def _must_serve(ctx: Context, order: SwapOrder) -> bool:
    """Whether a swap serves whatever its proofs have or have not shown."""
    id = bringer(ctx.store, order).proposal
    proposal = ctx.store.get(RecordKind.PROPOSAL, id)
    if proposal is None or proposal.phase not in (*UNDER_WAY, str(ProposalPhase.PROMOTED)):
        return False
    record = ctx.store.get(RecordKind.LIVE_PROOF, id)
    again = {p: ctx.store.ids(RecordKind.REPEATED_PROOF, phase=p, prefix=f"{id}/") for p in _AGAIN}
    if record is None and not any(again.values()):
        return False  # no proof has switched it off
    try:
        rule = rule_of(ctx, order.definition)
    except (RetunedError, OSError):
        return False
    if rule is None or rule.mode is LiveProofMode.OBSERVE:
        return True
    if again[str(proof.Verdict.HARMS)]:
        return False
    if proposal.phase == ProposalPhase.PROMOTED:
        return True
    report = report_in(record)
    return record is None or (report is not None and proof.keeps(report, rule))


def follows(ctx: Context, proposal: Proposal) -> MeasuredFact:
    """Return what the live proof means for a swap under way."""
    try:
        rule = rule_of(ctx, proposal.definition)
    except (RetunedError, OSError) as error:
        log.warning("%s waits for a policy that can be read: %s", proposal.definition, error)
        return MeasuredFact(consequence=watch.Consequence.WAIT)
    if rule is None:
        return MeasuredFact()
    report = report_of(ctx, proposal.id)
    why = "" if report is not None else _cannot_begin(ctx, proposal.id)
    if why:
        report = _not_begun(why)
    if report is None:
        return MeasuredFact(consequence=watch.Consequence.WAIT)
    kept = proof.keeps(report, rule) or (bool(why) and not held(rule, why))
    return MeasuredFact(
        consequence=watch.Consequence.KEEP if kept else watch.Consequence.REVERT,
        reason=f"live-proof-{report.reason}",
        detail=sentence_of(report),
        blames=report.verdict is proof.Verdict.HARMS,
    )


def _cannot_begin(ctx: Context, proposal: str) -> str:
    """Return why no proof can begin; empty while one runs, or the server does not answer."""
    if ctx.store.get(RecordKind.LIVE_PROOF, proposal) is not None:
        return ""
    try:
        return unavailable(ctx, proposal)
    except TemporaryError:
        return ""


def unavailable(ctx: Context, proposal: str) -> str:
    """Return why a swap cannot be proven here, a reason code; empty if it can.

    Raises
    ------
    TemporaryError
        If the server does not answer, or has not begun its first step.
    """
    if ctx.live_steps is None or tuned_files.is_fixed(ctx, proposal):
        return "not-switchable"
    rule = _rule_for(ctx, proposal)
    if rule is not None and not rule.switching:
        return "not-switchable"
    if rule is not None and lacks_levels(ctx.service_counts, rule):
        return str(proof.ProofReason.NO_SERVICE_LEVELS)
    return ctx.live_steps.unavailable()


def _rule_for(ctx: Context, proposal: str) -> LiveProof | None:
    """Return what the policy requires of a swap; None where it is not measured, or not known."""
    stored = ctx.store.get(RecordKind.PROPOSAL, proposal)
    if stored is None:
        return None
    try:
        return rule_of(ctx, Proposal.model_validate(stored.body).definition)
    except (RetunedError, OSError):  # no proof begins without a policy that can be read
        return None


def report_of(ctx: Context, proposal: str) -> proof.ProofReport | None:
    """Return the verdict on a swap; None without one."""
    return report_in(ctx.store.get(RecordKind.LIVE_PROOF, proposal))


def rule_of(ctx: Context, definition: str) -> LiveProof | None:
    """Return what the policy requires; None where nothing is measured."""
    limits = ctx.policy_limits(definition)
    rule = LiveProof() if limits is None else limits.live_proof
    return None if rule.mode is LiveProofMode.OFF else rule


def _not_begun(why: str) -> proof.ProofReport:
    """Return the report of a proof that cannot begin; codes of a server are `not-switchable`."""
    reasons = proof.ProofReason
    levels = why == reasons.NO_SERVICE_LEVELS
    return proof.ProofReport(
        verdict=proof.Verdict.NOT_CONCLUDED,
        reason=reasons.NO_SERVICE_LEVELS if levels else reasons.NOT_SWITCHABLE,
    )


def _is_due(ctx: Context, order: SwapOrder) -> bool:
    stored = ctx.store.get(RecordKind.PROPOSAL, order.proposal)
    if order.kind is not SwapKind.SWAP or stored is None:
        return False
    record = ctx.store.get(RecordKind.LIVE_PROOF, order.proposal)
    waits = stored.phase == str(ProposalPhase.PROVING)
    if not waits or (record is not None and record.phase != PROVING):
        return False
    if record is None and unless_frozen(ctx, order) is not ProofNeed.CONTINUE:
        return False
    if record is not None:
        return True  # its time goes on, and one that cannot go on ends
    try:
        return not unavailable(ctx, order.proposal)
    except TemporaryError as error:
        log.info("%s is not proven now: %s", order.definition, error)
        return False


def _cannot_go_on(ctx: Context, proposal: str) -> bool:
    """Whether a proof has lost what it needs, such as by a restart with other settings."""
    try:
        return bool(unavailable(ctx, proposal))
    except TemporaryError:
        return False


def unless_frozen(ctx: Context, order: SwapOrder) -> ProofNeed:
    """Return whether a proof may go on: a freeze ends it, one that cannot be read delays it."""
    try:
        freezes = Approvals(ctx.store).freezes(now=ctx.clock.now())
    except UnreadableInput as error:
        log.error("%s: the proof waits: %s", order.definition, error)
        return ProofNeed.WAIT
    covered = any(e.scope.covers(target=order.target, kernel=order.definition) for e in freezes)
    return ProofNeed.END if covered else ProofNeed.CONTINUE


def sealed(
    ctx: Context, body: Mapping[str, Any], report: proof.ProofReport, *, proposal: str
) -> dict[str, Any]:
    """Return a record with its report and the digest of its signed evidence."""
    told = dict(body) | {"report": report.model_dump(mode="json")}
    payload = json.dumps({"gate": "live-proof", "proposal": proposal, **told})
    return told | {"evidence": ctx.store.put_blob(seal(payload.encode(), notary=ctx.notary))}


class _Record(StoredProof):
    """The proof of one order on one machine."""

    def __init__(self, ctx: Context, order: SwapOrder, *, ends: bool) -> None:
        super().__init__(ctx.store, order, id=order.proposal)
        self._ctx = ctx
        self._ends = ends

    def need(self) -> ProofNeed:
        """See `ProofRecord.need`."""
        stored = self._ctx.store.get(RecordKind.PROPOSAL, self._order.proposal)
        if self._ends or stored is None or stored.phase not in UNDER_WAY:
            return ProofNeed.END
        if stored.phase != str(ProposalPhase.PROVING):
            return ProofNeed.WAIT
        return unless_frozen(self._ctx, self._order)

    def finish(self, state: proof.ProofState) -> None:
        """Keep the verdict with its signed evidence."""
        ctx, order, report = self._ctx, self._order, state.report
        assert report is not None, "a proof that is done has one"
        body = sealed(ctx, self.body(state), report, proposal=order.proposal)
        verdict, sentence = str(report.verdict), sentence_of(report)
        with ctx.store.transaction():
            if not self.advance(body, to=verdict):
                return
            say(
                ctx,
                order.proposal,
                f"live-proof-{verdict}",
                reason=str(report.reason),
                detail=sentence,
                evidence=body["evidence"],
                slot=order.definition,
            )
            lessons.learn(ctx, order, report, pace=state.pace)
        ctx.telemetry.count(
            "retuned_live_proof_verdicts_total", verdict=verdict, reason=str(report.reason)
        )
        log.info("%s live proof: %s", order.definition, sentence)

"""Proofs of a swap that was kept: those that an alarm asks for, and those of a sentinel.

They begin with the fit of the proof that let the swap stay, and only harm follows from them: the
state machine reads it as one fact and rolls back.
"""

from __future__ import annotations

import logging

from pydantic import ValidationError

from retuned.api.proposal import ProposalPhase
from retuned.control import MeasuredFact
from retuned.errors import RetunedError
from retuned.node.live_proof import PROVING, ProofNeed, StoredProof, report_in
from retuned.ports import Store, Stored
from retuned.report.live_proof import sentence_of
from retuned.stages import watch
from retuned.stages.proposal import Proposal
from retuned.stages.swap import SwapOrder
from retuned.stages.watch import proof
from retuned.standalone.context import Context, RecordKind
from retuned.standalone.proofs.live_proof import rule_of, sealed, unless_frozen
from retuned.standalone.records import committed, say

log = logging.getLogger(__name__)

ATTRIBUTION, SENTINEL = CAUSES = ("attribution", "sentinel")
"""What asks for a further proof; reason codes of a rollback begin with it."""
KEPT_PHASES = (str(ProposalPhase.WATCHING), str(ProposalPhase.PROMOTED))
"""Phases in which no rollout changes how many launches run the swap, and no proof runs."""


class RepeatedProof(StoredProof):
    """A further proof of one order on one machine.

    Parameters
    ----------
    ctx
        Ports and settings.
    order
        The order in force.
    proposal
        The proposal that brought its artifact.
    cause
        One of `CAUSES`.
    number
        Tells the proofs of one cause apart.
    """

    def __init__(
        self, ctx: Context, order: SwapOrder, *, proposal: str, cause: str, number: str
    ) -> None:
        id = f"{proposal}/{cause}/{number}"
        super().__init__(ctx.store, order, kind=RecordKind.REPEATED_PROOF, id=id)
        self.id = id
        self._ctx, self.proposal, self._cause = ctx, proposal, cause

    def need(self) -> ProofNeed:
        """See `ProofRecord.need`."""
        stored = self._ctx.store.get(RecordKind.PROPOSAL, self.proposal)
        if stored is None or stored.phase not in KEPT_PHASES:
            return ProofNeed.END
        return unless_frozen(self._ctx, self._order)

    def finish(self, state: proof.ProofState) -> None:
        """Keep the verdict, and write it into the swap's history.

        The evidence is signed where something may follow from it: a day of a sentinel without harm
        is not.
        """
        ctx, report = self._ctx, state.report
        assert report is not None, "a proof that is done has one"
        body = self.body(state) | {"report": report.model_dump(mode="json")}
        if self._cause == ATTRIBUTION or report.verdict is proof.Verdict.HARMS:
            body = sealed(ctx, body, report, proposal=self.proposal)
        sentence = sentence_of(report)
        with ctx.store.transaction():
            if not self.advance(body, to=str(report.verdict)):
                return
            say(
                ctx,
                self.proposal,
                f"{self._cause}-{report.verdict}",
                reason=str(report.reason),
                detail=sentence,
                evidence=body.get("evidence"),
                slot=self._order.definition,
            )
            if self._cause == SENTINEL:
                self._tell_interaction(report)
        log.info("%s %s: %s", self._order.definition, self._cause, sentence)

    def _tell_interaction(self, report: proof.ProofReport) -> None:
        """Write that the effect is another one since other swaps came, if it is."""
        ctx = self._ctx
        first = ctx.store.get(RecordKind.LIVE_PROOF, self.proposal)
        before = report_in(first)
        if first is None or before is None or not proof.effect_changed(before, report):
            return
        others = sorted(
            kept.order.definition
            for kept in committed(ctx.store).values()
            if kept.order.artifact is not None
            and kept.order.definition != self._order.definition
            and (stored := ctx.store.get(RecordKind.ORDER, kept.order.id)) is not None
            and stored.updated_at > first.updated_at
        )
        if others:
            say(
                ctx,
                self.proposal,
                "swap-interaction",
                slot=self._order.definition,
                others=others,
                detail=f"before they came: {sentence_of(before)}; now: {sentence_of(report)}",
            )

    def report(self) -> proof.ProofReport | None:
        """Return the verdict; None without one."""
        return report_in(self._ctx.store.get(RecordKind.REPEATED_PROOF, self.id))


def follows(ctx: Context, proposal: Proposal) -> MeasuredFact:
    """Return what further proofs mean for a swap that is in force: only harm withdraws it."""
    harm = _harm(ctx, proposal.id)
    if harm is None:
        return MeasuredFact()
    try:
        rule = rule_of(ctx, proposal.definition)
    except (RetunedError, OSError) as error:
        log.warning("%s waits for a policy that can be read: %s", proposal.definition, error)
        return MeasuredFact(consequence=watch.Consequence.WAIT)
    cause, report = harm
    if rule is None or proof.keeps(report, rule, kept=True):
        return MeasuredFact()
    return MeasuredFact(
        consequence=watch.Consequence.REVERT,
        reason=f"{cause}-{report.reason}",
        detail=sentence_of(report),
    )


def _harm(ctx: Context, proposal: str) -> tuple[str, proof.ProofReport] | None:
    """Return what asked for a further proof of the order in force that showed harm, and it."""
    harms = str(proof.Verdict.HARMS)
    for id in ctx.store.ids(RecordKind.REPEATED_PROOF, phase=harms, prefix=f"{proposal}/"):
        stored = ctx.store.get(RecordKind.REPEATED_PROOF, id)
        report = report_in(stored)
        if stored is None or report is None:
            continue
        kept = committed(ctx.store).get(str(stored.body["definition"]))
        if kept is not None and kept.order.id == stored.body["order"]:
            return id.removeprefix(f"{proposal}/").partition("/")[0], report
    return None


def day_state(store: Store, proposal: str) -> proof.ProofState | None:
    """Return the pairs of the newest day of a swap's sentinel; None without any."""
    days = store.ids(RecordKind.REPEATED_PROOF, prefix=f"{proposal}/{SENTINEL}/")
    return _state(store.get(RecordKind.REPEATED_PROOF, days[-1])) if days else None


def newest_state(ctx: Context, proposal: str) -> proof.ProofState | None:
    """Return the newest proof of a swap with a fit: of its sentinel, else the one that kept it."""
    last = day_state(ctx.store, proposal)
    if last is not None and last.fit is not None:
        return last
    record = ctx.store.get(RecordKind.LIVE_PROOF, proposal)
    return None if record is None or record.phase == PROVING else _state(record)


def _state(stored: Stored | None) -> proof.ProofState | None:
    """Return the state in a record; None if it cannot be read."""
    if stored is None:
        return None
    try:
        return proof.ProofState.model_validate(stored.body["state"])
    except ValidationError as error:
        log.warning("the proof %s cannot be read, it is not continued: %s", stored.id, error)
        return None

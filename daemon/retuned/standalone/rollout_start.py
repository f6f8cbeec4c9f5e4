"""Step 9, the records: what approved proposals become, and what is held back again.

Nothing here talks a server into anything; `swapping` carries out what is written here.
"""

from __future__ import annotations

import logging

from retuned.errors import RetunedError
from retuned.stages import gate as gate_stage
from retuned.stages import swap as swap_stage
from retuned.stages.gate import EndToEndRule, GateState
from retuned.stages.proposal import Proposal
from retuned.stages.swap import Spread, spread_by
from retuned.stages.verdict import Doubt, EvidenceDocument
from retuned.standalone import evidence as proving
from retuned.standalone import gate_requests, tuned_files
from retuned.standalone.context import Context, RecordKind
from retuned.standalone.orders import fresh_epoch, in_phases, latest, say, slot_of
from retuned.standalone.records import proposals
from retuned.standalone.rollback import call_off

log = logging.getLogger(__name__)

_BUSY = ("swapping", "rolling-back", "rollback-failed")
"""Phases of a proposal that keep other swaps out of its slot."""


def start_swaps(ctx: Context) -> None:
    """Write an order for each approved proposal, one at a time in a slot, with its way back."""
    approved = proposals(ctx, ("approved",))
    if not approved:
        return
    epoch = fresh_epoch(ctx)
    for stored, proposal in approved:
        about = {"proposal": proposal.id, "kernel": proposal.definition}
        try:
            with (
                ctx.spans.span("swap", after=stored.traceparent, about=about),
                ctx.store.transaction(),
            ):
                if _start(ctx, proposal, epoch=epoch):
                    epoch += 1
        except RetunedError as error:  # tried again at the next look, after the others
            log.error("%s is not ordered: %s", proposal.definition, error)


def _start(ctx: Context, proposal: Proposal, *, epoch: int) -> bool:
    """Write one order if its slot is free and the gate says so in this very transaction."""
    if any(slot_of(ctx, each) == proposal.definition for each in in_phases(ctx, _BUSY)):
        return False
    if gate_requests.evidence_expired(ctx, proposal):
        return False
    if gate_requests.ask(ctx, proposal).state is not GateState.APPROVED:
        return False  # the gate's own step says why
    document, doubt = proving.believed(ctx, proposal)
    if _doubted(ctx, proposal, doubt) or tuned_files.unfit(ctx, proposal):
        return False
    if _cannot_be_proven(ctx, proposal):
        return False
    if not ctx.store.advance(RecordKind.PROPOSAL, proposal.id, expect="approved", to="swapping"):
        return False
    before = latest(ctx).get(proposal.definition)
    order = swap_stage.order_swap(
        proposal,
        epoch=epoch,
        previous=before.order.artifact if before else None,
        previous_guard=before.order.guard if before else None,
        shadow_every=ctx.settings.shadow_every,
        spread=_spread(ctx, proposal, document),
    )
    ctx.store.add(RecordKind.ORDER, order.id, order.model_dump(mode="json"), phase="new")
    return True


def _spread(ctx: Context, proposal: Proposal, document: EvidenceDocument | None) -> Spread:
    """Return how the policy lets a swap spread over launches, and what its checks may cost."""
    limits = gate_requests.policy_limits(ctx, proposal.definition)
    assert limits is not None, "the gate approved it by a policy"
    evidence = document.evidence if document is not None else None
    return spread_by(limits, shadow_later=ctx.settings.shadow_later, evidence=evidence)


def _cannot_be_proven(ctx: Context, proposal: Proposal) -> bool:
    """Keep a swap waiting that its policy wants measured on the whole server, and nobody can."""
    limits = gate_requests.policy_limits(ctx, proposal.definition)
    if ctx.end_to_end is not None or limits is None:
        return False
    if limits.end_to_end is not EndToEndRule.REQUIRED:
        return False
    if not any(event.what == "waits" for event in ctx.store.events(id=proposal.id)):
        detail = "the policy demands an end-to-end measurement; set end_to_end_url"
        log.warning("%s is not swapped: %s", proposal.definition, detail)
        say(ctx, proposal.id, "waits", reason="end-to-end-no-endpoint", detail=detail)
    return True


def _doubted(ctx: Context, proposal: Proposal, doubt: Doubt | None) -> bool:
    """Refuse what its evidence does not carry; nothing is ordered on somebody's word."""
    if doubt is None:
        return False
    log.error("%s is not swapped: %s", proposal.definition, doubt.detail)
    if ctx.store.advance(RecordKind.PROPOSAL, proposal.id, expect="approved", to="refused"):
        say(ctx, proposal.id, "refused", reason=str(doubt.fault), detail=doubt.detail[:2000])
    return True


def hold_back(ctx: Context) -> None:
    """Call off what is ordered and not delivered once the gate no longer says yes."""
    for stored, proposal in proposals(ctx, ("swapping",)):
        if gate_requests.evidence_expired(ctx, proposal):
            call_off(ctx, stored, to="superseded", reason="environment-changed", detail="")
            continue
        answer = gate_requests.ask(ctx, proposal)
        if answer.state is not GateState.APPROVED:
            said = gate_stage.explain(answer)
            to = gate_requests.phase_of(answer)
            call_off(ctx, stored, to=to, reason=str(answer.reason), detail=said)

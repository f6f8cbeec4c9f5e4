"""Steps 7 and 8: what is worth proposing, what the policy demands, what people said."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from retuned.control.outcome import best_finding
from retuned.errors import RetunedError
from retuned.ports import Event, Stored
from retuned.stages import gate as gate_stage
from retuned.stages import proposal as proposal_stage
from retuned.stages.experiment import ExperimentPlan
from retuned.stages.gate import GateDecision, StopPolicy, TuningFreeze
from retuned.stages.proposal import Proposal, ProposalLimits, Refusal, RefusalReason
from retuned.stages.swap import SwapKind
from retuned.standalone import evidence, expired_wins, gate_requests, tuned_files
from retuned.standalone.context import Context, RecordKind
from retuned.standalone.findings import findings
from retuned.standalone.hypotheses import live_baseline, share_of
from retuned.standalone.order_delivery import roll_back
from retuned.standalone.orders import IN_PLACE, in_phases, latest, live_guard, say
from retuned.standalone.records import proposals, understood
from retuned.standalone.rollback import call_off, lapse, quarantined
from retuned.store.approvals import Approvals

log = logging.getLogger(__name__)

OPEN = ("awaiting", "approved")
"""Phases of a proposal that the gate is asked about."""


def propose(ctx: Context) -> None:
    """Write a proposal, or the reason for none, for each experiment that was won.

    A win whose proposal expired is proposed again once it has rested, while it still holds.
    """
    due = [*ctx.store.list(RecordKind.EXPERIMENT, phase="won"), *expired_wins.rested(ctx)]
    for stored in due:
        plan = understood(ctx, stored, ExperimentPlan)
        if plan is None:
            continue
        about = {"experiment": plan.id, "kernel": plan.definition}
        with ctx.spans.span("proposal", after=stored.traceparent, about=about):
            try:
                answer = expired_wins.too_late(ctx, stored, plan) or _weigh(ctx, plan)
            except RetunedError as error:  # weighed again at the next look, after the others
                log.error("experiment %s is not weighed: %s", plan.id, error)
                continue
            _keep_answer(ctx, plan, answer, phase=stored.phase)


def _keep_answer(
    ctx: Context, plan: ExperimentPlan, answer: Proposal | Refusal, *, phase: str
) -> None:
    """Write the proposal, or why there is none."""
    with ctx.store.transaction():
        if isinstance(answer, Proposal):
            body = answer.model_dump(mode="json")
            ctx.spans.say(proposal=answer.id, risk=str(answer.risk))
            if ctx.store.add(RecordKind.PROPOSAL, answer.id, body, phase="awaiting"):
                _supersede_open(ctx, answer)
                ctx.store.advance(RecordKind.EXPERIMENT, plan.id, expect=phase, to="proposed")
                say(ctx, answer.id, what="proposed", slot=answer.definition)
                return
            known = f"proposal {answer.id} says the same, and was or is decided on"
            answer = Refusal(reason=RefusalReason.ALREADY_DECIDED, detail=known)
        ctx.spans.say(refused=str(answer.reason))
        _not_proposed(ctx, plan, answer, phase=phase)


def _weigh(ctx: Context, plan: ExperimentPlan) -> Proposal | Refusal:
    best = best_finding(findings(ctx, plan.id))
    assert best is not None, "an experiment is won by a finding"
    if plan.environment != ctx.environment:
        return Refusal(
            reason=RefusalReason.STALE_ENVIRONMENT,
            detail=f"measured in {plan.environment}, this machine is {ctx.environment} now",
        )
    doubt = evidence.doubt_about_win(ctx, plan, best)
    if doubt is not None:
        return Refusal(reason=RefusalReason(doubt.fault), detail=doubt.detail)
    answer = proposal_stage.propose(
        best.verdict,
        plan=plan,
        share=share_of(ctx, plan.hypothesis),
        target=ctx.settings.target,
        trust=best.solution.trust,
        first_swap=not _was_swapped(ctx, plan.definition),
        limits=ProposalLimits(min_saving=ctx.settings.min_saving),
        now=ctx.clock.now(),
        ttl=ctx.settings.proposal_ttl,
        quarantined=quarantined(ctx),
        live_baseline=live_baseline(ctx, plan.definition),
        live_guard=live_guard(ctx, plan.definition),
        attempt=expired_wins.next_attempt(ctx, plan, best.solution.digest),
    )
    if isinstance(answer, Proposal):
        answer = gate_requests.under_policy(ctx, answer)
    return tuned_files.with_change(ctx, answer, best.solution)


def _was_swapped(ctx: Context, definition: str) -> bool:
    done = ctx.store.list(RecordKind.ORDER, phase="done")
    return any(stored.body.get("definition") == definition for stored in done)


def _not_proposed(ctx: Context, plan: ExperimentPlan, answer: Refusal, *, phase: str) -> None:
    ctx.store.advance(RecordKind.EXPERIMENT, plan.id, expect=phase, to="refused")
    ctx.telemetry.count("retuned_proposals_refused_total", reason=str(answer.reason))
    ctx.store.record(
        Event(
            at=ctx.clock.now(),
            kind=RecordKind.EXPERIMENT,
            id=plan.id,
            what="not-proposed",
            who="retuned",
            detail={"reason": str(answer.reason), "detail": answer.detail},
        )
    )


def gate(ctx: Context) -> None:
    """Ask the policy about every open proposal, on fresh facts each time.

    What it once approved is asked about until it is swapped: people may still say no.
    """
    for stored in in_phases(ctx, OPEN):
        about = {"proposal": stored.id, "kernel": str(stored.body.get("definition", ""))}
        try:
            with ctx.spans.span("gate", after=stored.traceparent, about=about):
                _judge(ctx, stored)
        except RetunedError as error:  # says nothing about the next proposal
            log.error("gate of %s: %s", stored.id, error)


def _judge(ctx: Context, stored: Stored) -> None:
    proposal = understood(ctx, stored, Proposal)
    if proposal is None:
        return
    if gate_requests.evidence_expired(ctx, proposal):
        _move(ctx, stored, "superseded", what="environment-changed")
    elif live_baseline(ctx, proposal.definition) != proposal.baseline:
        _move(ctx, stored, "superseded", what="baseline-changed")
    else:
        _settle(ctx, stored, gate_requests.ask(ctx, proposal))


def _settle(ctx: Context, stored: Stored, answer: GateDecision) -> None:
    """Keep an answer that says something new, and let the proposal follow it."""
    body = answer.model_dump(mode="json")
    phase = gate_requests.phase_of(answer)
    with ctx.store.transaction():
        known = ctx.store.get(RecordKind.GATE, stored.id)
        if known is None:
            ctx.store.add(RecordKind.GATE, stored.id, body, phase="current")
        elif _said(known.body) != _said(body):
            ctx.store.advance(RecordKind.GATE, stored.id, expect="current", to="current", body=body)
        ctx.spans.say(state=str(answer.state), reason=str(answer.reason))
        if known is None or known.body["state"] != body["state"]:
            sentence = gate_stage.explain(answer)
            log.info("gate: %s", sentence)
            say(ctx, stored.id, what=f"gate-{answer.state}", sentence=sentence)
        if phase != stored.phase:
            _move(ctx, stored, phase, what=phase)


def _said(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return an answer without the moment it was given at."""
    return {name: value for name, value in body.items() if name != "evaluated_at"}


def carry_out_requests(ctx: Context) -> None:
    """Roll back and abort what people asked for; never gated."""
    for request in ctx.store.list(RecordKind.REQUEST, phase="new"):
        about = {"proposal": str(request.body["target"]), "what": str(request.body["what"])}
        try:
            proposal = ctx.store.get(RecordKind.PROPOSAL, about["proposal"])
            after = proposal.traceparent if proposal is not None else ""
            with ctx.spans.span("request", after=after, links=[request.traceparent], about=about):
                if proposal is not None:
                    _carry_out(ctx, request, proposal)
                ctx.store.advance(RecordKind.REQUEST, request.id, expect="new", to="done")
        except RetunedError as error:  # asked for again at the next look, after the others
            log.error("request %s: %s", request.id, error)


def _carry_out(ctx: Context, request: Stored, proposal: Stored) -> None:
    who, reason = str(request.body["who"]), str(request.body.get("reason", ""))
    if proposal.phase in OPEN:
        with ctx.store.transaction():
            if ctx.store.advance(
                RecordKind.PROPOSAL, proposal.id, expect=proposal.phase, to="aborted"
            ):
                say(ctx, proposal.id, what="aborted", who=who, reason=reason)
    elif proposal.phase == "swapping":
        call_off(ctx, proposal, to="aborted", reason="requested", detail=reason, who=who)
    elif proposal.phase in (*IN_PLACE, "rollback-failed"):
        roll_back(ctx, proposal, reason="requested", detail=reason, who=who)
    else:
        say(ctx, proposal.id, what="request-void", who=who, phase=proposal.phase)


def take_back(ctx: Context) -> None:
    """Roll back what freezes that stand take back; never gated.

    What is ordered and not delivered is held back by the gate, whatever the freeze says.
    """
    for freeze in freezes(ctx):
        for stored in _taken_back(ctx, freeze):
            try:
                roll_back(ctx, stored, reason="freeze", detail=freeze.reason, who=freeze.user)
            except RetunedError as error:  # tried again at the next look, after the others
                log.error("freeze %s, %s: %s", freeze.id, stored.id, error)


def freezes(ctx: Context) -> tuple[TuningFreeze, ...]:
    """Return the stop signs that stand now.

    Raises
    ------
    UnreadableInput
        If one cannot be understood: treat that as frozen.
    """
    return Approvals(ctx.store).freezes(now=ctx.clock.now())


def _taken_back(ctx: Context, freeze: TuningFreeze) -> list[Stored]:
    phases = {
        StopPolicy.HOLD: (),
        StopPolicy.HOLD_AND_DRAIN: ("watching",),
        StopPolicy.HOLD_AND_ROLLBACK: IN_PLACE,
    }[freeze.stop_policy]
    found = []
    for stored, proposal in proposals(ctx, phases):
        if not freeze.scope.covers(target=proposal.target, kernel=proposal.definition):
            continue
        if freeze.stop_policy is StopPolicy.HOLD_AND_DRAIN and _came_back(ctx, proposal):
            continue  # it was proven before; only what replaced it was under way
        found.append(stored)
    return found


def _came_back(ctx: Context, proposal: Proposal) -> bool:
    kept = latest(ctx).get(proposal.definition)
    return kept is not None and kept.order.kind is SwapKind.ROLLBACK


def _supersede_open(ctx: Context, new: Proposal) -> None:
    """End the proposals that still wait when a newer one for the same kernel comes."""
    for stored in in_phases(ctx, OPEN):
        if stored.body.get("definition") == new.definition and stored.id != new.id:
            ctx.store.advance(RecordKind.PROPOSAL, stored.id, expect=stored.phase, to="superseded")
            say(ctx, stored.id, what="superseded", by=new.id)


def _move(ctx: Context, stored: Stored, phase: str, *, what: str) -> None:
    if ctx.store.advance(RecordKind.PROPOSAL, stored.id, expect=stored.phase, to=phase):
        if phase == "expired":
            lapse(ctx, stored)
        say(ctx, stored.id, what=what)

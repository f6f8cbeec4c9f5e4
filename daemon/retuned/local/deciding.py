"""Steps 7 and 8: what is worth proposing, what the policy demands, what people said."""

from __future__ import annotations

import logging
from datetime import datetime

from retuned.local.context import Context, Kind
from retuned.local.found import best_finding, findings
from retuned.local.reasoning import live_baseline, share_of
from retuned.local.swapping import live_guard, roll_back
from retuned.ports import Event, Stored
from retuned.stages import gate as gate_stage
from retuned.stages import proposal as proposal_stage
from retuned.stages.experiment import ExperimentPlan
from retuned.stages.gate import (
    GateDecision,
    GateReason,
    GateState,
    StopPolicy,
    SwapDecision,
    TuningFreeze,
)
from retuned.stages.proposal import Proposal, ProposalLimits

log = logging.getLogger(__name__)

_ENDS = {
    GateState.REJECTED: "rejected",
    GateState.EXPIRED: "expired",
    GateState.APPROVED: "approved",
}
"""Answers of the gate that move a proposal on; all others leave it waiting."""


def propose(ctx: Context) -> None:
    """Write a proposal, or the reason for none, for each experiment that was won."""
    for stored in ctx.store.list(Kind.EXPERIMENT, phase="won"):
        plan = ExperimentPlan.model_validate(stored.body)
        best = best_finding(findings(ctx, plan.id))
        assert best is not None, "an experiment is won by a finding"
        answer = proposal_stage.propose(
            best.verdict,
            plan=plan,
            share=share_of(ctx, plan.hypothesis),
            target=ctx.settings.target,
            trust=best.solution.trust,
            first_swap=not ctx.store.list(Kind.ORDER),
            limits=ProposalLimits(min_saving=ctx.settings.min_saving),
            now=ctx.clock.now(),
            ttl=ctx.settings.proposal_ttl,
            quarantined=_quarantined(ctx),
            live_baseline=live_baseline(ctx, plan.definition),
            live_guard=live_guard(ctx, plan.definition),
        )
        with ctx.store.transaction():
            if isinstance(answer, Proposal):
                _supersede_open(ctx, answer)
                ctx.store.add(
                    Kind.PROPOSAL, answer.id, answer.model_dump(mode="json"), phase="awaiting"
                )
                ctx.store.advance(Kind.EXPERIMENT, plan.id, expect="won", to="proposed")
                _say(ctx, answer.id, what="proposed", slot=answer.definition)
            else:
                ctx.store.advance(Kind.EXPERIMENT, plan.id, expect="won", to="refused")
                ctx.store.record(
                    Event(
                        at=ctx.clock.now(),
                        kind=Kind.EXPERIMENT,
                        id=plan.id,
                        what="not-proposed",
                        who="retuned",
                        detail={"reason": str(answer.reason), "detail": answer.detail},
                    )
                )


def gate(ctx: Context) -> None:
    """Ask the policy about every open proposal, on fresh facts each time."""
    for stored in ctx.store.list(Kind.PROPOSAL, phase="awaiting"):
        proposal = Proposal.model_validate(stored.body)
        if live_baseline(ctx, proposal.definition) != proposal.baseline:
            _move(ctx, proposal.id, "superseded", what="baseline-changed")
            continue
        _settle(ctx, proposal, _ask(ctx, proposal))


def carry_out_requests(ctx: Context) -> None:
    """Roll back and abort what people asked for, and what a freeze takes back; never gated."""
    for request in ctx.store.list(Kind.REQUEST, phase="new"):
        proposal = ctx.store.get(Kind.PROPOSAL, str(request.body["target"]))
        if proposal is not None:
            _carry_out(ctx, request, proposal)
        ctx.store.advance(Kind.REQUEST, request.id, expect="new", to="done")
    for freeze in freezes(ctx):
        _take_back(ctx, freeze)


def freezes(ctx: Context) -> list[TuningFreeze]:
    """Return the stop signs that stand."""
    return [
        TuningFreeze.model_validate(s.body) for s in ctx.store.list(Kind.FREEZE, phase="active")
    ]


def _ask(ctx: Context, proposal: Proposal) -> GateDecision:
    choice = gate_stage.select_policy(ctx.policies(), proposal, labels=ctx.labels)
    return gate_stage.decide(
        proposal,
        policy=choice.policy,
        policy_digest=choice.digest,
        decisions=[
            SwapDecision.model_validate(s.body)
            for s in ctx.store.list(Kind.DECISION)
            if s.body["proposal"] == proposal.id
        ],
        freezes=freezes(ctx),
        env=ctx.labels.get("env", ""),
        now=ctx.clock.now(),
        absent=choice.reason or GateReason.NO_POLICY,
    )


def _settle(ctx: Context, proposal: Proposal, answer: GateDecision) -> None:
    body = answer.model_dump(mode="json")
    with ctx.store.transaction():
        known = ctx.store.get(Kind.GATE, proposal.id)
        if known is None:
            ctx.store.add(Kind.GATE, proposal.id, body, phase="current")
        else:
            ctx.store.advance(Kind.GATE, proposal.id, expect="current", to="current", body=body)
        if known is None or known.body["state"] != body["state"]:
            sentence = gate_stage.explain(answer)
            log.info("gate: %s", sentence)
            _say(ctx, proposal.id, what=f"gate-{answer.state}", sentence=sentence)
        if answer.state in _ENDS:
            _move(ctx, proposal.id, _ENDS[answer.state], what=_ENDS[answer.state])


def _carry_out(ctx: Context, request: Stored, proposal: Stored) -> None:
    who, reason = str(request.body["who"]), str(request.body.get("reason", ""))
    if proposal.phase in {"awaiting", "approved"}:
        with ctx.store.transaction():
            ctx.store.advance(Kind.PROPOSAL, proposal.id, expect=proposal.phase, to="aborted")
            _say(ctx, proposal.id, what="aborted", who=who, reason=reason)
    elif proposal.phase in {"swapping", "watching", "promoted", "rollback-failed"}:
        roll_back(ctx, proposal, reason="requested", detail=reason, who=who)


def _take_back(ctx: Context, freeze: TuningFreeze) -> None:
    phases = {
        StopPolicy.HOLD: (),
        StopPolicy.HOLD_AND_DRAIN: ("swapping", "watching"),
        StopPolicy.HOLD_AND_ROLLBACK: ("swapping", "watching", "promoted"),
    }[freeze.stop_policy]
    for phase in phases:
        for stored in ctx.store.list(Kind.PROPOSAL, phase=phase):
            proposal = Proposal.model_validate(stored.body)
            if freeze.scope.covers(target=proposal.target, kernel=proposal.definition):
                roll_back(ctx, stored, reason="freeze", detail=freeze.reason, who=freeze.user)


def _supersede_open(ctx: Context, new: Proposal) -> None:
    """End the proposals that still wait when a newer one for the same kernel comes."""
    for phase in ("awaiting", "approved"):
        for stored in ctx.store.list(Kind.PROPOSAL, phase=phase):
            if stored.body["definition"] == new.definition and stored.id != new.id:
                ctx.store.advance(Kind.PROPOSAL, stored.id, expect=phase, to="superseded")
                _say(ctx, stored.id, what="superseded", by=new.id)


def _quarantined(ctx: Context) -> frozenset[str]:
    now = ctx.clock.now()
    return frozenset(
        stored.id
        for stored in ctx.store.list(Kind.QUARANTINE)
        if datetime.fromisoformat(str(stored.body["until"])) > now
    )


def _move(ctx: Context, proposal: str, phase: str, *, what: str) -> None:
    if ctx.store.advance(Kind.PROPOSAL, proposal, expect="awaiting", to=phase):
        _say(ctx, proposal, what=what)


def _say(ctx: Context, proposal: str, *, what: str, who: str = "retuned", **detail: object) -> None:
    ctx.store.record(
        Event(
            at=ctx.clock.now(),
            kind=Kind.PROPOSAL,
            id=proposal,
            what=what,
            who=who,
            detail=detail,
        )
    )

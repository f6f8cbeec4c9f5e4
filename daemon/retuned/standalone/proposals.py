"""Stage 7 on one machine: which wins are proposed, and which ones again later.

An expired proposal was not rejected. Its win is proposed again after it has rested as long as it
waited, as another attempt, while its measurement is recent; after a few attempts only a new
experiment brings it back. A win is deferred while a lesson of a live proof holds against it, or
while the host sets the pace of a server that must gain.
"""

from __future__ import annotations

import itertools
import logging
from datetime import timedelta

from retuned.api.proposal import ProposalPhase
from retuned.contract import Digest
from retuned.control.outcome import best_finding
from retuned.errors import RetunedError
from retuned.ports import Event, Stored
from retuned.stages import gate as gate_stage
from retuned.stages import proposal as proposal_stage
from retuned.stages.experiment import ExperimentPlan
from retuned.stages.proposal import (
    AgainLimits,
    Proposal,
    ProposalLimits,
    Refusal,
    RefusalReason,
    SwapClaim,
)
from retuned.standalone import evidence
from retuned.standalone.context import Context, RecordKind
from retuned.standalone.facts import quarantined
from retuned.standalone.findings import findings
from retuned.standalone.hypotheses import belief_of, live_baseline
from retuned.standalone.proofs import server_pace
from retuned.standalone.records import (
    GOING_BACK,
    UNDECIDED,
    in_phases,
    live_guard,
    say,
    understood,
    was_swapped,
)
from retuned.standalone.tunables import records as tunable_records
from retuned.standalone.tunables import tuned_files
from retuned.store.lessons import kept

log = logging.getLogger(__name__)


def propose(ctx: Context) -> None:
    """Write a proposal, or the reason for none, for each experiment that was won.

    A win whose proposal expired is proposed again once it has rested, while it still holds. One
    that a lesson or the host defers is weighed again every minute.
    """
    due = [
        *ctx.store.list(RecordKind.EXPERIMENT, phase="won"),
        *rested(ctx),
        *ctx.store.list(RecordKind.EXPERIMENT, phase=DEFERRED),
    ]
    for stored in due:
        plan = understood(ctx, stored, ExperimentPlan)
        if plan is None or _stays_deferred(ctx, stored, plan):
            continue
        about = {"experiment": plan.id, "kernel": plan.definition}
        with ctx.spans.span("proposal", after=stored.traceparent, about=about):
            try:
                answer = (
                    too_late(ctx, stored, plan)
                    or against_the_server(ctx, plan)
                    or _weigh(ctx, plan)
                )
            except RetunedError as error:  # weighed again at the next look, after the others
                log.error("experiment %s is not weighed: %s", plan.id, error)
                continue
            _keep_answer(ctx, plan, answer, phase=stored.phase)


def _keep_answer(
    ctx: Context, plan: ExperimentPlan, answer: Proposal | Refusal, *, phase: str
) -> None:
    """Write the proposal, or why none is made."""
    with ctx.store.transaction():
        if isinstance(answer, Proposal):
            body = answer.model_dump(mode="json")
            ctx.spans.say(proposal=answer.id, risk=str(answer.risk))
            if ctx.store.add(RecordKind.PROPOSAL, answer.id, body, phase=ProposalPhase.PENDING):
                ctx.store.advance(RecordKind.EXPERIMENT, plan.id, expect=phase, to="proposed")
                say(ctx, answer.id, what="proposed", slot=answer.definition)
                server_pace.keep_forecast(ctx, answer)
                return
            known = f"proposal {answer.id} is for the same swap, and is pending or decided"
            answer = Refusal(reason=RefusalReason.ALREADY_DECIDED, detail=known)
        ctx.spans.say(refused=str(answer.reason))
        _not_proposed(ctx, plan, answer, phase=phase)


def against_the_server(ctx: Context, plan: ExperimentPlan) -> Refusal | None:
    """Return why a win is of no use in the server as it is: a lesson, or the host; else None."""
    best = best_finding(findings(ctx, plan.id))
    if best is None or best.verdict.speedup is None:
        return None
    verdict, speedup = best.verdict, best.verdict.speedup
    share = proposal_stage.share_in(belief_of(ctx, plan.hypothesis), verdict)
    claim = SwapClaim(
        definition=plan.definition,
        guard=verdict.guard,
        artifact=best.solution.digest,
        saving=proposal_stage.saving_of(verdict, share=share),
        key=server_pace.key_of(ctx, plan.definition),
    )
    learned = proposal_stage.lesson_against(kept(ctx.store, verifier=ctx.notary), claim)
    return learned or server_pace.refusal(
        ctx,
        plan.definition,
        share=min(1.0, proposal_stage.covered_share(verdict) * share),
        speedup=speedup.point,
    )


def _stays_deferred(ctx: Context, stored: Stored, plan: ExperimentPlan) -> bool:
    """Whether the reason of an earlier look still holds, which its history has."""
    if stored.phase != DEFERRED or too_late(ctx, stored, plan) is not None:
        return False
    if ctx.clock.now() - stored.updated_at < _WEIGHED_EVERY:
        return True
    try:
        stays = against_the_server(ctx, plan) is not None
    except (RetunedError, OSError) as error:
        log.error("experiment %s is not weighed: %s", plan.id, error)
        return True
    if stays:
        ctx.store.advance(RecordKind.EXPERIMENT, plan.id, expect=DEFERRED, to=DEFERRED)
    return stays


def _weigh(ctx: Context, plan: ExperimentPlan) -> Proposal | Refusal:
    best = best_finding(findings(ctx, plan.id))
    assert best is not None, "an experiment is won by a finding"
    environment = tunable_records.environment_of(ctx, plan.definition)
    if plan.environment != environment:
        return Refusal(
            reason=RefusalReason.STALE_ENVIRONMENT,
            detail=f"measured in {plan.environment}, required is {environment} now",
        )
    doubt = evidence.doubt_about_win(ctx, plan, best)
    if doubt is not None:
        return Refusal(reason=RefusalReason(doubt.fault), detail=doubt.detail)
    answer = proposal_stage.propose(
        best.verdict,
        plan=plan,
        share=proposal_stage.share_in(belief_of(ctx, plan.hypothesis), best.verdict),
        target=ctx.settings.target,
        trust=best.solution.trust,
        first_swap=not was_swapped(ctx.store, plan.definition),
        limits=ProposalLimits(min_saving=ctx.settings.min_saving),
        now=ctx.clock.now(),
        ttl=ctx.settings.proposal_ttl,
        quarantined=quarantined(ctx),
        live_baseline=live_baseline(ctx, plan.definition),
        # a new table carries the rules of the one in force
        live_guard=None
        if tunable_records.is_tunable(plan.definition)
        else live_guard(ctx.store, plan.definition),
        attempt=next_attempt(ctx, plan, best.solution.digest),
    )
    if isinstance(answer, Proposal):
        answer = _under_policy(ctx, answer)
    return tuned_files.with_change(ctx, answer, best.solution)


def _not_proposed(ctx: Context, plan: ExperimentPlan, answer: Refusal, *, phase: str) -> None:
    to = DEFERRED if answer.reason in _PASSING else "refused"
    ctx.store.advance(RecordKind.EXPERIMENT, plan.id, expect=phase, to=to)
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


LAPSED = "lapsed"
"""Phase of an experiment whose proposal expired."""
DEFERRED = "deferred"
"""Phase of an experiment whose win is of no use in the server as it is."""
_PASSING = (RefusalReason.LIVE_LESSON, RefusalReason.HOST_BOUND)
"""Refusals that end with a change of the server."""
_WEIGHED_EVERY = timedelta(minutes=1)


def rested(ctx: Context) -> list[Stored]:
    """Return the experiments whose win is due again: rested, and nothing else is under way."""
    lapsed = ctx.store.list(RecordKind.EXPERIMENT, phase=LAPSED)
    if not lapsed:
        return []
    since = ctx.clock.now() - ctx.settings.proposal_ttl
    busy = {
        str(each.body.get("definition", "")) for each in in_phases(ctx, (*UNDECIDED, *GOING_BACK))
    }
    return [
        each
        for each in lapsed
        if each.updated_at <= since and str(each.body.get("definition", "")) not in busy
    ]


def too_late(ctx: Context, stored: Stored, plan: ExperimentPlan) -> Refusal | None:
    """Say why a win that waited is not proposed again; None if it may be, or never waited."""
    if stored.phase not in (LAPSED, DEFERRED):
        return None
    best = best_finding(findings(ctx, plan.id))
    settings = ctx.settings
    answer = proposal_stage.propose_again(
        expired=next_attempt(ctx, plan, best.solution.digest) - 1 if best is not None else 0,
        expired_at=stored.updated_at,
        measured_at=stored.created_at,
        now=ctx.clock.now(),
        limits=AgainLimits(
            rest=settings.proposal_ttl,
            max_age=settings.evidence_max_age,
            max_proposals=settings.max_proposals,
        ),
    )
    return answer if isinstance(answer, Refusal) else None


def next_attempt(ctx: Context, plan: ExperimentPlan, artifact: Digest) -> int:
    """Return which attempt it would be to propose a win: one more than those that it survives.

    It survives proposals that expired, and live proofs whose lesson does not hold any more.
    """
    baseline = live_baseline(ctx, plan.definition)
    for attempt in itertools.count(1):
        known = ctx.store.get(
            RecordKind.PROPOSAL,
            proposal_stage.proposal_id(
                target=ctx.settings.target,
                artifact=artifact,
                baseline=baseline,
                environment=plan.environment,
                attempt=attempt,
            ),
        )
        if known is None or not (known.phase == ProposalPhase.EXPIRED or _unlearned(ctx, known)):
            return attempt
    raise AssertionError("counting does not end")


def _unlearned(ctx: Context, proposal: Stored) -> bool:
    """Whether a rollback followed from a live proof; callers check before that no lesson holds."""
    rolled_back = proposal.phase == ProposalPhase.ROLLED_BACK
    return rolled_back and ctx.store.get(RecordKind.LESSON, proposal.id) is not None


def _under_policy(ctx: Context, proposal: Proposal) -> Proposal:
    """Return a new proposal with the time that the policy in force leaves people for it."""
    choice = gate_stage.select_policy(ctx.policies(), proposal, labels=ctx.labels)
    return gate_stage.under(proposal, choice.policy, env=ctx.labels.get("env", ""))

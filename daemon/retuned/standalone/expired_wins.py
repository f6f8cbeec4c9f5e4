"""Wins that nobody decided on in time: whether and when they are proposed again.

An expired proposal was not rejected. Its win is proposed again after it has rested as long as it
waited, as another attempt, while it was measured not too long ago; after a few attempts only a new
experiment brings it back. That it still beats what is in production in this environment is asked of
every proposal anyway.
"""

from __future__ import annotations

import itertools

from retuned.contract import Digest
from retuned.control.outcome import best_finding
from retuned.ports import Stored
from retuned.stages import proposal as proposal_stage
from retuned.stages.experiment import ExperimentPlan
from retuned.stages.proposal import AgainLimits, Refusal
from retuned.standalone.context import Context, RecordKind
from retuned.standalone.findings import findings
from retuned.standalone.hypotheses import live_baseline
from retuned.standalone.orders import in_phases

LAPSED = "lapsed"
"""Phase of an experiment whose proposal expired."""
_UNDER_WAY = ("awaiting", "approved", "swapping", "rolling-back", "rollback-failed")


def rested(ctx: Context) -> list[Stored]:
    """Return the experiments whose win is due again: rested, and nothing else is under way."""
    lapsed = ctx.store.list(RecordKind.EXPERIMENT, phase=LAPSED)
    if not lapsed:
        return []
    since = ctx.clock.now() - ctx.settings.proposal_ttl
    busy = {str(each.body.get("definition", "")) for each in in_phases(ctx, _UNDER_WAY)}
    return [
        each
        for each in lapsed
        if each.updated_at <= since and str(each.body.get("definition", "")) not in busy
    ]


def too_late(ctx: Context, stored: Stored, plan: ExperimentPlan) -> Refusal | None:
    """Say why a win that lapsed is not proposed again; None if it may be, or never lapsed."""
    if stored.phase != LAPSED:
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
    """Return which attempt it would be to propose a win: one more than those that expired."""
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
        if known is None or known.phase != "expired":
            return attempt
    raise AssertionError("counting does not end")

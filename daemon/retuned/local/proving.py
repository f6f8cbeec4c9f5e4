"""Evidence in the loop: signed when it comes in, verified before anything is built on it."""

from __future__ import annotations

import logging

from retuned.adapters.envelopes import Read, read, seal
from retuned.contract import Digest
from retuned.errors import TemporaryError
from retuned.lab.countersigning import claim_of, wrong_with
from retuned.local.asking import measured_in
from retuned.local.context import Context
from retuned.ports import Event, Finding
from retuned.stages.experiment import ExperimentPlan
from retuned.stages.proposal import Proposal
from retuned.stages.verdict import (
    Claim,
    Doubt,
    EvidenceDocument,
    doubt_of,
)

__all__ = ["Read", "believed", "doubt_about_win", "keep", "read"]

log = logging.getLogger(__name__)

_RETRY_S = 10.0


def keep(ctx: Context, plan: ExperimentPlan, finding: Finding) -> Digest | None:
    """Sign what the lab wrote on a candidate and keep it; None if it wrote nothing that fits.

    What is not kept is never proposed: a promotion without evidence is refused. The lab runs
    strangers' code, so nothing that it says of its numbers is signed before the bounds were
    computed again from the raw pairs.

    Raises
    ------
    TemporaryError
        If what the lab wrote cannot be read now.
    """
    named = finding.verdict.evidence
    try:
        raw = ctx.bench.evidence(named) if named is not None else None
    except OSError as error:
        message = f"evidence {named} cannot be read: {error.strerror}; fix the lab's folder"
        raise TemporaryError(message, delay_s=_RETRY_S) from error
    if raw is None:
        return None
    doubt = wrong_with(raw, plan, finding, environment=plan.environment)
    if doubt is None:
        return ctx.store.put_blob(seal(raw, notary=ctx.notary))
    log.error("evidence of %s is not signed: %s", finding.solution.digest, doubt.detail)
    ctx.store.record(
        Event(
            at=ctx.clock.now(),
            kind="experiment",
            id=plan.id,
            what="evidence-refused",
            who="retuned",
            detail={
                "candidate": finding.solution.digest,
                "reason": str(doubt.fault),
                "detail": doubt.detail,
            },
        )
    )
    return None


def believed(ctx: Context, proposal: Proposal) -> tuple[EvidenceDocument | None, Doubt | None]:
    """Return a proposal's evidence, and why it does not carry the proposal; None if it does.

    Raises
    ------
    TemporaryError
        If the evidence or the key cannot be read now, which says nothing about the evidence.
    """
    claim = Claim(
        candidate=proposal.artifact,
        incumbent=proposal.baseline,
        plan=proposal.experiment,
        environment=measured_in(ctx, proposal),
        guard=proposal.guard,
        speedup=proposal.speedup,
        trust=proposal.trust,
    )
    return _carried(ctx, claim, proposal.evidence)


def doubt_about_win(ctx: Context, plan: ExperimentPlan, won: Finding) -> Doubt | None:
    """Say why a win is not to be proposed; None if its evidence carries it.

    Raises
    ------
    TemporaryError
        As `believed`.
    """
    claim = claim_of(plan, won, environment=plan.environment)
    return _carried(ctx, claim, won.verdict.evidence)[1]


def _carried(
    ctx: Context, claim: Claim, digest: Digest | None
) -> tuple[EvidenceDocument | None, Doubt | None]:
    found = read(ctx.store, ctx.notary, digest)
    if found.passing:
        assert found.doubt is not None, "what cannot be read is in doubt"
        raise TemporaryError(found.doubt.detail, delay_s=_RETRY_S)
    if found.document is None or found.doubt is not None:
        return found.document, found.doubt
    return found.document, doubt_of(found.document, claim)

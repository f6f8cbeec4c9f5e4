"""Evidence in the loop: signed when it comes in, verified before anything is built on it.

Also the checks just before a server loads a variant; a rollback needs none of them.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from retuned.contract import Digest, Environment
from retuned.errors import CandidateError, TemporaryError
from retuned.lab.evidence_check import claim_of, wrong_with
from retuned.ports import Event, Finding
from retuned.stages.experiment import ExperimentPlan
from retuned.stages.proposal import Proposal
from retuned.stages.swap import SwapOrder
from retuned.stages.verdict import (
    Claim,
    Difference,
    Doubt,
    EvidenceDocument,
    EvidenceFault,
    ServerEnvironment,
    differences,
    doubt_of,
)
from retuned.standalone.context import Context, RecordKind
from retuned.standalone.records import UNREADABLE, understood
from retuned.store.envelopes import Read, read, seal

__all__ = ["Read", "believed", "doubt_about_win", "keep", "read"]

log = logging.getLogger(__name__)

_RETRY_S = 10.0


def keep(ctx: Context, plan: ExperimentPlan, finding: Finding) -> Digest | None:
    """Sign what the lab wrote on a candidate and keep it; None if it wrote nothing that fits.

    A candidate without stored evidence is never proposed: a promotion without evidence is refused.
    The lab runs untrusted code, so this signs its numbers only after it computed the bounds again
    from the raw pairs.

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


def measured_in(ctx: Context, proposal: Proposal) -> Digest | None:
    """Return the environment of a proposal; an early version kept it in the experiment alone."""
    if proposal.environment is not None:
        return proposal.environment
    stored = ctx.store.get(RecordKind.EXPERIMENT, proposal.experiment)
    return str(stored.body["environment"]) if stored is not None else None


def doubt_about_win(ctx: Context, plan: ExperimentPlan, won: Finding) -> Doubt | None:
    """Return why a win may not be proposed; None if its evidence supports it.

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


UNKNOWN = "server-environment-unknown"
"""The server cannot say yet what it runs on: no launch has shown its device."""
DIFFERS = "server-environment-differs"
"""The server runs on something else than what was measured."""
_SHOWN_BY_A_LAUNCH = frozenset({"arch", "GPU_NAME"})
"""What may be known later; a switch that is not set, or Triton that is not there, is an answer."""


def check_before_load(ctx: Context, order: SwapOrder) -> None:
    """Verify what a swap rests on, and that the server is what it was measured on.

    Raises
    ------
    CandidateError
        With the fault of the evidence, ``record-unreadable``, ``server-environment-differs``, or
        ``server-environment-unknown`` while a process cannot say yet.
    TemporaryError
        If the server does not answer, or the evidence cannot be read now.
    """
    stored = ctx.store.get(RecordKind.PROPOSAL, order.proposal)
    if stored is None:
        raise CandidateError(EvidenceFault.MISSING, detail="the order has no proposal")
    proposal = understood(ctx, stored, Proposal)
    if proposal is None:
        raise CandidateError(UNREADABLE, detail="the order's proposal cannot be understood")
    document, doubt = believed(ctx, proposal)
    if document is None or doubt is not None:
        assert doubt is not None, "what cannot be read is in doubt"
        raise CandidateError(doubt.fault, detail=doubt.detail)
    if (order.artifact, order.guard) != (proposal.artifact, proposal.guard):
        detail = "the order is for another artifact or other shapes than its proposal"
        raise CandidateError(EvidenceFault.CONTRADICTED, detail=detail)
    for process in ctx.swapper.environments():
        _compare(ctx, order, document.environment, process)


def _compare(
    ctx: Context, order: SwapOrder, measured: Environment, process: ServerEnvironment
) -> None:
    found = differences(measured, process)
    deciding = [difference for difference in found if difference.decides]
    if deciding and ctx.settings.environment_mismatch == "refuse":
        unknown = all(not d.serving and d.what in _SHOWN_BY_A_LAUNCH for d in deciding)
        raise CandidateError(UNKNOWN if unknown else DIFFERS, detail=_sentence(process, deciding))
    if found:
        log.warning("%s is swapped in although %s", order.definition, _sentence(process, found))


def _sentence(process: ServerEnvironment, found: Sequence[Difference]) -> str:
    return f"in process {process.process} {'; '.join(map(str, found))}"

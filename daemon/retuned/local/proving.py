"""Evidence in the loop: signed when it comes in, verified before anything is built on it."""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass

from pydantic import ValidationError

from retuned.adapters.envelopes import seal, unseal
from retuned.contract import Digest
from retuned.errors import TemporaryError, UnreadableInput
from retuned.lab.recomputing import wrong_with_plan, wrong_with_raw
from retuned.local.asking import measured_in
from retuned.local.context import Context
from retuned.ports import Event, Finding, Store, Verifier
from retuned.stages.experiment import ExperimentPlan
from retuned.stages.proposal import Proposal
from retuned.stages.verdict import (
    Claim,
    Doubt,
    EvidenceDocument,
    EvidenceFault,
    Status,
    contradiction_in,
    doubt_of,
)

log = logging.getLogger(__name__)

_RETRY_S = 10.0
_PASSING = frozenset({"key-unreadable", "blob-unreadable"})
"""What keeps evidence from being read and says nothing about it."""
_MAX_BYTES = 32 << 20
"""Longest document that is signed; an envelope around it still can be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """Evidence as it was found."""

    document: EvidenceDocument | None
    """What it says; None where it cannot be read."""
    doubt: Doubt | None
    """Why it is not believed; None if its bytes and its signature are whole."""
    passing: bool = False
    """Whether the doubt is about this machine and not about the evidence: try again."""


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
    doubt = _wrong_with(raw, plan, finding)
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


def read(store: Store, verifier: Verifier, digest: Digest | None) -> Read:
    """Find evidence and verify its bytes and its signature."""
    if digest is None:
        detail = "no evidence is named"
        return Read(document=None, doubt=Doubt(fault=EvidenceFault.MISSING, detail=detail))
    try:
        data = store.get_blob(digest)
        document, doubt = unseal(data, verifier=verifier)
    except OSError as error:
        detail = f"{digest} cannot be read now: {error.strerror or error}"
        return _later(detail)
    except UnreadableInput as error:
        if error.code in _PASSING:
            return _later(str(error))
        known = {
            "blob-corrupt": EvidenceFault.ALTERED,
            "blob-missing": EvidenceFault.MISSING,
        }
        fault = known.get(error.code, EvidenceFault.UNREADABLE)
        return Read(document=None, doubt=Doubt(fault=fault, detail=str(error)))
    return Read(document=document, doubt=doubt)


def _later(detail: str) -> Read:
    doubt = Doubt(fault=EvidenceFault.UNREADABLE, detail=f"{detail}; try again")
    return Read(document=None, doubt=doubt, passing=True)


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
    return _carried(ctx, _claim(plan, won), won.verdict.evidence)[1]


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


def _claim(plan: ExperimentPlan, found: Finding) -> Claim:
    """Return what a finding says."""
    return Claim(
        candidate=found.solution.digest,
        incumbent=plan.incumbent,
        plan=plan.id,
        environment=plan.environment,
        guard=found.verdict.guard,
        speedup=found.verdict.speedup,
        trust=found.solution.trust,
    )


def _wrong_with(raw: bytes, plan: ExperimentPlan, finding: Finding) -> Doubt | None:
    """Compare what the lab wrote with what it said, and with its own numbers, before signing."""
    if len(raw) > _MAX_BYTES:
        return Doubt(fault=EvidenceFault.UNREADABLE, detail=f"{len(raw)} bytes are too many")
    if f"sha256:{hashlib.sha256(raw).hexdigest()}" != finding.verdict.evidence:
        detail = "its bytes are others than the lab has named"
        return Doubt(fault=EvidenceFault.ALTERED, detail=detail)
    try:
        document = EvidenceDocument.model_validate_json(raw)
    except ValidationError as error:
        return Doubt(
            fault=EvidenceFault.UNREADABLE, detail=f"it has {error.error_count()} problems"
        )
    verdict = finding.verdict
    wrong = wrong_with_plan(document, plan)
    if (document.verdict.status, document.verdict.reason) != (verdict.status, verdict.reason):
        wrong = f"it says {document.verdict.reason}, the lab said {verdict.reason}"
    wrong = wrong or wrong_with_raw(document)
    if wrong is not None:
        return Doubt(fault=EvidenceFault.CONTRADICTED, detail=wrong)
    doubt = doubt_of(document, _claim(plan, finding))
    if doubt is None or verdict.status is Status.PROMOTE:
        return doubt
    # a rejection promotes nothing, so only what it is about and its own sense must hold
    return contradiction_in(document) if doubt.fault is EvidenceFault.CONTRADICTED else doubt

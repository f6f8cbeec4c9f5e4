"""May evidence be signed that a lab has written? Compared with what the lab said, and with itself.

The lab runs strangers' code, so nothing that it says of its numbers is signed before the bounds
were computed again from the raw pairs. Pure.
"""

from __future__ import annotations

import hashlib

from pydantic import ValidationError

from retuned.contract import Digest
from retuned.lab.recomputing import wrong_with_plan, wrong_with_raw
from retuned.ports import Finding
from retuned.stages.experiment import ExperimentPlan
from retuned.stages.verdict import (
    Claim,
    Doubt,
    EvidenceDocument,
    EvidenceFault,
    Status,
    contradiction_in,
    doubt_of,
)

MAX_BYTES = 32 << 20
"""Longest document that is signed; an envelope around it still can be read."""


def claim_of(plan: ExperimentPlan, found: Finding, *, environment: Digest) -> Claim:
    """Return what a finding says.

    Parameters
    ----------
    environment
        Where it was measured.
    """
    return Claim(
        candidate=found.solution.digest,
        incumbent=plan.incumbent,
        plan=plan.id,
        environment=environment,
        guard=found.verdict.guard,
        speedup=found.verdict.speedup,
        trust=found.solution.trust,
    )


def wrong_with(
    raw: bytes, plan: ExperimentPlan, finding: Finding, *, environment: Digest | None
) -> Doubt | None:
    """Say why a document is not signed; None if nothing speaks against it.

    Parameters
    ----------
    raw
        The document, as the lab wrote it.
    plan
        What the lab was asked.
    finding
        What the lab said.
    environment
        Where it must have been measured; None takes the document's word, for who compares it with
        the servers by other means.
    """
    if len(raw) > MAX_BYTES:
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
    place = environment or document.environment.digest
    doubt = doubt_of(document, claim_of(plan, finding, environment=place))
    if doubt is None or verdict.status is Status.PROMOTE:
        return doubt
    # a rejection promotes nothing, so only what it is about and its own sense must hold
    return contradiction_in(document) if doubt.fault is EvidenceFault.CONTRADICTED else doubt

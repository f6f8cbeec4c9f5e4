"""What rows are made from beside the experiments, and whether evidence carries a finding. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from retuned.contract import Definition, Digest, Solution, SourceFile
from retuned.ports import Finding
from retuned.stages.verdict import (
    Claim,
    EvidenceDocument,
    EvidenceFault,
    Status,
    contradiction_in,
    doubt_of,
)
from retuned_bench.dataset.text import Redact
from retuned_bench.dataset.trials import Trial

VERIFIED = "verified"
UNKNOWN_LICENSE = "unknown"
CATALOG_LICENSE = "Apache-2.0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Knowledge:
    """What rows are made from beside the experiments."""

    definition: Callable[[str], Definition | None]
    """Finds a definition by name; None where nobody knows it any more."""
    incumbent: Callable[[str, Digest], Solution | None]
    """Finds the variant of a definition with a digest."""
    evidence: Callable[[Digest | None], tuple[EvidenceDocument | None, str]]
    """Opens signed evidence: the document, and the code of what is wrong with it or nothing."""
    shipped: Callable[[SourceFile], bool]
    """Whether a source file is the catalog's, byte for byte."""
    own: Callable[[str], bool]
    """Whether a definition is a user's."""
    redact: Redact
    """Takes out what must not leave."""
    license: str = UNKNOWN_LICENSE
    """SPDX expression of all that is not the catalog's."""


def fault_of(trial: Trial, finding: Finding, document: EvidenceDocument | None) -> str:
    """Compare a finding with its evidence; empty where the one follows from the other."""
    if document is None:
        return str(EvidenceFault.MISSING)
    plan, verdict, solution = trial.plan, finding.verdict, finding.solution
    claim = Claim(
        candidate=solution.digest,
        incumbent=plan.incumbent,
        plan=plan.id,
        environment=plan.environment,
        guard=verdict.guard,
        speedup=verdict.speedup,
        trust=solution.trust,
    )
    doubt = doubt_of(document, claim)
    if doubt is not None and doubt.fault is not EvidenceFault.CONTRADICTED:
        return str(doubt.fault)
    said = (document.verdict.status, document.verdict.reason, document.verdict.speedup)
    if said != (verdict.status, verdict.reason, verdict.speedup):
        return str(EvidenceFault.CONTRADICTED)
    if verdict.status is not Status.PROMOTE:  # a rejection promotes nothing: its own sense counts
        doubt = contradiction_in(document)
    return str(doubt.fault) if doubt is not None else ""

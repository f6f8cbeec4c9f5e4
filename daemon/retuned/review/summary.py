"""How sure a win is, in words: what each gate of the judge asked, and how it was measured. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from retuned import text
from retuned.review.records import ProposalDetails
from retuned.stages.verdict import Check, EvidenceDocument, Status

GATES = {
    "G0": "frozen before anything tried it",
    "G1": "only what a candidate may contain",
    "G2": "compiles, and the binary holds nothing else",
    "G3": "stays within its memory",
    "G4": "computes the right thing",
    "G5": "faster in the search",
    "G6": "faster again, measured from zero on fresh inputs",
}
"""What each gate asks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GateView:
    """One gate of the judge."""

    gate: str
    """Such as ``G4``."""
    asks: str
    """What it asks."""
    passed: bool
    """Whether it was passed."""
    detail: str
    """The numbers."""


def gates_of(document: EvidenceDocument) -> Iterator[GateView]:
    """Yield what was asked of a candidate, in order."""
    for check in document.evidence.checks:
        yield GateView(
            gate=check.gate,
            asks=GATES.get(check.gate, ""),
            passed=check.reason is None,
            detail=_detail(check),
        )


def _detail(check: Check) -> str:
    parts = [] if check.reason is None else [check.reason.value]
    parts += [check.detail] if check.detail else []
    if check.error_ratio is not None:
        parts.append(f"error {check.error_ratio:.3g} of the incumbent's")
    return "; ".join(parts)


def sure_of(case: ProposalDetails) -> Iterator[tuple[str, str]]:
    """Yield how sure the numbers of a case are, and where they hold."""
    document, doubt = case.document, case.doubt
    if doubt is not None:
        yield "evidence", f"NOT VERIFIED, it will not be swapped: {doubt.detail} ({doubt.fault})"
    elif document is not None:
        yield "evidence", "signed and whole"
    if case.beside:
        yield "beside it", f"{case.beside} (what may have changed the numbers; it decides nothing)"
    if document is None:
        return
    verdict, timing = document.verdict, document.evidence.timing
    if verdict.error_ratio is not None:
        yield (
            "numerics",
            f"largest error against float64 is {verdict.error_ratio:.3g} of the incumbent's own",
        )
    if verdict.noise_floor_ratio is not None:
        yield (
            "noise floor",
            f"two identical copies differed by {verdict.noise_floor_ratio:.3f}x in the same run",
        )
    if timing is not None:
        yield (
            "measured",
            f"{timing.pairs} pairs or more a shape in {timing.blocks} blocks and "
            f"{text.plural(timing.processes, 'fresh process')}",
        )
    tried = text.plural(document.tried, "candidate")
    yield "luck", f"best of {tried}, p-values over {text.plural(document.finalists, 'finalist')}"
    if verdict.status is not Status.PROMOTE:
        yield "verdict", f"{verdict.status}: {verdict.reason}"
    environment = document.environment
    facts = (environment.arch, environment.driver, environment.runtime, environment.compiler)
    torch = f"torch {environment.torch}" if environment.torch else ""
    yield "measured on", "; ".join(filter(None, (*facts, torch)))
    for sentence in document.isolation.missing:
        yield "missing", sentence

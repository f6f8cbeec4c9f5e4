"""Rules of a data set: which evidence counts, what an attempt is worth, which split it is in.

Pure. A reward is one number per attempt, in the lab's order: a candidate that cheats is worst, then
one that does not run, one with wrong results, a slower one, one that is not surely faster (0), and
a surely faster one. Only the lower confidence bound of a re-measured winner is rewarded, so that a
lucky search earns nothing.

Kernels that share sources or ideas are one kin, and a kin is in one split as a whole: a model that
has seen how rmsnorm is made faster knows half of layernorm. The split of a kin depends only on its
name and the seed, so it does not change when a data set grows.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass

from retuned.contract import Definition, Digest, Solution, SourceFile
from retuned.ports import Finding
from retuned.stages.verdict import (
    Claim,
    EvidenceDocument,
    EvidenceFault,
    Reason,
    Status,
    Verdict,
    contradiction_in,
    doubt_of,
)
from retuned_bench.dataset.options import SEED, UNKNOWN_LICENSE
from retuned_bench.dataset.records import Split
from retuned_bench.dataset.text import Redact
from retuned_bench.dataset.trials import EndedExperiment

VERIFIED = "verified"
CATALOG_LICENSE = "Apache-2.0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Knowledge:
    """What rows are made from beside the experiments."""

    definition: Callable[[str], Definition | None]
    """Finds a definition by name; None if it does not exist any more."""
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


def fault_of(trial: EndedExperiment, finding: Finding, document: EvidenceDocument | None) -> str:
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


DISHONEST = -1.0
BROKEN = -0.8
WRONG = -0.6
SLOWEST = -0.4
"""A correct kernel is never worth less, however slow."""
BEST = 3.0
"""Eight times as fast and more."""

_DISHONEST = frozenset(
    {
        Reason.BINARY_AUDIT,
        Reason.INPUT_MODIFIED,
        Reason.TIMED_OUTPUT_WRONG,
        Reason.IMPOSSIBLY_FAST,
    }
)
_BROKEN = frozenset(
    {
        Reason.CONTRACT,
        Reason.COMPILE_FAILED,
        Reason.CRASHED,
        Reason.TIMED_OUT,
        Reason.OUT_OF_MEMORY,
        Reason.OVER_LIMIT,
        Reason.OUT_OF_BOUNDS,
    }
)
_WRONG = frozenset(
    {
        Reason.OUTPUT_NOT_WRITTEN,
        Reason.NONDETERMINISTIC,
        Reason.WRONG_OUTPUT,
        Reason.NAN_MISMATCH,
        Reason.ROW_DEPENDENT,
    }
)
_UNKNOWN = frozenset({Reason.HARNESS_FAILED, Reason.TOO_FEW_SAMPLES, Reason.CLOCKS_DISAGREE})

REWARD_DEFINITION = {
    "cheats": f"{DISHONEST}: " + ", ".join(sorted(_DISHONEST)),
    "does not run": f"{BROKEN}: " + ", ".join(sorted(_BROKEN)),
    "computes something else": f"{WRONG}: " + ", ".join(sorted(_WRONG)),
    "correct, not promoted": f"log2(speedup.point), at least {SLOWEST} and at most 0; 0 untimed",
    "promoted": f"log2(speedup.lower), at most {BEST}",
    "null": "evidence that is not verified, and " + ", ".join(sorted(_UNKNOWN)),
}
"""The definition, for people; it is written into every manifest."""


def reward_of(verdict: Verdict) -> float | None:
    """Return what an attempt is worth; None where the verdict says nothing about the candidate.

    Examples
    --------
    >>> digests = {"candidate": "sha256:" + "a" * 64, "incumbent": "sha256:" + "b" * 64}
    >>> reward_of(Verdict(status="reject", reason="crashed", gate="G3", **digests))
    -0.8
    >>> reward_of(Verdict(status="ambiguous", reason="harness-failed", gate="G3", **digests))
    """
    if verdict.reason in _UNKNOWN:
        return None
    for reasons, worth in ((_DISHONEST, DISHONEST), (_BROKEN, BROKEN), (_WRONG, WRONG)):
        if verdict.reason in reasons:
            return worth
    speedup = verdict.speedup
    if speedup is None:
        return 0.0
    if verdict.status is Status.PROMOTE:
        return round(min(BEST, math.log2(speedup.lower)), 6)
    # the sum turns a negative zero into a plain one
    return round(max(SLOWEST, min(0.0, math.log2(speedup.point))), 6) + 0.0


_KINS = {
    "matrix": ("linear", "gemm", "moe_gemm", "matmul"),
    "norms": ("rmsnorm", "add_rmsnorm", "layernorm"),
    "gated": ("silu_mul", "gelu_mul"),
    "attention": ("attention", "paged_attention"),
    "quant": ("quant",),
    "softmax": ("softmax", "topk_gating"),
    "rope": ("rope",),
}
_TRAIN, _VALIDATION = 0.7, 0.85


def kin_of(op_type: str) -> str:
    """Return the kin of an operator; one that is not the catalog's is its own.

    Examples
    --------
    >>> kin_of("linear_w8_bf16"), kin_of("moe_gemm_bf16"), kin_of("scale_bias")
    ('matrix', 'matrix', 'scale_bias')
    """
    name = op_type.lower()
    for kin, stems in _KINS.items():
        if any(name == stem or name.startswith(f"{stem}_") for stem in stems):
            return kin
    return name


def split_of(kin: str, *, seed: str = SEED) -> Split:
    """Return the split of a kin: 70 % train, 15 % validation, 15 % test of many kins.

    Examples
    --------
    >>> split_of("matrix") is split_of("matrix")
    True
    """
    number = hashlib.sha256(f"{seed}\0{kin}".encode()).digest()
    place = int.from_bytes(number[:8], "big") / 2**64
    if place < _TRAIN:
        return Split.TRAIN
    return Split.VALIDATION if place < _VALIDATION else Split.TEST

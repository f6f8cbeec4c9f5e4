"""Stage 6, verdict: correctness and speed of a candidate, as status, reason code and numbers.

Ambiguous is a valid result, and missing evidence never promotes. Pure.
"""

from retuned.stages.verdict.documents import (
    Claim,
    Doubt,
    EvidenceDocument,
    EvidenceFault,
    Freeze,
    Isolation,
    RawSamples,
    RawTiming,
    SeedCommitment,
    SignedEvidence,
    contradiction_in,
    doubt_of,
    freeze_of,
    raw_digest,
)
from retuned.stages.verdict.environments import (
    Difference,
    ServerEnvironment,
    differences,
    server_side,
)
from retuned.stages.verdict.guards import groups_of, guard_for
from retuned.stages.verdict.judge import is_settled, judge, rank
from retuned.stages.verdict.records import (
    Check,
    Evidence,
    GroupTiming,
    IncumbentNoise,
    Interval,
    JudgeSettings,
    Reason,
    ShapeResult,
    Status,
    Timing,
    Verdict,
)

__all__ = [
    "Check",
    "Claim",
    "Difference",
    "Doubt",
    "Evidence",
    "EvidenceDocument",
    "EvidenceFault",
    "Freeze",
    "GroupTiming",
    "IncumbentNoise",
    "Interval",
    "Isolation",
    "JudgeSettings",
    "RawSamples",
    "RawTiming",
    "Reason",
    "SeedCommitment",
    "ServerEnvironment",
    "ShapeResult",
    "SignedEvidence",
    "Status",
    "Timing",
    "Verdict",
    "contradiction_in",
    "differences",
    "doubt_of",
    "freeze_of",
    "groups_of",
    "guard_for",
    "is_settled",
    "judge",
    "rank",
    "raw_digest",
    "server_side",
]

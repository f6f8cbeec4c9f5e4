"""Stage 6, verdict: correct? faster? Status, stable reason code and numbers.

Ambiguity is an answer, and missing evidence never promotes. Pure.
"""

from retuned.stages.verdict.guards import groups_of, guard_for
from retuned.stages.verdict.judging import judge, rank
from retuned.stages.verdict.records import (
    Check,
    Evidence,
    GroupTiming,
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
    "Evidence",
    "GroupTiming",
    "Interval",
    "JudgeSettings",
    "Reason",
    "ShapeResult",
    "Status",
    "Timing",
    "Verdict",
    "groups_of",
    "guard_for",
    "judge",
    "rank",
]

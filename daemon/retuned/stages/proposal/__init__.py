"""Stage 7, proposal: whether a validated win is worth a swap, and the table that it puts in force.

``propose`` turns a verdict into a proposal or a refusal, and decides when an expired win is
proposed again. ``lessons`` refuses what a live proof did not confirm. ``tables`` makes the text of
a table from a win on a tunable. Pure.
"""

from retuned.stages.proposal.lessons import (
    Lesson,
    LessonKind,
    ServerKey,
    SwapClaim,
    holds_against,
    lesson_against,
)
from retuned.stages.proposal.propose import (
    AgainLimits,
    Proposal,
    ProposalLimits,
    Refusal,
    RefusalReason,
    Risk,
    covered_share,
    proposal_id,
    propose,
    propose_again,
    saving_of,
    share_in,
)
from retuned.stages.proposal.tables import (
    TUNABLE,
    Launched,
    LaunchedClass,
    TableText,
    is_tunable,
    proves,
    read_table,
    rollback_text,
    rules_in,
    rules_of,
    table_of,
    variant_of,
    verified,
)

__all__ = [
    "TUNABLE",
    "AgainLimits",
    "Launched",
    "LaunchedClass",
    "Lesson",
    "LessonKind",
    "Proposal",
    "ProposalLimits",
    "Refusal",
    "RefusalReason",
    "Risk",
    "ServerKey",
    "SwapClaim",
    "TableText",
    "covered_share",
    "holds_against",
    "is_tunable",
    "lesson_against",
    "proposal_id",
    "propose",
    "propose_again",
    "proves",
    "read_table",
    "rollback_text",
    "rules_in",
    "rules_of",
    "saving_of",
    "share_in",
    "table_of",
    "variant_of",
    "verified",
]

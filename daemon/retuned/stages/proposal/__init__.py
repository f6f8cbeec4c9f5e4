"""Stage 7, proposal: whether a validated win is worth a swap, and the table that it puts in force.

``propose`` turns a verdict into a proposal or a refusal, and decides when an expired win is
proposed again. ``tables`` makes the text of a table from a win on a tunable. Pure.
"""

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
    "Proposal",
    "ProposalLimits",
    "Refusal",
    "RefusalReason",
    "Risk",
    "TableText",
    "covered_share",
    "is_tunable",
    "proposal_id",
    "propose",
    "propose_again",
    "proves",
    "read_table",
    "rollback_text",
    "rules_in",
    "rules_of",
    "table_of",
    "variant_of",
    "verified",
]

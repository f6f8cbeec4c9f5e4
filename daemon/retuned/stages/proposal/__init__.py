"""Stage 7, proposal: is the validated win worth a swap, at which risk, for which shapes? Pure.

``records``: what a proposal is, and why there may be none. ``proposing``: the decision.
"""

from retuned.stages.proposal.proposing import covered_share, proposal_id, propose
from retuned.stages.proposal.records import (
    Proposal,
    ProposalLimits,
    Refusal,
    RefusalReason,
    Risk,
)

__all__ = [
    "Proposal",
    "ProposalLimits",
    "Refusal",
    "RefusalReason",
    "Risk",
    "covered_share",
    "proposal_id",
    "propose",
]

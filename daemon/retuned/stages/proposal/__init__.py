"""Stage 7, proposal: is the validated win worth a swap, at which risk, for which shapes? Pure.

``records``: what a proposal is, and why there may be none. ``proposing``: the decision. ``again``:
when one that expired is made anew.
"""

from retuned.stages.proposal.again import AgainLimits, propose_again
from retuned.stages.proposal.proposing import covered_share, proposal_id, propose
from retuned.stages.proposal.records import (
    Proposal,
    ProposalLimits,
    Refusal,
    RefusalReason,
    Risk,
)

__all__ = [
    "AgainLimits",
    "Proposal",
    "ProposalLimits",
    "Refusal",
    "RefusalReason",
    "Risk",
    "covered_share",
    "proposal_id",
    "propose",
    "propose_again",
]

"""Stage 9, swap: the orders that load artifacts, their sequence, and rollbacks.

`orders` has the orders and selects those still to be delivered. `ranks` decides over the processes
of one server: all of them commit an order, or none does.
"""

from __future__ import annotations

from retuned.stages.swap.orders import (
    CanaryStep,
    SlotFacts,
    Spread,
    SwapKind,
    SwapOrder,
    is_carried_out,
    is_overtaken,
    next_epoch,
    order_rollback,
    order_swap,
    reconcile,
    reissue,
    spread_by,
    to_original,
    unopened,
)
from retuned.stages.swap.ranks import (
    NOT_YET,
    Decision,
    MixedEpochs,
    Outcome,
    Phase,
    PhaseReason,
    Rank,
    RankState,
    decide,
    must_go_back,
    outcome_of,
)

__all__ = [
    "NOT_YET",
    "CanaryStep",
    "Decision",
    "MixedEpochs",
    "Outcome",
    "Phase",
    "PhaseReason",
    "Rank",
    "RankState",
    "SlotFacts",
    "Spread",
    "SwapKind",
    "SwapOrder",
    "decide",
    "is_carried_out",
    "is_overtaken",
    "must_go_back",
    "next_epoch",
    "order_rollback",
    "order_swap",
    "outcome_of",
    "reconcile",
    "reissue",
    "spread_by",
    "to_original",
    "unopened",
]

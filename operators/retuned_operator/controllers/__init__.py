"""Controllers: what is seen, through the pure state machines, to what is written.

``reading``, ``swaps`` and ``trials`` gather facts, ``telling`` makes conditions and Events,
``acting`` writes; one module a kind connects them. No decision is made here: gate, rollout,
analysis, rollback and quarantine are ``retuned.control`` over the stages, and ``ports``
is what the outside must offer.
"""

from retuned_operator.controllers.cluster_view import ClusterView
from retuned_operator.controllers.experiment import Experiments
from retuned_operator.controllers.hypothesis import HypothesisController
from retuned_operator.controllers.policy import Policies
from retuned_operator.controllers.proposal import Proposals
from retuned_operator.controllers.statements import Decisions, Freezes
from retuned_operator.controllers.target import Targets
from retuned_operator.controllers.writer import ClusterWriter

__all__ = [
    "ClusterView",
    "ClusterWriter",
    "Decisions",
    "Experiments",
    "Freezes",
    "HypothesisController",
    "Policies",
    "Proposals",
    "Targets",
]

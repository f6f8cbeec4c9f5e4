"""Controllers: what is seen, through the pure state machines, to what is written.

``reading``, ``swaps`` and ``trials`` gather facts, ``telling`` makes conditions and Events,
``acting`` writes; one module a kind connects them. No decision is made here: gate, rollout,
analysis, rollback and quarantine are ``retuned_operator.machine`` over the stages, and ``ports``
is what the outside must offer.
"""

from retuned_operator.controllers.acting import ClusterWriter
from retuned_operator.controllers.beliefs import HypothesisController
from retuned_operator.controllers.experiments import Experiments
from retuned_operator.controllers.policies import Policies
from retuned_operator.controllers.proposals import Proposals
from retuned_operator.controllers.swaps import ClusterView
from retuned_operator.controllers.targets import Targets
from retuned_operator.controllers.words import Decisions, Freezes

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

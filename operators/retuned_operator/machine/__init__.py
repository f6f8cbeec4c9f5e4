"""The state machines of experiments and proposals, pure: facts and a time in, what to do out.

Every decision about a policy, an approval, a window or an order is a stage's. ``proposals.step``
and ``experiments.step`` are all that a controller calls; ``orders.order_for`` is what the agent API
hands to a sidecar; ``records`` are what goes in and out.
"""

from retuned_operator.machine import experiments, proposals
from retuned_operator.machine.orders import order_for
from retuned_operator.machine.records import (
    Activate,
    CreateJob,
    Deactivate,
    DeleteJob,
    ExperimentFacts,
    ExperimentStep,
    JobFact,
    JobState,
    PageOnCall,
    PodFact,
    PolicyFact,
    Propose,
    Quarantine,
    ResultFact,
    RolloutFacts,
    RolloutStep,
    SetSuspend,
)

__all__ = [
    "Activate",
    "CreateJob",
    "Deactivate",
    "DeleteJob",
    "ExperimentFacts",
    "ExperimentStep",
    "JobFact",
    "JobState",
    "PageOnCall",
    "PodFact",
    "PolicyFact",
    "Propose",
    "Quarantine",
    "ResultFact",
    "RolloutFacts",
    "RolloutStep",
    "SetSuspend",
    "experiments",
    "order_for",
    "proposals",
]

"""The state machines of experiments and proposals, pure: facts and a time in, what to do out.

Every decision about a policy, an approval, a window or an order is a stage's. ``proposals.step``
and ``experiments.step`` are all that a controller calls; ``orders.order_for`` is what the agent API
hands to a sidecar; ``records`` are what goes in and out.
"""

from retuned.control import experiment, proposal
from retuned.control.facts import (
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
from retuned.control.orders import order_for

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
    "experiment",
    "order_for",
    "proposal",
]

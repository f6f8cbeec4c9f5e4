"""State machines of experiments and proposals. Pure: facts and a time in, status and actions out.

A stage makes every decision about a policy, an approval, a window or an order. Controllers call
only ``proposal.step`` and ``experiment.step``. The agent API sends the orders of
``orders.order_for`` to a sidecar. ``facts`` defines inputs and outputs.
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
    MeasuredFact,
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
    "MeasuredFact",
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

"""Custom resources of retuned.dev/v1alpha1: models, schemas, rules. Pure.

``values`` is what they share; one module per kind; ``objects`` reads and writes objects of the API
server; ``schema`` turns models into structural schemas, ``rules`` are their CEL, ``definitions``
the CRDs. ``python -m retuned_operator.schema`` prints or writes them.
"""

from retuned.api.decision import (
    FreezeScope,
    SwapDecision,
    SwapDecisionSpec,
    TuningFreeze,
    TuningFreezeSpec,
)
from retuned.api.experiment import (
    ExperimentPhase,
    JobRef,
    JobRole,
    KernelExperiment,
    KernelExperimentSpec,
    KernelExperimentStatus,
    experiment_spec,
)
from retuned.api.policy import PolicyObject, PolicyStatus
from retuned.api.proposal import (
    ProposalPhase,
    SwapProposal,
    SwapProposalSpec,
    SwapProposalStatus,
    proposal_spec,
)
from retuned.api.target import TuningTarget, TuningTargetSpec, TuningTargetStatus
from retuned.api.values import (
    API_VERSION,
    GROUP,
    VERSION,
    Condition,
    ConditionStatus,
    ObjectMeta,
    PolicyRef,
)
from retuned_operator.schema.crds import KINDS, CustomResource, definition_of, schema_of
from retuned_operator.schema.objects import read, write

__all__ = [
    "API_VERSION",
    "GROUP",
    "KINDS",
    "VERSION",
    "Condition",
    "ConditionStatus",
    "CustomResource",
    "ExperimentPhase",
    "FreezeScope",
    "JobRef",
    "JobRole",
    "KernelExperiment",
    "KernelExperimentSpec",
    "KernelExperimentStatus",
    "ObjectMeta",
    "PolicyObject",
    "PolicyRef",
    "PolicyStatus",
    "ProposalPhase",
    "SwapDecision",
    "SwapDecisionSpec",
    "SwapProposal",
    "SwapProposalSpec",
    "SwapProposalStatus",
    "TuningFreeze",
    "TuningFreezeSpec",
    "TuningTarget",
    "TuningTargetSpec",
    "TuningTargetStatus",
    "definition_of",
    "experiment_spec",
    "proposal_spec",
    "read",
    "schema_of",
    "write",
]

"""Custom resources of retuned.dev/v1alpha1: models, schemas, rules. Pure.

``values`` is what they share; one module per kind; ``objects`` reads and writes objects of the API
server; ``schema`` turns models into structural schemas, ``rules`` are their CEL, ``definitions``
the CRDs. ``python -m retuned_operator.crds`` prints or writes them.
"""

from retuned_operator.crds.decision import (
    FreezeScope,
    SwapDecision,
    SwapDecisionSpec,
    TuningFreeze,
    TuningFreezeSpec,
)
from retuned_operator.crds.definitions import KINDS, CustomResource, definition_of, schema_of
from retuned_operator.crds.experiment import KernelExperiment, KernelExperimentSpec, experiment_spec
from retuned_operator.crds.experiment_status import (
    ExperimentPhase,
    JobRef,
    JobRole,
    KernelExperimentStatus,
)
from retuned_operator.crds.objects import read, write
from retuned_operator.crds.policy import PolicyObject, PolicyStatus
from retuned_operator.crds.proposal import SwapProposal, SwapProposalSpec, proposal_spec
from retuned_operator.crds.proposal_status import ProposalPhase, SwapProposalStatus
from retuned_operator.crds.target import TuningTarget, TuningTargetSpec, TuningTargetStatus
from retuned_operator.crds.values import (
    API_VERSION,
    GROUP,
    VERSION,
    Condition,
    ConditionStatus,
    ObjectMeta,
    PolicyRef,
)

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

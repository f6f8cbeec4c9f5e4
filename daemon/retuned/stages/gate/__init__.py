"""Stage 8, gate: whether a proposal waits or is approved, rejected, expired or frozen. Pure.

It reads proposals, policies, people's decisions and freezes, and feeds swap. `policy` and `limits`
are the schema of ``KernelTuningPolicy``; `windows` has the maintenance windows; `records` has
decisions and gate decisions; `quorum` and `decide` make the gate decision.
"""

from retuned.stages.gate.decide import decide, explain, under, utc_minute, windows_of
from retuned.stages.gate.enforcement import (
    CLUSTER_ONLY,
    ClusterOnlyField,
    PolicyLimits,
    cluster_only_fields,
    limits_of,
)
from retuned.stages.gate.limits import (
    BatchInvariance,
    Capture,
    EndToEndRule,
    Experiments,
    LiveProof,
    LiveProofMode,
    NotSwitchable,
    Rollout,
    ServiceLevels,
    Unproven,
    Validation,
)
from retuned.stages.gate.policy import (
    Approvals,
    Approver,
    BreakGlass,
    Gate,
    GateCondition,
    KernelTuningPolicy,
    Metadata,
    Mode,
    PolicySpec,
)
from retuned.stages.gate.quorum import is_program, person
from retuned.stages.gate.records import (
    DecisionKind,
    FreezeScope,
    GateDecision,
    GateReason,
    GateState,
    Ignored,
    IgnoredReason,
    StopPolicy,
    SwapDecision,
    TuningFreeze,
)
from retuned.stages.gate.select import GPU_MODEL_LABEL, PolicyChoice, policy_for, select_policy
from retuned.stages.gate.windows import (
    Overrun,
    ProofWindow,
    Window,
    WindowKind,
    WindowState,
    judge_windows,
    may_finish,
)

__all__ = [
    "CLUSTER_ONLY",
    "GPU_MODEL_LABEL",
    "Approvals",
    "Approver",
    "BatchInvariance",
    "BreakGlass",
    "Capture",
    "ClusterOnlyField",
    "DecisionKind",
    "EndToEndRule",
    "Experiments",
    "FreezeScope",
    "Gate",
    "GateCondition",
    "GateDecision",
    "GateReason",
    "GateState",
    "Ignored",
    "IgnoredReason",
    "KernelTuningPolicy",
    "LiveProof",
    "LiveProofMode",
    "Metadata",
    "Mode",
    "NotSwitchable",
    "Overrun",
    "PolicyChoice",
    "PolicyLimits",
    "PolicySpec",
    "ProofWindow",
    "Rollout",
    "ServiceLevels",
    "StopPolicy",
    "SwapDecision",
    "TuningFreeze",
    "Unproven",
    "Validation",
    "Window",
    "WindowKind",
    "WindowState",
    "cluster_only_fields",
    "decide",
    "explain",
    "is_program",
    "judge_windows",
    "limits_of",
    "may_finish",
    "person",
    "policy_for",
    "select_policy",
    "under",
    "utc_minute",
    "windows_of",
]

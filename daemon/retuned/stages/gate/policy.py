"""KernelTuningPolicy: permitted experiments, required evidence and approvals, times of swaps.

The same file means the same on one machine and in a cluster; `enforcement.CLUSTER_ONLY` lists the
few fields that need a cluster.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field, model_validator

from retuned.contract import Digest, digest_of
from retuned.stages.gate.limits import (
    Capture,
    Experiments,
    LiveProof,
    Pauses,
    Rollout,
    Validation,
)
from retuned.stages.gate.values import (
    DNS,
    Glob,
    Label,
    PolicyModel,
    PositiveDuration,
    parse_duration,
)
from retuned.stages.gate.windows import Window
from retuned.stages.proposal import Risk


class Mode(StrEnum):
    """How far Retuned may go."""

    ENFORCE = "Enforce"
    """Swaps happen once the gate approves."""
    DRY_RUN = "DryRun"
    """Proposals are judged but never swapped."""
    OBSERVE_ONLY = "ObserveOnly"
    """Kernels are only measured and reported."""


class Metadata(PolicyModel):
    """Name of the policy, as in Kubernetes."""

    name: str = Field(pattern=DNS)
    """Name, unique in its namespace."""
    namespace: str = Field(default="default", pattern=DNS)
    """Namespace; has no meaning on one machine."""
    labels: dict[Label, str] = Field(default_factory=dict)
    """Free labels."""
    annotations: dict[Label, str] = Field(default_factory=dict)
    """Free notes."""


class Selector(PolicyModel):
    """The servers that the policy applies to."""

    match_labels: dict[Label, str] = Field(default_factory=dict)
    """Labels that the target must have; empty matches every target."""


class Kernels(PolicyModel):
    """The kernels that the policy applies to."""

    include: tuple[Glob, ...] = Field(default=("*",), min_length=1)
    """Patterns, at least one of which must match."""
    exclude: tuple[Glob, ...] = ()
    """Patterns, none of which may match; wins over `include`."""


class Approver(PolicyModel):
    """A group or one user that may approve."""

    group: Label | None = None
    """Name of a group."""
    user: Label | None = None
    """Name of a user."""

    @model_validator(mode="after")
    def _one(self) -> Approver:
        if (self.group is None) == (self.user is None):
            raise ValueError("name either a group or a user")
        return self

    def __str__(self) -> str:
        return f"group {self.group}" if self.group else f"user {self.user}"


class Approvals(PolicyModel):
    """The approvals that a gate requires."""

    required: int = Field(ge=0, le=16)
    """Distinct people.

    With 0 a proposal passes without a person, except generated source and high risk."""
    from_: tuple[Approver, ...] = Field(
        default=(), validation_alias="from", serialization_alias="from"
    )
    """Who may approve; empty allows every user."""
    distinct_groups: bool = False
    """Each approval must come from another entry of `from`."""
    exclude_requester: bool = True
    """Whether the requester of the swap may not approve it."""
    allow_service_accounts: bool = False
    """Whether service accounts may approve."""
    ttl: PositiveDuration = Field(default=parse_duration("24h"))
    """How long a proposal waits; after that it is expired, never approved."""
    require_comment: bool = False
    """Whether an approval without a comment does not count."""

    @model_validator(mode="after")
    def _reachable(self) -> Approvals:
        users = {entry.user for entry in self.from_ if entry.user}
        only_users = bool(self.from_) and len(users) == len(self.from_)
        entries = len({str(entry) for entry in self.from_})
        short = (self.distinct_groups and entries < self.required) or (
            only_users and len(users) < self.required
        )
        if short:
            raise ValueError(f"{self.required} approvals are impossible with this 'from'")
        return self


class GateCondition(PolicyModel):
    """The proposals that a gate applies to; an omitted field matches everything."""

    risk: Annotated[tuple[Risk, ...], Field(min_length=1)] | None = None
    """Risk classes."""
    env: Annotated[tuple[Label, ...], Field(min_length=1)] | None = None
    """Environments, such as ``prod``."""


class Gate(PolicyModel):
    """Approval rules; the first gate whose `when` matches decides."""

    name: str = Field(pattern=DNS)
    """Name of the gate."""
    when: GateCondition = GateCondition()
    """The proposals that it applies to."""
    approvals: Approvals
    """The approvals that it requires."""


class BreakGlass(PolicyModel):
    """One leader's decision instead of the quorum and of allow windows, never of a freeze."""

    enabled: bool = False
    """Whether break-glass is allowed."""
    group: Label | None = None
    """Group whose members may use it."""
    require_comment: bool = True
    """Whether it needs a comment to count."""
    max_pods: int = Field(default=1, ge=1)
    """Servers that it may swap."""

    @model_validator(mode="after")
    def _has_group(self) -> BreakGlass:
        if self.enabled and self.group is None:
            raise ValueError("an enabled breakGlass names a group")
        return self


class PolicySpec(PolicyModel):
    """Rules of the policy."""

    priority: int = Field(default=0, ge=-1_000_000, le=1_000_000)
    """The matching policy with the highest priority decides.

    If two have the same priority, nothing is swapped."""
    mode: Mode
    """How far Retuned may go."""
    selector: Selector = Selector()
    """Servers that the policy applies to."""
    kernels: Kernels = Kernels()
    """Kernels that the policy applies to."""
    gpu_models: tuple[Label, ...] = ()
    """Accelerators that the policy applies to; empty matches every one."""
    experiments: Experiments = Experiments()
    """Limits of experiments."""
    validation: Validation = Validation()
    """The floor that no approval overrides."""
    capture: Capture = Capture()
    """Samples of the server's inputs."""
    pauses: Pauses = Pauses()
    """When the server may be paused."""
    gates: tuple[Gate, ...] = ()
    """Approval rules; the first match decides. If none matches, nothing passes."""
    rollout: Rollout = Rollout()
    """How a swap spreads over servers."""
    live_proof: LiveProof = LiveProof()
    """Whether a swap must be proven on live traffic."""
    windows: tuple[Window, ...] = Field(default=(), max_length=64)
    """When swaps may start."""
    break_glass: BreakGlass = BreakGlass()
    """Emergency approval."""

    @model_validator(mode="after")
    def _gate_names_differ(self) -> PolicySpec:
        names = [gate.name for gate in self.gates]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"two gates have the name {', '.join(twice)}")
        return self


_ADDED = (
    "capture",
    "liveProof",
    "liveProof.canaryLeaveOut",
    "liveProof.canaryPairs",
    "liveProof.canaryWindow",
    "liveProof.ownOverhead",
    "liveProof.sentinel",
    "liveProof.slo",
    "liveProof.switching",
    "liveProof.whenNotSwitchable",
    "liveProof.windows",
    "pauses",
    "pauses.recaptureAfter",
    "rollout.canary.lease",
    "rollout.canary.orphan",
    "rollout.canary.shadowFirst",
    "rollout.canary.steps",
    "rollout.shadow",
    "validation.batchInvariance",
    "validation.endToEnd",
)
"""Fields added after the first approvals of policies. Every later field must be added here."""
_USUAL = {
    name: section.model_dump(mode="json", by_alias=True)
    for name, section in (
        ("capture", Capture()),
        ("liveProof", LiveProof()),
        ("pauses", Pauses()),
        ("rollout", Rollout()),
        ("validation", Validation()),
    )
}


class KernelTuningPolicy(PolicyModel):
    """Rules for experiments, validation, approval and rollout."""

    api_version: Literal["retuned.dev/v1alpha1"]
    """Version of this schema."""
    kind: Literal["KernelTuningPolicy"]
    """Kind of the document."""
    metadata: Metadata
    """Name of the policy."""
    spec: PolicySpec
    """Rules of the policy."""

    @property
    def full_name(self) -> str:
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def digest(self) -> Digest:
        """Content digest of the meaning: comments and explicit defaults do not change it.

        Approvals name it, so it must stay the same across an upgrade. A field of a later version is
        part of it only if a policy sets it.
        """
        body = self.model_dump(mode="json", by_alias=True)
        for path in _ADDED:
            *above, name = path.split(".")
            said, usual = body["spec"], _USUAL
            for part in above:
                said, usual = said.get(part, {}), usual[part]
            if name in said and said[name] == usual[name]:
                del said[name]
        return digest_of(body)

"""KernelTuningPolicy: what may be tried, what must be proven, who must agree, and when.

The same file is valid on one machine and in a cluster. The gate reads `selector`, `kernels`,
`gpuModels`, `mode`, `validation.minSpeedup`, `validation.confidence`, `gates`, `windows` and
`breakGlass`; the loop reads `experiments`, `capture`, `validation.endToEnd` and the quarantine (see
`enforcement.limits_of`). The rest is for the operator of a cluster: one machine does not read it,
and says so wherever it is written (`enforcement.NOT_ENFORCED` names each field and what holds).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field, model_validator

from retuned.contract import Digest, digest_of
from retuned.stages.gate.limits import Capture, Experiments, Rollout, Validation
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
    """How far a policy lets Retuned go."""

    ENFORCE = "Enforce"
    """Swaps happen once the gate is open."""
    DRY_RUN = "DryRun"
    """Everything is judged and nothing is swapped."""
    OBSERVE_ONLY = "ObserveOnly"
    """Measured and reported only."""


class Metadata(PolicyModel):
    """Name of the policy, as Kubernetes writes it."""

    name: str = Field(pattern=DNS)
    """Name, unique in its namespace."""
    namespace: str = Field(default="default", pattern=DNS)
    """Namespace; has no meaning on one machine."""
    labels: dict[Label, str] = Field(default_factory=dict)
    """Free labels."""
    annotations: dict[Label, str] = Field(default_factory=dict)
    """Free notes."""


class Selector(PolicyModel):
    """Which servers the policy is for."""

    match_labels: dict[Label, str] = Field(default_factory=dict)
    """Labels the target must carry; empty means every target."""


class Kernels(PolicyModel):
    """Which kernels the policy is for."""

    include: tuple[Glob, ...] = Field(default=("*",), min_length=1)
    """Patterns, at least one of which must match."""
    exclude: tuple[Glob, ...] = ()
    """Patterns, none of which may match; wins over `include`."""


class Approver(PolicyModel):
    """Somebody who may approve: a group or one user."""

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
    """Whose agreement a gate asks for."""

    required: int = Field(ge=0, le=16)
    """Distinct people; 0 passes without a person, except generated source and high risk."""
    from_: tuple[Approver, ...] = Field(
        default=(), validation_alias="from", serialization_alias="from"
    )
    """Who may approve; empty means everybody."""
    distinct_groups: bool = False
    """Each approval must come from another entry of `from`."""
    exclude_requester: bool = True
    """Who asked for the swap may not approve it."""
    allow_service_accounts: bool = False
    """Whether programs may approve."""
    ttl: PositiveDuration = Field(default=parse_duration("24h"))
    """How long a proposal waits; then it is expired, never approved."""
    require_comment: bool = False
    """An approval without a comment does not count."""

    @model_validator(mode="after")
    def _reachable(self) -> Approvals:
        users = {entry.user for entry in self.from_ if entry.user}
        only_users = bool(self.from_) and len(users) == len(self.from_)
        entries = len({str(entry) for entry in self.from_})
        short = (self.distinct_groups and entries < self.required) or (
            only_users and len(users) < self.required
        )
        if short:
            raise ValueError(f"{self.required} approvals can never come from this 'from'")
        return self


class GateCondition(PolicyModel):
    """Which proposals a gate is for; what is not written matches everything."""

    risk: Annotated[tuple[Risk, ...], Field(min_length=1)] | None = None
    """Risk classes."""
    env: Annotated[tuple[Label, ...], Field(min_length=1)] | None = None
    """Environments, such as ``prod``."""


class Gate(PolicyModel):
    """One way in; the first gate whose `when` matches decides."""

    name: str = Field(pattern=DNS)
    """Name, for people and dashboards."""
    when: GateCondition = GateCondition()
    """Which proposals it is for."""
    approvals: Approvals
    """Whose agreement it asks for."""


class BreakGlass(PolicyModel):
    """One leader's decision in place of the quorum and of allow windows, never of a freeze."""

    enabled: bool = False
    """Whether it exists."""
    group: Label | None = None
    """Who may."""
    require_comment: bool = True
    """Without a comment it does not count."""
    max_pods: int = Field(default=1, ge=1)
    """Servers it may touch."""

    @model_validator(mode="after")
    def _has_group(self) -> BreakGlass:
        if self.enabled and self.group is None:
            raise ValueError("an enabled breakGlass names a group")
        return self


class PolicySpec(PolicyModel):
    """What the policy says."""

    priority: int = Field(default=0, ge=-1_000_000, le=1_000_000)
    """The highest matching policy decides; with two of the same priority nothing moves."""
    mode: Mode
    """How far it lets Retuned go."""
    selector: Selector = Selector()
    """Servers."""
    kernels: Kernels = Kernels()
    """Kernels."""
    gpu_models: tuple[Label, ...] = ()
    """Accelerators; empty means every one."""
    experiments: Experiments = Experiments()
    """What experiments may cost."""
    validation: Validation = Validation()
    """The floor."""
    capture: Capture = Capture()
    """What may be taken of the server's inputs."""
    gates: tuple[Gate, ...] = ()
    """Ways in, first match decides; none matching means that nothing passes."""
    rollout: Rollout = Rollout()
    """How a swap spreads."""
    windows: tuple[Window, ...] = Field(default=(), max_length=64)
    """When swaps may start."""
    break_glass: BreakGlass = BreakGlass()
    """The emergency way in."""

    @model_validator(mode="after")
    def _gate_names_differ(self) -> PolicySpec:
        names = [gate.name for gate in self.gates]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"two gates are called {', '.join(twice)}")
        return self


_ADDED = (
    "capture",
    "rollout.canary.lease",
    "rollout.canary.orphan",
    "rollout.canary.shadowFirst",
    "rollout.canary.steps",
    "rollout.shadow",
    "validation.batchInvariance",
    "validation.endToEnd",
)
"""Fields that came when policies had been approved by already; whoever adds one adds it here."""
_USUAL = {
    name: section.model_dump(mode="json", by_alias=True)
    for name, section in (
        ("capture", Capture()),
        ("rollout", Rollout()),
        ("validation", Validation()),
    )
}


class KernelTuningPolicy(PolicyModel):
    """A gate policy."""

    api_version: Literal["retuned.dev/v1alpha1"]
    """Version of this schema."""
    kind: Literal["KernelTuningPolicy"]
    """What the file is."""
    metadata: Metadata
    """Its name."""
    spec: PolicySpec
    """What it says."""

    @property
    def full_name(self) -> str:
        """Namespace and name, as ``serving/prod-llm``."""
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def digest(self) -> Digest:
        """Content digest of the meaning: comments and defaults written out do not change it.

        Approvals name it, so it must outlive an upgrade: what a later version can say besides is
        part of it only where a policy says it.
        """
        body = self.model_dump(mode="json", by_alias=True)
        for path in _ADDED:
            *above, name = path.split(".")
            said, usual = body["spec"], _USUAL
            for part in above:
                said, usual = said[part], usual[part]
            if said[name] == usual[name]:
                del said[name]
        return digest_of(body)

"""SwapProposal: a proven win that policy and people decide on, and its rollout over pods.

Its status has the phase, the gate decision, the order of each pod, and the measurements.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from pydantic import AwareDatetime, Field

from retuned.api.replicas import ReplicaProofStatus
from retuned.api.step_accounts import StepAccountStatus
from retuned.api.target import ActiveKernel
from retuned.api.values import (
    Abort,
    ApiModel,
    Code,
    Condition,
    KernelName,
    LocalRef,
    Model,
    Note,
    ObjectMeta,
    ObjectName,
    Traceparent,
    Uid,
    User,
)
from retuned.contract import Digest, Guard, TrustClass
from retuned.stages.gate import GateReason, GateState, LiveProof
from retuned.stages.proposal import Proposal, Risk, proposal_id
from retuned.stages.verdict import Interval


class ProposalPhase(StrEnum):
    """Phase of a proposal."""

    PENDING = "Pending"
    """The operator has not processed it yet."""
    VALIDATING = "Validating"
    """The operator checks its evidence, baseline and environment."""
    AWAITING_APPROVAL = "AwaitingApproval"
    """It waits for an approval or a policy."""
    APPROVED = "Approved"
    """Approved; no swap has started."""
    SCHEDULED = "Scheduled"
    """Approved; a window, a freeze, a budget or another rollout delays it."""
    CANARY = "Canary"
    """The first pods swap."""
    ANALYZING = "Analyzing"
    """The swapped pods are measured before further pods swap."""
    PROVING = "Proving"
    """The swap is switched off and on in random order, and the server's steps are timed."""
    PROMOTING = "Promoting"
    """The next wave swaps."""
    PAUSED = "Paused"
    """Measurements have no data: a person must decide how to continue."""
    WATCHING = "Watching"
    """Every pod has swapped and is still watched."""
    PROMOTED = "Promoted"
    """The swap is kept."""
    ROLLING_BACK = "RollingBack"
    """Every pod rolls back."""
    ROLLBACK_FAILED = "RollbackFailed"
    """A pod does not roll back: a person is paged, and the rollback is retried."""
    ROLLED_BACK = "RolledBack"
    """Every pod has rolled back."""
    INVALID = "Invalid"
    """Its evidence does not support it."""
    REJECTED = "Rejected"
    """A person, or the policy's floor, rejected it."""
    EXPIRED = "Expired"
    """It was not decided in time."""
    ABORTED = "Aborted"
    """It ended before any pod swapped."""
    SUPERSEDED = "Superseded"
    """A newer proposal exists, or its baseline or environment is gone."""

    @property
    def is_terminal(self) -> bool:
        """Whether nothing follows; a freeze may still roll back a promoted swap."""
        return self in _ENDED

    @property
    def is_before_swap(self) -> bool:
        """Whether no pod can have an order to load it."""
        return self in _BEFORE

    @property
    def is_under_way(self) -> bool:
        """Whether pods may have swapped and not all are proven."""
        return self in _UNDER_WAY

    @property
    def is_going_back(self) -> bool:
        """Whether every pod is being rolled back."""
        return self in (ProposalPhase.ROLLING_BACK, ProposalPhase.ROLLBACK_FAILED)


_BEFORE = frozenset(
    {
        ProposalPhase.PENDING,
        ProposalPhase.VALIDATING,
        ProposalPhase.AWAITING_APPROVAL,
        ProposalPhase.APPROVED,
        ProposalPhase.SCHEDULED,
    }
)
_UNDER_WAY = frozenset(
    {
        ProposalPhase.CANARY,
        ProposalPhase.ANALYZING,
        ProposalPhase.PROVING,
        ProposalPhase.PROMOTING,
        ProposalPhase.PAUSED,
        ProposalPhase.WATCHING,
    }
)
_ENDED = frozenset(
    {
        ProposalPhase.PROMOTED,
        ProposalPhase.ROLLED_BACK,
        ProposalPhase.INVALID,
        ProposalPhase.REJECTED,
        ProposalPhase.EXPIRED,
        ProposalPhase.ABORTED,
        ProposalPhase.SUPERSEDED,
    }
)


class GateStatus(ApiModel):
    """The last gate decision."""

    state: GateState
    """State of the proposal at the gate."""
    reason: GateReason
    """Stable code."""
    sentence: Note = ""
    """The decision in one sentence."""
    name: str = Field(default="", max_length=253)
    """Gate within the policy; empty if none matched."""
    policy: str = Field(default="", max_length=320)
    """Policy that decided, as ``namespace/name``; empty if none matched."""
    policy_generation: int = Field(default=0, ge=0)
    """Its generation, which decisions name. 0 if none matched."""
    policy_digest: Digest | None = None
    """Its digest, which decisions name. Unset if none matched."""
    required: int = Field(default=0, ge=0)
    """Approvals that the gate requires."""
    received: tuple[User, ...] = Field(default=(), max_length=64)
    """Users whose approval counts."""
    missing: int = Field(default=0, ge=0)
    """Approvals still missing."""
    missing_from: tuple[Note, ...] = Field(default=(), max_length=64)
    """Who may still give one; empty means any user."""


class WindowStatus(ApiModel):
    """Whether a swap may start."""

    open: bool
    """Whether a swap may start now."""
    next_change: AwareDatetime | None = None
    """When `open` changes without an edit. Unset if no change is predicted."""


class PodState(StrEnum):
    """Wanted state of a pod."""

    SWAP = "swap"
    """Load the artifact and activate it."""
    BACK = "back"
    """Roll back to the previous variant or the original."""


class PodOrder(ApiModel):
    """Order of one pod; the operator sends it to the pod's sidecar."""

    name: ObjectName
    """Name of the pod."""
    uid: Uid
    """Its uid; a new pod of the same name has no order."""
    wants: PodState
    """Wanted state."""
    epoch: int = Field(ge=1)
    """Epoch of the order; a sidecar commits an epoch once."""
    since: AwareDatetime
    """When the order was made."""
    ends: int | None = Field(default=None, ge=0)
    """How often the server's container had ended by then. Unset in orders of older operators."""
    done: bool = False
    """Whether the pod reports the order as committed."""
    held: Code = ""
    """Why the pod has not committed it, as its sidecar reports, a stable code; empty if it has, or
    if unknown."""


class RolloutStatus(ApiModel):
    """Progress of the swap over the pods."""

    started_at: AwareDatetime
    """When the first pod got an order."""
    wave: int = Field(default=0, ge=0)
    """0 the canary, then the policy's waves from 1."""
    wave_started_at: AwareDatetime
    """When the wave began."""
    last_swap_at: AwareDatetime
    """When a pod last got an order to swap."""
    back_since: AwareDatetime | None = None
    """When the rollback began. Unset before."""
    previous: ActiveKernel | None = None
    """Active artifact before the swap, which a rollback restores. Unset for the original."""
    quarantine_until: AwareDatetime | None = None
    """End of the artifact's quarantine. Unset if it did no harm."""
    last_epoch: int = Field(default=0, ge=0)
    """Last epoch of an order of this rollout, including orders that were withdrawn."""
    limited_to: int | None = Field(default=None, ge=1)
    """Most pods that may swap after a break-glass. Unset means all."""
    pods: tuple[PodOrder, ...] = Field(
        default=(), max_length=2000, json_schema_extra={"x-map-key": "uid"}
    )
    """Order of each pod."""


class LookOutcome(StrEnum):
    """Result of one measurement of the swapped pods; missing data is never a pass."""

    PASSED = "Passed"
    FAILED = "Failed"
    INCONCLUSIVE = "Inconclusive"


class LookStatus(ApiModel):
    """One measurement."""

    at: AwareDatetime
    """Time of the measurement."""
    outcome: LookOutcome
    """Its result."""
    reason: Code = ""
    """Stable code."""
    detail: Note = ""
    """Explanation of the result."""


class AnalysisStatus(ApiModel):
    """Measurements of the present wave."""

    passed: int = Field(default=0, ge=0)
    """Measurements that passed."""
    failed: int = Field(default=0, ge=0)
    """Measurements that failed."""
    inconclusive: int = Field(default=0, ge=0)
    """Inconclusive measurements in a row."""
    last: tuple[LookStatus, ...] = Field(default=(), max_length=16)
    """The newest measurements, oldest first."""


class LiveProofStatus(ApiModel):
    """Live proof of a wave in one pod, for all pods that run on the same."""

    name: ObjectName
    """Pod that proves."""
    uid: Uid
    """Its uid."""
    epoch: int = Field(ge=1)
    """Order that is proven."""
    environment: str = Field(default="", max_length=71)
    """Digest of what its server runs on; empty if its processes differ."""
    wave: int = Field(ge=0)
    """Wave of the rollout."""
    swapped: int = Field(ge=1)
    """Pods of the environment with an order to swap when the proof was asked for."""
    since: AwareDatetime
    """When it was asked for."""
    rule: LiveProof
    """Rule of the policy at that time."""
    phase: Code = ""
    """Part of the proof, as the pod reports it: `pilot`, `short`, `long` or `done`; empty before.
    """
    verdict: Code = ""
    """Computed from the pod's pairs; empty before."""
    reason: Code = ""
    """Reason for the verdict, a stable code."""
    sentence: Note = ""
    """The verdict in one sentence."""
    kept: bool = True
    """Whether a policy that requires the proof keeps the swap after this verdict."""
    at: AwareDatetime | None = None
    """Time of the verdict. Unset before."""
    effect: float | None = None
    """Logarithm of step time with the swap over that without. Unset without pairs."""
    low: float | None = None
    """Lower end of its interval. Unset if it is open."""
    high: float | None = None
    """Upper end. Unset if it is open."""
    pairs: int = Field(default=0, ge=0)
    """Pairs that count."""
    evidence: Digest | None = None
    """Digest of the signed pairs in the operator's store. Unset without pairs."""
    account: StepAccountStatus | None = None
    """Where the time of a step went. Unset without pairs that count, and of sentinels and alarms.
    """


class Step(ApiModel):
    """One change of phase."""

    from_: ProposalPhase = Field(validation_alias="from", serialization_alias="from")
    """Phase before."""
    to: ProposalPhase
    """Phase after."""
    at: AwareDatetime
    """Time of the change."""
    by: User = "retuned"
    """``retuned`` or a user."""
    reason: Code = ""
    """Reason for the change."""


class SwapProposalStatus(ApiModel):
    """Progress of the proposal."""

    observed_generation: int = Field(default=0, ge=0)
    """Generation of the spec that this status describes."""
    phase: ProposalPhase = ProposalPhase.PENDING
    """Phase of the proposal."""
    reason: Code = ""
    """Reason for the phase, a stable code."""
    detail: Note = ""
    """Explanation of the phase."""
    gate: GateStatus | None = None
    """The last gate decision. Unset before the first."""
    window: WindowStatus | None = None
    """Whether a swap may start. Unset before a policy was found."""
    rollout: RolloutStatus | None = None
    """Progress of the swap over the pods. Unset before it began."""
    analysis: AnalysisStatus = AnalysisStatus()
    """Measurements of the swapped pods."""
    live_proofs: tuple[LiveProofStatus, ...] = Field(default=(), max_length=64)
    """Live proofs by node agents, oldest first."""
    sentinels: tuple[LiveProofStatus, ...] = Field(default=(), max_length=16)
    """Pods that measure the promoted swap, one for each environment, with their newest day.

    The phase is `sentinel` while the operator has the pod measure."""
    alarm_rule: LiveProof | None = None
    """Rule under which pods may try the swap off at an alarm. Unset while they may not."""
    attributions: tuple[LiveProofStatus, ...] = Field(default=(), max_length=16)
    """The newest trial of each pod whose alarm has tried the swap off."""
    replicas: ReplicaProofStatus | None = None
    """Live proof by canary replicas. Unset without one."""
    resumed: tuple[Uid, ...] = Field(default=(), max_length=64)
    """Decisions that have ended a pause; each ends one."""
    last_stable_digest: Digest | None = None
    """Artifact that a rollback restores. Unset for the original."""
    traceparent: Traceparent | None = None
    """Span of the last write, a W3C ``traceparent``. Unset if tracing is off."""
    conditions: tuple[Condition, ...] = Field(
        default=(), max_length=16, json_schema_extra={"x-map-key": "type"}
    )
    """Conditions of the proposal."""
    history: tuple[Step, ...] = Field(default=(), max_length=20)
    """The newest changes of phase, oldest first."""


class Artifact(ApiModel):
    """The artifact to swap in."""

    digest: Digest
    """Content digest, which every decision names."""
    uri: str = Field(default="", max_length=2048)
    """Address in the operator's store; empty means under its digest."""
    size_bytes: int = Field(default=0, ge=0)
    """Size of the compiled artifact; 0 if unknown."""


class RiskReport(ApiModel):
    """How carefully a reviewer must check."""

    level: Risk
    """Risk class."""
    reasons: tuple[Note, ...] = Field(default=(), max_length=32)
    """Reasons for the class."""


class SwapProposalSpec(ApiModel):
    """The win. It is immutable, except that it may be aborted."""

    target_ref: LocalRef
    """TuningTarget of the swap."""
    kernel: KernelName
    """Name of the slot."""
    gpu_model: Model
    """Accelerator model it was measured on."""
    artifact: Artifact
    """The artifact to swap in."""
    baseline_digest: Digest
    """Variant that it replaces. If this is not the incumbent any more, the proposal is superseded.
    """
    guard: Guard
    """Shapes that run the artifact; all others run the original."""
    evidence: Digest
    """Digest of the raw numbers in the operator's store."""
    environment: Digest
    """Environment of the measurement; the evidence expires with it."""
    speedup: Interval
    """Time of the incumbent over the candidate's, weighted by production launches."""
    share: float = Field(ge=0.0, le=1.0)
    """Share of GPU time that its shapes take."""
    expected_saving: float = Field(ge=0.0, le=1.0)
    """Share of GPU time saved, from the lower bound."""
    risk: RiskReport
    """How carefully a reviewer must check."""
    trust: TrustClass
    """Class of the author: ``P`` other parameters of an audited source, ``L`` generated source."""
    experiment_ref: ObjectName
    """KernelExperiment that proved it."""
    plan: str = Field(max_length=71)
    """Id of the experiment's plan."""
    requested_by: User
    """Requester, who cannot approve the proposal."""
    expires_at: AwareDatetime
    """After this moment it is expired, never approved."""
    attempt: int = Field(default=1, ge=1)
    """How often this win was proposed, including now."""
    abort: Abort = Abort()
    """End it in any phase; swapped pods roll back."""


class SwapProposal(ApiModel):
    """A proven win that needs a decision, spreads over pods, and is watched."""

    api_version: Literal["retuned.dev/v1alpha1"]
    kind: Literal["SwapProposal"]
    metadata: ObjectMeta
    """Name; the API server's creation time is the time of the proposal."""
    spec: SwapProposalSpec
    """The win."""
    status: SwapProposalStatus = SwapProposalStatus()
    """Progress of the proposal."""

    @property
    def target(self) -> str:
        """Target as freezes and stages name it; on one machine without a namespace."""
        namespace, name = self.metadata.namespace, self.spec.target_ref.name
        return f"{namespace}/{name}" if namespace else name

    def stage_proposal(self) -> Proposal:
        """Return the record that the gate decides on.

        Its id is computed from its content, never read; its time is the API server's.

        Raises
        ------
        ValueError
            If the object does not come from an API server, and so has no time.
        """
        created = self.metadata.creation_timestamp
        if created is None:
            raise ValueError("a proposal without a creation time does not come from an API server")
        spec = self.spec
        return Proposal(
            id=proposal_id(
                target=self.target,
                artifact=spec.artifact.digest,
                baseline=spec.baseline_digest,
                environment=spec.environment,
                attempt=spec.attempt,
            ),
            target=self.target,
            definition=spec.kernel,
            artifact=spec.artifact.digest,
            baseline=spec.baseline_digest,
            guard=spec.guard,
            speedup=spec.speedup,
            share=spec.share,
            expected_saving=spec.expected_saving,
            risk=spec.risk.level,
            risk_reasons=spec.risk.reasons,
            trust=spec.trust,
            evidence=spec.evidence,
            experiment=spec.plan,
            requested_by=spec.requested_by,
            created_at=created,
            expires_at=spec.expires_at,
            environment=spec.environment,
            attempt=spec.attempt,
        )


def proposal_spec(
    proposal: Proposal, *, target: str, gpu_model: str, experiment: str
) -> SwapProposalSpec:
    """Render a proposal of stage 7 as the spec of a custom resource.

    Parameters
    ----------
    target
        Name of the TuningTarget, without its namespace.
    gpu_model
        Accelerator that it was measured on.
    experiment
        Name of the KernelExperiment.

    Raises
    ------
    ValueError
        If it lacks evidence or an environment, which a cluster requires.
    """
    if proposal.evidence is None or proposal.environment is None:
        raise ValueError("a proposal must name its raw numbers and its environment")
    return SwapProposalSpec(
        target_ref=LocalRef(name=target),
        kernel=proposal.definition,
        gpu_model=gpu_model,
        artifact=Artifact(digest=proposal.artifact),
        baseline_digest=proposal.baseline,
        guard=proposal.guard,
        evidence=proposal.evidence,
        environment=proposal.environment,
        speedup=proposal.speedup,
        share=proposal.share,
        expected_saving=proposal.expected_saving,
        risk=RiskReport(level=proposal.risk, reasons=proposal.risk_reasons),
        trust=proposal.trust,
        experiment_ref=experiment,
        plan=proposal.experiment,
        requested_by=proposal.requested_by,
        expires_at=proposal.expires_at,
        attempt=proposal.attempt,
    )

"""SwapProposal: a proven win that policy and people decide on, and how it spreads over pods.

How far a proposal is: phases, the gate's answer, what each pod was told, what looks show.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from pydantic import AwareDatetime, Field

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
from retuned.stages.gate import GateReason, GateState
from retuned.stages.proposal import Proposal, Risk, proposal_id
from retuned.stages.verdict import Interval


class ProposalPhase(StrEnum):
    """Where a proposal is."""

    PENDING = "Pending"
    """Nobody has looked at it yet."""
    VALIDATING = "Validating"
    """Its evidence and its world are being checked."""
    AWAITING_APPROVAL = "AwaitingApproval"
    """People or a policy have to agree."""
    APPROVED = "Approved"
    """Agreed; nothing is swapped yet."""
    SCHEDULED = "Scheduled"
    """Agreed; a window, a freeze, a budget or another rollout holds it back."""
    CANARY = "Canary"
    """The first pods get it."""
    ANALYZING = "Analyzing"
    """What has it is watched before more get it."""
    PROMOTING = "Promoting"
    """The next wave gets it."""
    PAUSED = "Paused"
    """No data: a person has to say how to go on."""
    WATCHING = "Watching"
    """Every pod has it; still watched."""
    PROMOTED = "Promoted"
    """Kept."""
    ROLLING_BACK = "RollingBack"
    """Every pod goes back."""
    ROLLBACK_FAILED = "RollbackFailed"
    """Some pod does not go back: page somebody; it is tried on and on."""
    ROLLED_BACK = "RolledBack"
    """Every pod is back."""
    INVALID = "Invalid"
    """Its evidence does not carry it."""
    REJECTED = "Rejected"
    """A person, or the policy's floor, said no."""
    EXPIRED = "Expired"
    """Nobody decided in time."""
    ABORTED = "Aborted"
    """Ended before any pod had it."""
    SUPERSEDED = "Superseded"
    """A newer proposal came, or the world that it was measured in is gone."""

    @property
    def is_terminal(self) -> bool:
        """Whether nothing follows; a promoted swap may still be taken back by a freeze."""
        return self in _ENDED

    @property
    def is_before_swap(self) -> bool:
        """Whether no pod can have been told to load it."""
        return self in _BEFORE

    @property
    def is_under_way(self) -> bool:
        """Whether pods may have it and not all are proven."""
        return self in _UNDER_WAY

    @property
    def is_going_back(self) -> bool:
        """Whether every pod is being told to go back."""
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
    """What the gate said last."""

    state: GateState
    """Where the proposal stands with the policy."""
    reason: GateReason
    """Stable code."""
    sentence: Note = ""
    """For people."""
    name: str = Field(default="", max_length=253)
    """Gate within the policy; empty where none matched."""
    policy: str = Field(default="", max_length=320)
    """Policy that decided, as ``namespace/name``; empty where none matched."""
    policy_generation: int = Field(default=0, ge=0)
    """Its generation; decisions name it. 0 where none matched."""
    policy_digest: Digest | None = None
    """Its digest; decisions name it. None where none matched."""
    required: int = Field(default=0, ge=0)
    """Approvals that it asks for."""
    received: tuple[User, ...] = Field(default=(), max_length=64)
    """Users whose approval counts."""
    missing: int = Field(default=0, ge=0)
    """Approvals still missing."""
    missing_from: tuple[Note, ...] = Field(default=(), max_length=64)
    """Who may still give one; empty means anybody."""


class WindowStatus(ApiModel):
    """Whether a swap may start."""

    open: bool
    """Whether it may now."""
    next_change: AwareDatetime | None = None
    """When that changes by itself; None where no change is foreseen."""


class PodState(StrEnum):
    """What a pod has been told."""

    SWAP = "swap"
    """To load the artifact and make it active."""
    BACK = "back"
    """To go back to what was there before."""


class PodOrder(ApiModel):
    """What one pod has been told; the operator hands its sidecar the order that follows."""

    name: ObjectName
    """Pod."""
    uid: Uid
    """Its uid; a new pod of the same name has been told nothing."""
    wants: PodState
    """What it is told."""
    epoch: int = Field(ge=1)
    """Of the order; a sidecar carries out an epoch once."""
    since: AwareDatetime
    """When it was told."""
    ends: int | None = Field(default=None, ge=0)
    """How often the server's container had ended by then; None in orders of older operators."""
    done: bool = False
    """Whether it says that it has done so."""
    held: Code = ""
    """Why it has not, as its sidecar says, stable code; empty where it has, or says nothing."""


class RolloutStatus(ApiModel):
    """How far the swap has spread."""

    started_at: AwareDatetime
    """When the first pod was told."""
    wave: int = Field(default=0, ge=0)
    """0 the canary, then the policy's waves from 1."""
    wave_started_at: AwareDatetime
    """When the wave began."""
    last_swap_at: AwareDatetime
    """When a pod was last told to swap."""
    back_since: AwareDatetime | None = None
    """When the way back began; None while it has not."""
    previous: ActiveKernel | None = None
    """What was in force before, and the way back leads to; None is the original."""
    quarantine_until: AwareDatetime | None = None
    """Until when the artifact is not proposed again; None where it did no harm."""
    limited_to: int | None = Field(default=None, ge=1)
    """Most pods that may have it, for a swap that broke glass; None is all of them."""
    pods: tuple[PodOrder, ...] = Field(
        default=(), max_length=2000, json_schema_extra={"x-map-key": "uid"}
    )
    """What each pod was told."""


class LookOutcome(StrEnum):
    """What one look at the swapped pods says; no data is never a pass."""

    PASSED = "Passed"
    FAILED = "Failed"
    INCONCLUSIVE = "Inconclusive"


class LookStatus(ApiModel):
    """One look."""

    at: AwareDatetime
    """When."""
    outcome: LookOutcome
    """What it says."""
    reason: Code = ""
    """Stable code."""
    detail: Note = ""
    """For people."""


class AnalysisStatus(ApiModel):
    """What the looks of the present wave say together."""

    passed: int = Field(default=0, ge=0)
    """Looks that passed."""
    failed: int = Field(default=0, ge=0)
    """Looks that failed."""
    inconclusive: int = Field(default=0, ge=0)
    """Looks without an answer, in a row."""
    last: tuple[LookStatus, ...] = Field(default=(), max_length=16)
    """The newest, oldest first."""


class Step(ApiModel):
    """One change of phase."""

    from_: ProposalPhase = Field(validation_alias="from", serialization_alias="from")
    """Phase before."""
    to: ProposalPhase
    """Phase after."""
    at: AwareDatetime
    """When."""
    by: User = "retuned"
    """Who: ``retuned`` or a person."""
    reason: Code = ""
    """Why."""


class SwapProposalStatus(ApiModel):
    """How far it is."""

    observed_generation: int = Field(default=0, ge=0)
    """Generation of the spec that this is about."""
    phase: ProposalPhase = ProposalPhase.PENDING
    """Where it is."""
    reason: Code = ""
    """Why, stable code."""
    detail: Note = ""
    """Why, for people."""
    gate: GateStatus | None = None
    """What the gate said last; None before it was asked."""
    window: WindowStatus | None = None
    """Whether a swap may start; None before a policy was found."""
    rollout: RolloutStatus | None = None
    """How far the swap has spread; None before it began."""
    analysis: AnalysisStatus = AnalysisStatus()
    """What the swapped pods show."""
    resumed: tuple[Uid, ...] = Field(default=(), max_length=64)
    """Decisions that have ended a pause; each does so once."""
    last_stable_digest: Digest | None = None
    """What the way back leads to; None is the original."""
    traceparent: Traceparent | None = None
    """Span in which it was last written, a W3C ``traceparent``; None where traces are off."""
    conditions: tuple[Condition, ...] = Field(
        default=(), max_length=16, json_schema_extra={"x-map-key": "type"}
    )
    """What is true of it."""
    history: tuple[Step, ...] = Field(default=(), max_length=20)
    """The newest changes of phase, oldest first."""


class Artifact(ApiModel):
    """What is swapped in."""

    digest: Digest
    """Content digest; every decision names it."""
    uri: str = Field(default="", max_length=2048)
    """Where the operator's store keeps it; empty means under its digest."""
    size_bytes: int = Field(default=0, ge=0)
    """Size of the compiled artifact; 0 where it is not known."""


class RiskReport(ApiModel):
    """How careful a reviewer must be."""

    level: Risk
    """Class."""
    reasons: tuple[Note, ...] = Field(default=(), max_length=32)
    """Why that class."""


class SwapProposalSpec(ApiModel):
    """The win; never changes, except that it may be aborted."""

    target_ref: LocalRef
    """Servers it is for."""
    kernel: KernelName
    """Slot."""
    gpu_model: Model
    """Accelerator it was measured on."""
    artifact: Artifact
    """What is swapped in."""
    baseline_digest: Digest
    """What it replaces; no longer live means superseded."""
    guard: Guard
    """Shapes it is for; everything else stays with the original."""
    evidence: Digest
    """Raw numbers, in the operator's store."""
    environment: Digest
    """Where it was measured; evidence expires with it."""
    speedup: Interval
    """Production-weighted, incumbent over candidate."""
    share: float = Field(ge=0.0, le=1.0)
    """Share of GPU time that its shapes take."""
    expected_saving: float = Field(ge=0.0, le=1.0)
    """Share of GPU time saved, from the lower bound."""
    risk: RiskReport
    """How careful a reviewer must be."""
    trust: TrustClass
    """Class of the author: ``P`` other parameters of an audited source, ``L`` generated source."""
    experiment_ref: ObjectName
    """KernelExperiment that proved it."""
    plan: str = Field(max_length=71)
    """Id of its plan."""
    requested_by: User
    """Who asked; nobody approves what they asked for."""
    expires_at: AwareDatetime
    """After this it is expired, never approved."""
    attempt: int = Field(default=1, ge=1)
    """How many times this win was proposed, this time included."""
    abort: Abort = Abort()
    """End it, from whatever phase; what was swapped goes back."""


class SwapProposal(ApiModel):
    """A proven win that waits for people, spreads, and is watched."""

    api_version: Literal["retuned.dev/v1alpha1"]
    kind: Literal["SwapProposal"]
    metadata: ObjectMeta
    """Name; the server's creation time is the time of the proposal."""
    spec: SwapProposalSpec
    """The win."""
    status: SwapProposalStatus = SwapProposalStatus()
    """How far it is."""

    @property
    def target(self) -> str:
        """Target as freezes and stages name it."""
        return f"{self.metadata.namespace}/{self.spec.target_ref.name}"

    def stage_proposal(self) -> Proposal:
        """Return the record that the gate decides on.

        Its id is computed from what it is about, never read; its time is the API server's.

        Raises
        ------
        ValueError
            If the object is not from an API server, and so has no time.
        """
        created = self.metadata.creation_timestamp
        if created is None:
            raise ValueError("a proposal that no API server has made has no time")
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
    """Write a proposal of stage 7 as the spec of a custom resource.

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
        If it names no evidence or no environment: in a cluster nobody proposes without.
    """
    if proposal.evidence is None or proposal.environment is None:
        raise ValueError("a proposal names its raw numbers and its environment")
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

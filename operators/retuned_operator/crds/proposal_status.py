"""How far a proposal is: phases, the gate's answer, what each pod was told, what looks show."""

from __future__ import annotations

from enum import StrEnum

from pydantic import AwareDatetime, Field

from retuned.contract import Digest
from retuned.stages.gate import GateReason, GateState
from retuned_operator.crds.target import ActiveKernel
from retuned_operator.crds.values import (
    ApiModel,
    Code,
    Condition,
    Note,
    ObjectName,
    Traceparent,
    Uid,
    User,
)


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

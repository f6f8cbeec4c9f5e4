"""What a proposal is, and why there may be none."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pydantic import AwareDatetime, Field, SerializerFunctionWrapHandler, model_serializer

from retuned.contract import Digest, Guard, Name, Record, TrustClass
from retuned.stages.verdict import Interval


class Risk(StrEnum):
    """How careful a reviewer must be."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"


class Proposal(Record):
    """A swap that a policy and people decide on; immutable, bound to digests."""

    id: str
    """Digest of target, artifact, baseline and environment, and of the attempt after the first."""
    target: str
    """Server or deployment."""
    definition: Name
    """Kernel."""
    artifact: Digest
    """Solution to swap in."""
    baseline: Digest
    """Solution it replaces; no longer live means superseded."""
    guard: Guard
    """Shapes it is for."""
    speedup: Interval
    """Production-weighted."""
    share: float = Field(ge=0.0, le=1.0)
    """Share of GPU time these shapes take."""
    expected_saving: float = Field(ge=0.0, le=1.0)
    """Share of GPU time saved, from the lower bound."""
    risk: Risk
    """Class."""
    risk_reasons: tuple[str, ...]
    """Why that class."""
    trust: TrustClass
    """Class of the artifact's author."""
    evidence: Digest | None
    """Raw numbers."""
    experiment: str
    """Id of the plan."""
    requested_by: str
    """Who asked: ``retuned`` or a person."""
    created_at: AwareDatetime
    """When."""
    expires_at: AwareDatetime
    """After this it is expired, never approved."""
    environment: Digest | None = None
    """Where it was measured; evidence expires with it. None in records of earlier versions."""
    attempt: int = Field(default=1, ge=1)
    """How many times this win was proposed, this time included: nobody decided the times before."""
    change: Digest | None = None
    """What is written into a file that the server configures the kernel by, as the server gets it;
    the file's digest before is in it. None where a kernel is swapped."""

    @model_serializer(mode="wrap")
    def _without_what_is_absent(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out what is not said: proposals of kernels look as they always did."""
        body: dict[str, Any] = handler(self)
        if self.change is None:
            body.pop("change", None)
        return body


class RefusalReason(StrEnum):
    """Stable codes for a win that is not proposed."""

    NOT_PROMOTED = "not-promoted"
    MISSING_EVIDENCE = "missing-evidence"
    STALE_BASELINE = "stale-baseline"
    ALREADY_LIVE = "already-live"
    QUARANTINED = "quarantined"
    NARROWER_THAN_LIVE = "narrower-than-live"
    NOTHING_COVERED = "nothing-covered"
    NOT_WORTH_IT = "not-worth-it"
    OLD_EVIDENCE = "old-evidence"
    EXPIRED_TOO_OFTEN = "expired-too-often"
    STALE_ENVIRONMENT = "stale-environment"
    EVIDENCE_UNREADABLE = "evidence-unreadable"
    EVIDENCE_ALTERED = "evidence-altered"
    EVIDENCE_KEY_UNKNOWN = "evidence-key-unknown"
    EVIDENCE_KEY_REVOKED = "evidence-key-revoked"
    EVIDENCE_OF_ANOTHER_CANDIDATE = "evidence-of-another-candidate"
    EVIDENCE_OF_ANOTHER_INCUMBENT = "evidence-of-another-incumbent"
    EVIDENCE_OF_ANOTHER_PLAN = "evidence-of-another-plan"
    EVIDENCE_OF_ANOTHER_ENVIRONMENT = "evidence-of-another-environment"
    EVIDENCE_CONTRADICTED = "evidence-contradicted"
    ALREADY_DECIDED = "already-decided"
    NOT_A_ROW = "not-a-row"
    GUARD_BEYOND_STEP = "guard-beyond-step"
    FILE_CHANGED = "file-changed"
    NOTHING_TO_CHANGE = "nothing-to-change"
    FILE_UNUSABLE = "file-unusable"


class Refusal(Record):
    """Why nothing is proposed."""

    reason: RefusalReason
    """Stable code."""
    detail: str
    """One sentence with the numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposalLimits:
    """Numbers of this stage."""

    min_saving: float = 0.002
    """Smallest share of all GPU time that a swap must save to be worth a person's time."""
    suspicious_speedup: float = 2.0
    """Nobody beats a vendor's library by more; a greater win over one is more likely a mistake."""
    incredible_speedup: float = 20.0
    """A greater win over anything is treated alike."""
    wide_share: float = 0.25
    """Share of GPU time from which the blast radius is worth a second look."""
    huge_share: float = 0.60
    """Share of GPU time from which a fault would be the server's fault."""

"""Decisions, freezes and gate decisions."""

from __future__ import annotations

from enum import StrEnum
from fnmatch import fnmatchcase

from pydantic import AwareDatetime, Field

from retuned.contract import Digest, Record, digest_of
from retuned.stages.gate.limits import LiveProof
from retuned.stages.gate.values import Glob


class DecisionKind(StrEnum):
    """What a person decided."""

    APPROVE = "Approve"
    REJECT = "Reject"
    ABORT = "Abort"
    BREAK_GLASS = "BreakGlass"


class SwapDecision(Record):
    """One person's decision on one proposal; written once, never changed."""

    proposal: str = Field(min_length=1, max_length=256)
    digest: Digest
    """Artifact that was shown; a decision about another artifact does not count."""
    decision: DecisionKind
    user: str = Field(min_length=1, max_length=256)
    """User name as the channel authenticated it."""
    groups: tuple[str, ...] = ()
    """Groups of the user at that time."""
    comment: str = Field(default="", max_length=4000)
    channel: str = Field(default="cli", max_length=64)
    """Where the decision was made: ``cli``, ``review-page``, ``kubectl``."""
    at: AwareDatetime
    policy_digest: Digest | None = None
    """Policy at that time; an approval under another policy does not count."""

    @property
    def id(self) -> str:
        """Content digest; the same decision twice is one record."""
        return digest_of(self.model_dump(mode="json"))


class StopPolicy(StrEnum):
    """What a freeze does to swaps in progress."""

    HOLD = "Hold"
    """No swap starts."""
    HOLD_AND_DRAIN = "HoldAndDrain"
    """No swap starts; swaps in progress are rolled back."""
    HOLD_AND_ROLLBACK = "HoldAndRollback"
    """All swaps are rolled back, promoted ones too."""


class FreezeScope(Record):
    """What a freeze applies to; empty lists match everything."""

    targets: tuple[Glob, ...] = ()
    """Patterns over target names."""
    kernels: tuple[Glob, ...] = ()
    """Patterns over kernel names."""

    def covers(self, *, target: str, kernel: str) -> bool:
        """Whether the freeze applies to this target and kernel.

        Examples
        --------
        >>> FreezeScope(kernels=("linear*",)).covers(target="any", kernel="rmsnorm")
        False
        """
        return all(
            not globs or any(fnmatchcase(name, glob) for glob in globs)
            for globs, name in ((self.targets, target), (self.kernels, kernel))
        )


class TuningFreeze(Record):
    """A stop for new swaps until it ends or is lifted."""

    id: str = Field(min_length=1, max_length=256)
    stop_policy: StopPolicy = StopPolicy.HOLD
    """What happens to swaps in progress."""
    scope: FreezeScope = FreezeScope()
    """What it applies to."""
    until: AwareDatetime | None = None
    """When it ends; None means when it is lifted."""
    reason: str = Field(default="", max_length=4000)
    user: str = Field(min_length=1, max_length=256)
    """Who set it."""
    at: AwareDatetime


class GateState(StrEnum):
    """State of a proposal at the gate."""

    WAITING = "waiting"
    APPROVED = "approved"
    REJECTED = "rejected"
    EXPIRED = "expired"
    FROZEN = "frozen"
    SCHEDULED = "scheduled"
    OBSERVE_ONLY = "observe-only"


class GateReason(StrEnum):
    """Stable codes for the state."""

    QUORUM = "quorum"
    AUTOMATIC = "automatic"
    BREAK_GLASS = "break-glass"
    MISSING_APPROVALS = "missing-approvals"
    NEEDS_PERSON = "needs-person"
    NO_POLICY = "no-policy"
    POLICY_TIE = "policy-tie"
    NO_GATE = "no-gate"
    MISSING_EVIDENCE = "missing-evidence"
    REJECTED_BY_PERSON = "rejected-by-person"
    ABORTED = "aborted"
    BELOW_MIN_SPEEDUP = "below-min-speedup"
    CONFIDENCE_TOO_LOW = "confidence-too-low"
    EXPIRED = "expired"
    FROZEN = "frozen"
    WINDOW_CLOSED = "window-closed"
    OBSERVE_ONLY = "observe-only"
    DRY_RUN = "dry-run"


class IgnoredReason(StrEnum):
    """Stable codes for an approval that does not count."""

    OTHER_DIGEST = "other-digest"
    OTHER_POLICY = "other-policy"
    BEFORE_PROPOSAL = "before-proposal"
    IN_THE_FUTURE = "in-the-future"
    REQUESTER = "requester"
    SERVICE_ACCOUNT = "service-account"
    NO_COMMENT = "no-comment"
    NOT_AN_APPROVER = "not-an-approver"
    SAME_GROUP = "same-group"
    NO_BREAK_GLASS = "no-break-glass"


class Ignored(Record):
    """A decision that does not count, and why."""

    user: str
    reason: IgnoredReason


class GateDecision(Record):
    """The gate's decision at one moment."""

    proposal: str
    digest: Digest
    state: GateState
    """Only ``approved`` may be swapped."""
    reason: GateReason
    policy: str = ""
    """Policy that decided, as ``namespace/name``; empty if none matched."""
    policy_digest: Digest | None = None
    """Its digest; approvals name it."""
    gate: str = ""
    """Gate within the policy; empty if none matched."""
    required: int = Field(default=0, ge=0)
    """Approvals that the gate requires."""
    received: tuple[str, ...] = ()
    missing: int = Field(default=0, ge=0)
    missing_from: tuple[str, ...] = ()
    """Who may still give one, such as ``group sre-oncall``; empty means any user."""
    ignored: tuple[Ignored, ...] = ()
    next_change_at: AwareDatetime | None = None
    """When time alone changes the decision."""
    evaluated_at: AwareDatetime
    """Moment the answer is for."""
    detail: str = ""
    """Further explanation."""
    live_proof: LiveProof | None = None
    """The policy's rule for live proofs of the swap."""

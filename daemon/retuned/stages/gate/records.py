"""What people and the gate say: decisions, freezes, and the gate's answer."""

from __future__ import annotations

from enum import StrEnum
from fnmatch import fnmatchcase

from pydantic import AwareDatetime, Field

from retuned.contract import Digest, Record, digest_of
from retuned.stages.gate.values import Glob


class DecisionKind(StrEnum):
    """What a person decided."""

    APPROVE = "Approve"
    REJECT = "Reject"
    ABORT = "Abort"
    BREAK_GLASS = "BreakGlass"


class SwapDecision(Record):
    """One person's word on one proposal; written once, never changed."""

    proposal: str = Field(min_length=1, max_length=256)
    """Id of the proposal."""
    digest: Digest
    """Artifact that the person saw; a word on another artifact counts for nothing."""
    decision: DecisionKind
    """The word."""
    user: str = Field(min_length=1, max_length=256)
    """Who, as the channel proved it."""
    groups: tuple[str, ...] = ()
    """Groups of the user at that time."""
    comment: str = Field(default="", max_length=4000)
    """Why."""
    channel: str = Field(default="cli", max_length=64)
    """How it came: ``cli``, ``review-page``, ``kubectl``."""
    at: AwareDatetime
    """When."""
    policy_digest: Digest | None = None
    """Policy in force when it was given; an approval under another policy does not count."""

    @property
    def id(self) -> str:
        """Content digest; the same word twice is one record."""
        return digest_of(self.model_dump(mode="json"))


class StopPolicy(StrEnum):
    """What a freeze does to swaps that are under way."""

    HOLD = "Hold"
    """Nothing new starts."""
    HOLD_AND_DRAIN = "HoldAndDrain"
    """Nothing new starts; what is under way goes back."""
    HOLD_AND_ROLLBACK = "HoldAndRollback"
    """Everything goes back, promoted swaps too."""


class FreezeScope(Record):
    """What a freeze is for; empty lists mean everything."""

    targets: tuple[Glob, ...] = ()
    """Patterns over target names."""
    kernels: tuple[Glob, ...] = ()
    """Patterns over kernel names."""

    def covers(self, *, target: str, kernel: str) -> bool:
        """Whether this target and kernel are frozen.

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
    """A stop sign: while it stands nothing starts."""

    id: str = Field(min_length=1, max_length=256)
    """Name."""
    stop_policy: StopPolicy = StopPolicy.HOLD
    """What becomes of swaps under way."""
    scope: FreezeScope = FreezeScope()
    """What it is for."""
    until: AwareDatetime | None = None
    """When it ends by itself; None stands until it is lifted."""
    reason: str = Field(default="", max_length=4000)
    """Why."""
    user: str = Field(min_length=1, max_length=256)
    """Who."""
    at: AwareDatetime
    """When it was set."""


class GateState(StrEnum):
    """Where a proposal stands."""

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
    """Whose."""
    reason: IgnoredReason
    """Stable code."""


class GateDecision(Record):
    """The gate's answer at one moment."""

    proposal: str
    """Id of the proposal."""
    digest: Digest
    """Artifact it is about."""
    state: GateState
    """Where the proposal stands; only ``approved`` may be swapped."""
    reason: GateReason
    """Stable code."""
    policy: str = ""
    """Policy that decided, as ``namespace/name``; empty where none matched."""
    policy_digest: Digest | None = None
    """Its digest; approvals name it."""
    gate: str = ""
    """Gate within the policy; empty where none matched."""
    required: int = Field(default=0, ge=0)
    """Approvals the gate asks for."""
    received: tuple[str, ...] = ()
    """Users whose approval counts."""
    missing: int = Field(default=0, ge=0)
    """Approvals still missing."""
    missing_from: tuple[str, ...] = ()
    """Who may still give one, such as ``group sre-oncall``; empty means anybody."""
    ignored: tuple[Ignored, ...] = ()
    """Approvals that do not count."""
    next_change_at: AwareDatetime | None = None
    """When time alone changes the answer: look again then."""
    evaluated_at: AwareDatetime
    """Moment the answer is for."""
    detail: str = ""
    """The rest, for people."""

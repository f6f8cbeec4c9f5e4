"""SwapDecision and TuningFreeze: decisions of people. Written once; admission verifies the user."""

from __future__ import annotations

from typing import Literal

from pydantic import AwareDatetime, Field

from retuned.api.values import ApiModel, Condition, Note, ObjectMeta, UidRef, User
from retuned.contract import Digest
from retuned.stages import gate
from retuned.stages.gate import DecisionKind, StopPolicy
from retuned.stages.gate.values import Glob


class SwapDecisionSpec(ApiModel):
    """One person's decision on one proposal."""

    proposal_ref: UidRef
    """The proposal that the person reviewed."""
    digest: Digest
    """The artifact that the person reviewed; a decision about another one does not count."""
    decision: DecisionKind
    """The decision."""
    user: User
    """User name; admission refuses any other than the requester's."""
    groups: tuple[User, ...] = Field(default=(), max_length=64)
    """Groups that the decision is made for; admission refuses others than the requester's."""
    comment: str = Field(default="", max_length=4000)
    """Reason for the decision."""
    channel: str = Field(default="kubectl", max_length=64, pattern=r"^[a-z0-9-]+$")
    """Where the decision was made: ``kubectl``, ``review-page``."""
    policy_generation: int = Field(default=0, ge=0)
    """Generation of the policy at that time; an approval under another does not count."""
    policy_digest: Digest | None = None
    """Digest of that policy; an approval without it does not count."""


class SwapDecisionStatus(ApiModel):
    """Whether the decision counts, as the operator records it. The gate does not read it."""

    conditions: tuple[Condition, ...] = Field(
        default=(), max_length=4, json_schema_extra={"x-map-key": "type"}
    )
    """Conditions of the decision."""


class SwapDecision(ApiModel):
    """One person's decision. It outlives the proposal as the audit record."""

    api_version: Literal["retuned.dev/v1alpha1"]
    kind: Literal["SwapDecision"]
    metadata: ObjectMeta
    """Name; the API server's creation time is the time of the decision."""
    spec: SwapDecisionSpec
    """The decision."""
    status: SwapDecisionStatus = SwapDecisionStatus()
    """Whether it counts."""

    def stage_decision(self, proposal: str) -> gate.SwapDecision:
        """Return the record that the gate counts.

        Parameters
        ----------
        proposal
            Id of the stage's proposal, for which `SwapDecisionSpec.proposal_ref` was compared.

        Raises
        ------
        ValueError
            If the object does not come from an API server, and so has no time.
        """
        at = self.metadata.creation_timestamp
        if at is None:
            raise ValueError("a decision without a creation time does not come from an API server")
        return gate.SwapDecision(
            proposal=proposal,
            digest=self.spec.digest,
            decision=self.spec.decision,
            user=self.spec.user,
            groups=self.spec.groups,
            comment=self.spec.comment,
            channel=self.spec.channel,
            at=at,
            policy_digest=self.spec.policy_digest,
        )


class FreezeScope(ApiModel):
    """The scope of a freeze; empty lists match everything."""

    targets: tuple[Glob, ...] = Field(default=(), max_length=64)
    """Patterns over targets, as ``namespace/name``."""
    kernels: tuple[Glob, ...] = Field(default=(), max_length=64)
    """Patterns over kernel names."""


class TuningFreezeSpec(ApiModel):
    """A stop for new swaps until it ends or is deleted."""

    stop_policy: StopPolicy = StopPolicy.HOLD
    """What happens to swaps in progress."""
    scope: FreezeScope = FreezeScope()
    """What the freeze applies to."""
    until: AwareDatetime | None = None
    """When the freeze ends. Without it, the freeze ends when the object is deleted."""
    reason: Note = ""
    """Reason for the freeze."""
    user: User
    """User name; admission refuses any other than the requester's."""


class TuningFreezeStatus(ApiModel):
    """Effect of the freeze."""

    conditions: tuple[Condition, ...] = Field(
        default=(), max_length=4, json_schema_extra={"x-map-key": "type"}
    )
    """Conditions of the freeze."""


class TuningFreeze(ApiModel):
    """Stop for new swaps in the cluster or a part of it, for as long as the object exists."""

    api_version: Literal["retuned.dev/v1alpha1"]
    kind: Literal["TuningFreeze"]
    metadata: ObjectMeta
    """Name of the freeze."""
    spec: TuningFreezeSpec
    """Scope and effect of the freeze."""
    status: TuningFreezeStatus = TuningFreezeStatus()
    """Effect of the freeze."""

    def stage_freeze(self) -> gate.TuningFreeze:
        """Return the record that the gate reads.

        Raises
        ------
        ValueError
            If the object does not come from an API server, and so has no time.
        """
        at = self.metadata.creation_timestamp
        if at is None:
            raise ValueError("a freeze without a creation time does not come from an API server")
        return gate.TuningFreeze(
            id=self.metadata.name,
            stop_policy=self.spec.stop_policy,
            scope=gate.FreezeScope(**self.spec.scope.model_dump()),
            until=self.spec.until,
            reason=self.spec.reason,
            user=self.spec.user,
            at=at,
        )

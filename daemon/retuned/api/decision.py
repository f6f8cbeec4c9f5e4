"""SwapDecision and TuningFreeze: what people say. Written once; admission proves who."""

from __future__ import annotations

from typing import Literal

from pydantic import AwareDatetime, Field

from retuned.api.values import ApiModel, Condition, Note, ObjectMeta, UidRef, User
from retuned.contract import Digest
from retuned.stages import gate
from retuned.stages.gate import DecisionKind, StopPolicy
from retuned.stages.gate.values import Glob


class SwapDecisionSpec(ApiModel):
    """One person's word on one proposal."""

    proposal_ref: UidRef
    """The proposal that the person saw."""
    digest: Digest
    """The artifact that the person saw; a word on another one counts for nothing."""
    decision: DecisionKind
    """The word."""
    user: User
    """Who; admission refuses another name than the requester's."""
    groups: tuple[User, ...] = Field(default=(), max_length=64)
    """Groups that the word is given for; admission refuses others than the requester's."""
    comment: str = Field(default="", max_length=4000)
    """Why."""
    channel: str = Field(default="kubectl", max_length=64, pattern=r"^[a-z0-9-]+$")
    """How it came: ``kubectl``, ``review-page``."""
    policy_generation: int = Field(default=0, ge=0)
    """Generation of the policy that the person saw; an approval under another does not count."""
    policy_digest: Digest | None = None
    """Digest of that policy; an approval without it does not count."""


class SwapDecisionStatus(ApiModel):
    """Nothing is decided here; the operator may note whether it counts."""

    conditions: tuple[Condition, ...] = Field(
        default=(), max_length=4, json_schema_extra={"x-map-key": "type"}
    )
    """What is true of it."""


class SwapDecision(ApiModel):
    """One person's word, which outlives the proposal as the audit record."""

    api_version: Literal["retuned.dev/v1alpha1"]
    kind: Literal["SwapDecision"]
    metadata: ObjectMeta
    """Name; the server's creation time is when it was said."""
    spec: SwapDecisionSpec
    """The word."""
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
            If the object is not from an API server, and so has no time.
        """
        at = self.metadata.creation_timestamp
        if at is None:
            raise ValueError("a decision that no API server has taken has no time")
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
    """What a freeze is for; empty lists mean everything."""

    targets: tuple[Glob, ...] = Field(default=(), max_length=64)
    """Patterns over targets, as ``namespace/name``."""
    kernels: tuple[Glob, ...] = Field(default=(), max_length=64)
    """Patterns over kernel names."""


class TuningFreezeSpec(ApiModel):
    """A stop sign: while it stands nothing starts."""

    stop_policy: StopPolicy = StopPolicy.HOLD
    """What becomes of swaps under way."""
    scope: FreezeScope = FreezeScope()
    """What it is for."""
    until: AwareDatetime | None = None
    """When it ends by itself; None stands until it is deleted."""
    reason: Note = ""
    """Why."""
    user: User
    """Who; admission refuses another name than the requester's."""


class TuningFreezeStatus(ApiModel):
    """What it holds."""

    conditions: tuple[Condition, ...] = Field(
        default=(), max_length=4, json_schema_extra={"x-map-key": "type"}
    )
    """What is true of it."""


class TuningFreeze(ApiModel):
    """A stop sign for the whole cluster or a part of it; its existence is what counts."""

    api_version: Literal["retuned.dev/v1alpha1"]
    kind: Literal["TuningFreeze"]
    metadata: ObjectMeta
    """Name."""
    spec: TuningFreezeSpec
    """What is frozen."""
    status: TuningFreezeStatus = TuningFreezeStatus()
    """What it holds."""

    def stage_freeze(self) -> gate.TuningFreeze:
        """Return the record that the gate reads.

        Raises
        ------
        ValueError
            If the object is not from an API server, and so has no time.
        """
        at = self.metadata.creation_timestamp
        if at is None:
            raise ValueError("a freeze that no API server has taken has no time")
        return gate.TuningFreeze(
            id=self.metadata.name,
            stop_policy=self.spec.stop_policy,
            scope=gate.FreezeScope(**self.spec.scope.model_dump()),
            until=self.spec.until,
            reason=self.spec.reason,
            user=self.spec.user,
            at=at,
        )

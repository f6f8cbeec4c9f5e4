"""SwapProposal: a proven win that policy and people decide on, and how it spreads over pods."""

from __future__ import annotations

from typing import Literal

from pydantic import AwareDatetime, Field

from retuned.contract import Digest, Guard, TrustClass
from retuned.stages.proposal import Proposal, Risk, proposal_id
from retuned.stages.verdict import Interval
from retuned_operator.crds.proposal_status import SwapProposalStatus
from retuned_operator.crds.values import (
    Abort,
    ApiModel,
    KernelName,
    LocalRef,
    Model,
    Note,
    ObjectMeta,
    ObjectName,
    User,
)


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

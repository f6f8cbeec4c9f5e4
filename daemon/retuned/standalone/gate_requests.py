"""What the gate says of a proposal right now, and to which phase an answer leads."""

from __future__ import annotations

from retuned.contract import Digest
from retuned.stages import gate as gate_stage
from retuned.stages.gate import (
    GateDecision,
    GateReason,
    GateState,
    PolicyLimits,
    limits_of,
    policy_for,
)
from retuned.stages.proposal import Proposal
from retuned.standalone.context import Context, RecordKind
from retuned.store.approvals import Approvals

_PHASES = {
    GateState.APPROVED: "approved",
    GateState.REJECTED: "rejected",
    GateState.EXPIRED: "expired",
}
"""Where an answer leads; all others leave a proposal waiting."""


def ask(ctx: Context, proposal: Proposal) -> GateDecision:
    """Ask the policy on fresh facts.

    Raises
    ------
    UnreadableInput
        If what people said cannot be understood: it may be a rejection or a freeze.
    """
    people = Approvals(ctx.store)
    now = ctx.clock.now()
    choice = gate_stage.select_policy(ctx.policies(), proposal, labels=ctx.labels)
    return gate_stage.decide(
        proposal,
        policy=choice.policy,
        policy_digest=choice.digest,
        decisions=people.decisions(proposal.id),
        freezes=people.freezes(now=now),
        env=ctx.labels.get("env", ""),
        now=now,
        absent=choice.reason or GateReason.NO_POLICY,
    )


def under_policy(ctx: Context, proposal: Proposal) -> Proposal:
    """Return a new proposal with the time that the policy in force leaves people for it."""
    choice = gate_stage.select_policy(ctx.policies(), proposal, labels=ctx.labels)
    return gate_stage.under(proposal, choice.policy, env=ctx.labels.get("env", ""))


def policy_limits(ctx: Context, definition: str) -> PolicyLimits | None:
    """Return what the policy that decides about a kernel says outside the gate; None without one.

    Without a policy nothing is ever swapped, but what would be gained may be found out.
    """
    policy = policy_for(ctx.policies(), definition, labels=ctx.labels).policy
    return limits_of(policy) if policy is not None else None


def phase_of(answer: GateDecision) -> str:
    """Return the phase of a proposal that is not swapped yet."""
    if answer.reason is GateReason.ABORTED:
        return "aborted"
    return _PHASES.get(answer.state, "awaiting")


def evidence_expired(ctx: Context, proposal: Proposal) -> bool:
    """Whether a proposal was measured in another environment than this, or nobody knows where."""
    return measured_in(ctx, proposal) != ctx.environment


def measured_in(ctx: Context, proposal: Proposal) -> Digest | None:
    """Return the environment of a proposal; one of an earlier version has it in its experiment."""
    if proposal.environment is not None:
        return proposal.environment
    stored = ctx.store.get(RecordKind.EXPERIMENT, proposal.experiment)
    return str(stored.body["environment"]) if stored is not None else None

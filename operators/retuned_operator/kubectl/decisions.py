"""Make a person's decision, and find reasons why it can have no effect or may not count. Pure.

Only the gate decides, and the API server authenticates the caller. This module refuses decisions
that could have no effect.
"""

from __future__ import annotations

from retuned.api.decision import SwapDecisionSpec
from retuned.api.proposal import GateStatus, ProposalPhase
from retuned.api.values import UidRef
from retuned.control import decisions
from retuned.control.decisions import DecisionFacts, warnings_for
from retuned.errors import Refused, UsageError
from retuned.stages.gate import Approvals, DecisionKind, Mode
from retuned.text import short_id
from retuned_operator.kubectl.cluster_session import KubernetesUser, full_name, groups_for
from retuned_operator.manifests.names import child_name
from retuned_operator.schema import (
    API_VERSION,
    ObjectMeta,
    PolicyObject,
    SwapDecision,
    SwapProposal,
)

_PREFIX = {
    DecisionKind.APPROVE: "approve",
    DecisionKind.REJECT: "reject",
    DecisionKind.ABORT: "abort",
    DecisionKind.BREAK_GLASS: "break-glass",
}


def check_phase(proposal: SwapProposal, kind: DecisionKind, *, back: bool = False) -> None:
    """Refuse a decision that has no effect; see `retuned.control.decisions.check_phase`."""
    phase, name = proposal.status.phase, full_name(proposal)
    decisions.check_phase(phase, kind, name=name, program="kubectl retuned", back=back)


def check_digest(proposal: SwapProposal, digest: str) -> None:
    """Refuse where the artifact is not the one that the person saw.

    Raises
    ------
    Refused
        With the artifact that it is.
    """
    artifact = proposal.spec.artifact.digest
    if digest and digest.strip().lower().removeprefix("sha256:") != short_id(artifact, length=64):
        raise Refused(
            f"the artifact is {artifact}, not {digest[:80]!r}; look again with "
            "`kubectl retuned show` before you approve"
        )


def check_policy(
    proposal: SwapProposal, policy: PolicyObject, *, kind: DecisionKind, comment: str
) -> GateStatus:
    """Return the gate's answer that an approval is given under, or refuse what has no effect.

    Parameters
    ----------
    proposal
        As it stands.
    policy
        As it stands; the operator may have judged by an earlier one.
    kind
        ``Approve`` or ``BreakGlass``.
    comment
        Why.

    Raises
    ------
    Refused
        If the policy only observes, has changed since, or does not allow break-glass.
    UsageError
        If the policy requires a comment and there is none.
    """
    gate, spec = proposal.status.gate, policy.spec
    seen = (gate.policy_generation, gate.policy_digest) if gate else None
    if gate is None or seen != (policy.metadata.generation, policy.stage_policy().digest):
        raise Refused(
            f"policy {policy.metadata.name} has changed since the operator judged "
            f"{full_name(proposal)}; look again in a minute with `kubectl retuned show`"
        )
    if spec.mode is Mode.OBSERVE_ONLY:
        raise Refused(f"policy {policy.metadata.name} only observes; an approval has no effect")
    if kind is DecisionKind.BREAK_GLASS and not spec.break_glass.enabled:
        raise Refused(f"policy {policy.metadata.name} has no breakGlass")
    asked = _asked(policy, gate)
    wants = kind is DecisionKind.BREAK_GLASS or (asked is not None and asked.require_comment)
    if wants and not comment.strip():
        raise UsageError(f"policy {policy.metadata.name} asks for a reason: --comment '...'")
    return gate


def warnings(
    proposal: SwapProposal,
    policy: PolicyObject,
    who: KubernetesUser,
    *,
    kind: DecisionKind,
    comment: str,
) -> tuple[str, ...]:
    """Return why the gate may not count a decision; see `warnings_for`."""
    gate = proposal.status.gate
    facts = DecisionFacts(
        requested_by=proposal.spec.requested_by,
        missing_from=gate.missing_from if gate else (),
        received=gate.received if gate else (),
        dry_run=policy.spec.mode is Mode.DRY_RUN,
        break_glass_group=policy.spec.break_glass.group,
    )
    return warnings_for(facts, kind, user=who.user, groups=who.groups, comment=comment)


def decision_of(
    proposal: SwapProposal,
    who: KubernetesUser,
    *,
    kind: DecisionKind,
    comment: str,
    gate: GateStatus | None,
    channel: str = "kubectl",
) -> SwapDecision:
    """Write a person's word; the same word twice is one object.

    An approval that ends a pause is another one than the approval before it.
    """
    metadata, spec = proposal.metadata, proposal.spec
    policy = gate.policy_digest if gate else None
    paused = proposal.status.phase is ProposalPhase.PAUSED and proposal.status.history
    since = proposal.status.history[-1].at.isoformat() if paused else ""
    name = child_name(
        _PREFIX[kind],
        *(metadata.uid, spec.artifact.digest, who.user, comment, policy or "", since),
        gate.policy_generation if gate else 0,
    )
    return SwapDecision(
        api_version=API_VERSION,
        kind="SwapDecision",
        metadata=ObjectMeta(name=name, namespace=metadata.namespace),
        spec=SwapDecisionSpec(
            proposal_ref=UidRef(name=metadata.name, uid=metadata.uid),
            digest=spec.artifact.digest,
            decision=kind,
            user=who.user,
            groups=groups_for(who, gate.missing_from if gate else ()),
            comment=comment,
            channel=channel,
            policy_generation=gate.policy_generation if gate else 0,
            policy_digest=policy,
        ),
    )


def _asked(policy: PolicyObject, gate: GateStatus) -> Approvals | None:
    found = next((each for each in policy.spec.gates if each.name == gate.name), None)
    return found.approvals if found else None

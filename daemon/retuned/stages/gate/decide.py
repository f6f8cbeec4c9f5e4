"""The gate decision: what the policy requires for a proposal right now, as record and sentence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from retuned.contract import Digest, TrustClass
from retuned.stages.gate.limits import LiveProofMode
from retuned.stages.gate.policy import Approvals, Gate, KernelTuningPolicy, Mode
from retuned.stages.gate.quorum import Quorum, breaks_glass, count
from retuned.stages.gate.records import (
    DecisionKind,
    GateDecision,
    GateReason,
    GateState,
    Ignored,
    SwapDecision,
    TuningFreeze,
)
from retuned.stages.gate.windows import WindowState, both, judge_windows
from retuned.stages.proposal import Proposal, Risk


def utc_minute(moment: datetime) -> str:
    """Format a moment for people: to the minute, in UTC.

    Examples
    --------
    >>> utc_minute(datetime.fromisoformat("2026-11-18T15:00:59+01:00"))
    '2026-11-18 14:00 UTC'
    """
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def explain(decision: GateDecision) -> str:
    """Describe the state of a proposal, its reason, and what would change it."""
    head = _HEADS[decision.state]
    parts = [head]
    if decision.policy and decision.state is not GateState.EXPIRED:
        gate = f", gate {decision.gate}" if decision.gate else ""
        parts.append(f"(policy {decision.policy}{gate})")
    why = _why(decision)
    text = " ".join(parts) + (f": {why}" if why else "")
    if decision.ignored:
        refused = ", ".join(f"{i.user} ({i.reason})" for i in decision.ignored)
        text += f"; not counted: {refused}"
    if decision.next_change_at is not None and decision.state is not GateState.APPROVED:
        text += f"; next change {utc_minute(decision.next_change_at)}"
    return text + "."


_HEADS = {
    GateState.WAITING: "Waiting",
    GateState.APPROVED: "Approved",
    GateState.REJECTED: "Rejected",
    GateState.EXPIRED: "Expired without a swap",
    GateState.FROZEN: "Agreed, but frozen",
    GateState.SCHEDULED: "Agreed, but outside the change windows",
    GateState.OBSERVE_ONLY: "Observed only, nothing is swapped",
}


def _why(decision: GateDecision) -> str:
    if decision.reason in {GateReason.MISSING_APPROVALS, GateReason.NEEDS_PERSON}:
        whom = " or ".join(decision.missing_from) or "anyone but the requester"
        have = f"{len(decision.received)} of {decision.required} approvals"
        why = f"{have}, {decision.missing} more from {whom}"
        if decision.reason is GateReason.NEEDS_PERSON:
            why += ", because generated source and high risk always require a person"
        return why
    if decision.reason is GateReason.QUORUM:
        return "by " + ", ".join(decision.received)
    if decision.reason is GateReason.BREAK_GLASS:
        return f"break-glass by {decision.received[0]}"
    if decision.reason is GateReason.AUTOMATIC:
        return "the gate requires no approval"
    return decision.detail


def decide(
    proposal: Proposal,
    *,
    policy: KernelTuningPolicy | None,
    policy_digest: Digest | None,
    decisions: Sequence[SwapDecision],
    freezes: Sequence[TuningFreeze],
    env: str,
    now: datetime,
    absent: GateReason | None = None,
) -> GateDecision:
    """Decide the state of a proposal at `now`.

    It fails closed: missing, unknown or ambiguous input never gives ``approved``. Rollbacks and
    aborts are not gated.

    Parameters
    ----------
    policy
        The selected one; None waits.
    policy_digest
        Its digest. Approvals that name another one do not count.
    decisions
        Decisions about the proposal; those about other proposals are ignored.
    freezes
        Every freeze that has not been lifted.
    env
        Environment of the target, such as ``prod``.
    now
        Moment, with a zone.
    absent
        Reason code if `policy` is None; ``no-policy`` unless given.
    """
    case = _Case(
        proposal=proposal,
        policy=policy,
        policy_digest=policy_digest,
        decisions=tuple(d for d in decisions if d.proposal == proposal.id),
        freezes=tuple(freezes),
        env=env,
        now=now,
    )
    stopped = _stopped(case) or _expired(case)
    if stopped is not None:
        return stopped
    if policy is None:
        reason = absent or GateReason.NO_POLICY
        return case.answer(
            GateState.WAITING, reason, detail="no policy matches, so nothing is swapped"
        )
    if policy.spec.mode is Mode.OBSERVE_ONLY:
        return case.answer(GateState.OBSERVE_ONLY, GateReason.OBSERVE_ONLY)
    answer = _below_floor(case, policy) or _agreed(case, policy)
    if policy.spec.mode is Mode.DRY_RUN:
        return answer.model_copy(
            update={
                "state": GateState.OBSERVE_ONLY,
                "reason": GateReason.DRY_RUN,
                "detail": f"would be {answer.state} ({answer.reason}) {answer.detail}".strip(),
            }
        )
    return answer


def gate_for(proposal: Proposal, policy: KernelTuningPolicy | None, *, env: str) -> Gate | None:
    """Return the first gate whose condition matches, or None."""
    for gate in policy.spec.gates if policy else ():
        risks, envs = gate.when.risk, gate.when.env
        if (risks is None or proposal.risk in risks) and (envs is None or env in envs):
            return gate
    return None


def under(proposal: Proposal, policy: KernelTuningPolicy | None, *, env: str) -> Proposal:
    """Return a copy of the proposal that expires when its gate's time limit ends.

    Pages, notifications and alerts use the copy to show the effective expiry.
    """
    gate = gate_for(proposal, policy, env=env)
    if gate is None:
        return proposal
    ends = min(proposal.expires_at, proposal.created_at + gate.approvals.ttl)
    return proposal.model_copy(update={"expires_at": ends})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """The inputs of one decision, and the method that makes it."""

    proposal: Proposal
    policy: KernelTuningPolicy | None
    policy_digest: Digest | None
    decisions: tuple[SwapDecision, ...]
    freezes: tuple[TuningFreeze, ...]
    env: str
    now: datetime
    quorum: Quorum | None = None
    required: int = 0

    @property
    def gate(self) -> Gate | None:
        return gate_for(self.proposal, self.policy, env=self.env)

    @property
    def deadline(self) -> datetime:
        """After this it is expired."""
        return under(self.proposal, self.policy, env=self.env).expires_at

    def answer(
        self,
        state: GateState,
        reason: GateReason,
        *,
        detail: str = "",
        next_change_at: datetime | None = None,
    ) -> GateDecision:
        """Make the gate decision, with the fields that every one has."""
        over = state in {GateState.REJECTED, GateState.EXPIRED}
        return GateDecision(
            proposal=self.proposal.id,
            digest=self.proposal.artifact,
            state=state,
            reason=reason,
            policy=self.policy.full_name if self.policy else "",
            policy_digest=self.policy_digest if self.policy else None,
            gate=self.gate.name if self.gate else "",
            required=self.required,
            received=self.quorum.counted if self.quorum else (),
            missing=self.quorum.missing if self.quorum else 0,
            missing_from=self.quorum.missing_from if self.quorum else (),
            ignored=self.quorum.ignored if self.quorum else (),
            next_change_at=None if over else min(next_change_at or self.deadline, self.deadline),
            evaluated_at=self.now,
            detail=detail,
            live_proof=self.policy.spec.live_proof if self.policy else None,
        )


def _stopped(case: _Case) -> GateDecision | None:
    """Return the decision that one rejection or abort of this artifact causes, at any time.

    A clock that was set back must not cancel it; the proposal's id identifies its subject.
    """
    for decision in sorted(case.decisions, key=lambda d: (d.at, d.user, d.decision)):
        ends = decision.decision in {DecisionKind.REJECT, DecisionKind.ABORT}
        same = decision.digest == case.proposal.artifact
        if ends and same:
            rejected = decision.decision is DecisionKind.REJECT
            reason = GateReason.REJECTED_BY_PERSON if rejected else GateReason.ABORTED
            said = f"by {decision.user}" + (f": {decision.comment}" if decision.comment else "")
            return case.answer(GateState.REJECTED, reason, detail=said)
    return None


def _expired(case: _Case) -> GateDecision | None:
    if case.now < case.deadline:
        return None
    return case.answer(
        GateState.EXPIRED, GateReason.EXPIRED, detail=f"at {case.deadline.isoformat()}"
    )


def _below_floor(case: _Case, policy: KernelTuningPolicy) -> GateDecision | None:
    """Apply the floor that no approval overrides; missing data never promotes."""
    floor, speedup = policy.spec.validation, case.proposal.speedup
    if case.proposal.evidence is None:
        return case.answer(
            GateState.WAITING,
            GateReason.MISSING_EVIDENCE,
            detail="the proposal carries no raw numbers, so it cannot be verified",
        )
    if speedup.confidence < floor.confidence:
        return case.answer(
            GateState.REJECTED,
            GateReason.CONFIDENCE_TOO_LOW,
            detail=f"confidence {speedup.confidence:g}, the policy requires {floor.confidence:g}",
        )
    if speedup.lower < floor.min_speedup:
        return case.answer(
            GateState.REJECTED,
            GateReason.BELOW_MIN_SPEEDUP,
            detail=f"lower bound {speedup.lower:.3f}x, the policy requires {floor.min_speedup:g}x",
        )
    return None


def _agreed(case: _Case, policy: KernelTuningPolicy) -> GateDecision:
    """Check the quorum first, then freezes and windows: approvals count during a freeze."""
    glass, unglassed = breaks_glass(
        case.decisions,
        proposal=case.proposal,
        rule=policy.spec.break_glass,
        policy_digest=case.policy_digest,
        now=case.now,
    )
    gate = case.gate
    if gate is None:
        quorum = Quorum(counted=(), missing=0, missing_from=(), ignored=())
        required = 0
    else:
        required, approvals = _asked(case, gate)
        quorum = count(
            case.decisions,
            proposal=case.proposal,
            approvals=approvals,
            required=required,
            policy_digest=case.policy_digest,
            now=case.now,
        )
    counted = replace(case, quorum=_with(quorum, glass, unglassed), required=required)
    if glass is not None:
        return _door(counted, policy, reason=GateReason.BREAK_GLASS)
    if gate is None:
        return counted.answer(
            GateState.WAITING, GateReason.NO_GATE, detail="no gate of the policy matches it"
        )
    if quorum.missing:
        person_only = required > gate.approvals.required
        reason = GateReason.NEEDS_PERSON if person_only else GateReason.MISSING_APPROVALS
        return counted.answer(GateState.WAITING, reason)
    return _door(counted, policy, reason=GateReason.QUORUM if required else GateReason.AUTOMATIC)


def _asked(case: _Case, gate: Gate) -> tuple[int, Approvals]:
    """Require a person for generated source and high risk, whatever the gate allows."""
    rule = gate.approvals
    if case.proposal.trust is TrustClass.GENERATED or case.proposal.risk is Risk.HIGH:
        people_only = rule.model_copy(update={"allow_service_accounts": False})
        return max(rule.required, 1), people_only
    return rule.required, rule


def _with(quorum: Quorum, glass: str | None, unglassed: tuple[Ignored, ...]) -> Quorum:
    if glass is None:
        return replace(quorum, ignored=quorum.ignored + unglassed)
    return replace(quorum, counted=(glass,), missing=0, missing_from=())


def windows_of(policy: KernelTuningPolicy, *, now: datetime) -> WindowState:
    """Return when a swap of this policy may start: its windows, and those of its live proof."""
    swaps, rule = judge_windows(policy.spec.windows, now=now), policy.spec.live_proof
    if rule.mode is LiveProofMode.OFF or not rule.windows:
        return swaps
    return both(swaps, judge_windows(rule.windows, now=now))


def _door(case: _Case, policy: KernelTuningPolicy, *, reason: GateReason) -> GateDecision:
    """Decide whether an approved swap may start now.

    Break-glass overrides allow windows, never a deny window or a freeze.
    """
    standing = [
        freeze
        for freeze in case.freezes
        if (freeze.until is None or case.now < freeze.until)
        and freeze.scope.covers(target=case.proposal.target, kernel=case.proposal.definition)
    ]
    if standing:
        ends = [freeze.until for freeze in standing if freeze.until is not None]
        return case.answer(
            GateState.FROZEN,
            GateReason.FROZEN,
            detail="; ".join(f"{f.id} by {f.user} {f.reason}".strip() for f in standing),
            next_change_at=max(ends) if len(ends) == len(standing) else None,
        )
    windows = windows_of(policy, now=case.now)
    broken = reason is GateReason.BREAK_GLASS and not windows.denied
    if not windows.allowed and not broken:
        return case.answer(
            GateState.SCHEDULED,
            GateReason.WINDOW_CLOSED,
            detail=windows.why,
            next_change_at=windows.next_change_at,
        )
    return case.answer(
        GateState.APPROVED,
        reason,
        detail=windows.why,
        next_change_at=windows.next_change_at if windows.allowed else None,
    )

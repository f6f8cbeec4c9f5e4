"""The gate's answer as one sentence for a person."""

from __future__ import annotations

from datetime import UTC, datetime

from retuned.stages.gate.records import GateDecision, GateReason, GateState


def utc_minute(moment: datetime) -> str:
    """Write a moment as people are told it: to the minute, in UTC.

    Examples
    --------
    >>> utc_minute(datetime.fromisoformat("2026-11-18T15:00:59+01:00"))
    '2026-11-18 14:00 UTC'
    """
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def explain(decision: GateDecision) -> str:
    """Say where a proposal stands, why, and what would change it.

    Parameters
    ----------
    decision
        The gate's answer.
    """
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
        whom = " or ".join(decision.missing_from) or "anybody but the requester"
        have = f"{len(decision.received)} of {decision.required} approvals"
        why = f"{have}, {decision.missing} more from {whom}"
        if decision.reason is GateReason.NEEDS_PERSON:
            why += ", because generated source and high risk always need a person"
        return why
    if decision.reason is GateReason.QUORUM:
        return "by " + ", ".join(decision.received)
    if decision.reason is GateReason.BREAK_GLASS:
        return f"broken glass by {decision.received[0]}"
    if decision.reason is GateReason.AUTOMATIC:
        return "the gate asks for no person"
    return decision.detail

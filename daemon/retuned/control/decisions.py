"""Warnings before a decision: why the gate may not count it. Pure.

The gate alone decides; a warning changes nothing. The command line and the review page of one
machine and of a cluster show the same warnings.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from retuned.stages.gate import DecisionKind, person


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionFacts:
    """State of a proposal from its last gate decision and its policy."""

    requested_by: str
    """User who requested the swap."""
    missing_from: Sequence[str] = ()
    """Entries whose approval is still needed, such as ``group sre-oncall``; empty means anyone."""
    received: Sequence[str] = ()
    """Users whose approval counts already."""
    dry_run: bool = False
    """Whether the policy counts decisions but does not swap."""
    break_glass_group: str | None = None
    """Only group that may use break-glass; None if the caller does not know it."""


def warnings_for(
    facts: DecisionFacts,
    kind: DecisionKind,
    *,
    user: str,
    groups: Collection[str],
    comment: str,
) -> tuple[str, ...]:
    """Return why the gate may not count a decision, one sentence for each reason.

    Examples
    --------
    >>> facts = DecisionFacts(requested_by="ada", missing_from=["group sre"])
    >>> warnings_for(facts, DecisionKind.APPROVE, user="Ada", groups=["sre"], comment="")
    ('you requested this swap yourself',)
    """
    found = []
    if person(user) == person(facts.requested_by):
        found.append("you requested this swap yourself")
    entries = {f"user {user}", *(f"group {group}" for group in groups)}
    if kind is DecisionKind.APPROVE:
        if facts.missing_from and entries.isdisjoint(facts.missing_from):
            wanted = " or ".join(facts.missing_from)
            found.append(f"approval is still needed from {wanted}; you are not a member")
        if any(person(user) == person(each) for each in facts.received):
            found.append("your approval counts already; each person counts once")
    if kind is DecisionKind.BREAK_GLASS:
        group = facts.break_glass_group
        if group is not None and group not in groups:
            found.append(f"only members of group {group} may use break-glass")
        if not comment.strip():
            found.append("break-glass needs a --comment")
    if facts.dry_run:
        found.append("the policy is a dry run: your decision is counted, but nothing is swapped")
    return tuple(found)

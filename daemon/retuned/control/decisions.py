"""Decisions of people: in which phase one has an effect, and why the gate may not count it. Pure.

The gate alone decides; a warning changes nothing. The command line and the review page of one
machine and of a cluster refuse and warn alike.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from retuned.api.proposal import ProposalPhase
from retuned.errors import Refused
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


AGREES = (DecisionKind.APPROVE, DecisionKind.BREAK_GLASS)
"""Decisions for a swap."""


def check_phase(
    phase: ProposalPhase, kind: DecisionKind, *, name: str, program: str, back: bool = False
) -> None:
    """Refuse a decision that is too late or too early to have an effect.

    Parameters
    ----------
    phase
        Of the proposal.
    kind
        The decision.
    name
        Name of the proposal, for the message.
    program
        Command that people use here, such as ``kubectl retuned``.
    back
        Whether a swap is to be rolled back, rather than something ended before or during it.

    Raises
    ------
    Refused
        With the phase, and what can be done instead.
    """
    swapped = phase.is_under_way or phase.is_going_back or phase is ProposalPhase.PROMOTED
    if phase.is_going_back and kind not in AGREES:
        raise Refused(f"{name} is {phase} already")
    if back and not swapped:
        raise Refused(f"{name} is {phase}; there is nothing to roll back")
    if kind in AGREES and (phase.is_terminal or phase.is_going_back):
        raise Refused(f"{name} is {phase}; nothing can be approved any more")
    if kind is DecisionKind.REJECT and not phase.is_before_swap:
        raise Refused(f"{name} is {phase}; `{program} rollback` rolls a swap back")
    if kind is DecisionKind.ABORT and phase.is_terminal and not swapped:
        raise Refused(f"{name} is {phase}; there is nothing to stop")


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

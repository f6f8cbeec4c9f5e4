"""Quorum: which approvals count, and whether they suffice."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from retuned.contract import Digest
from retuned.stages.gate.policy import Approvals, Approver, BreakGlass
from retuned.stages.gate.records import DecisionKind, Ignored, IgnoredReason, SwapDecision
from retuned.stages.proposal import Proposal


@dataclass(frozen=True, slots=True, kw_only=True)
class Quorum:
    """The result of counting approvals."""

    counted: tuple[str, ...]
    """Users whose approval counts, by time."""
    missing: int
    """How many more are needed."""
    missing_from: tuple[str, ...]
    """Who may give them; empty means any user."""
    ignored: tuple[Ignored, ...]


def person(user: str) -> str:
    """Fold a user name so that all spellings of one person are equal.

    Examples
    --------
    >>> person(" Ada ") == person("ada")
    True
    """
    return unicodedata.normalize("NFKC", user).strip().casefold()


def is_program(user: str) -> bool:
    """Whether the name is a service account or Retuned itself, not a person."""
    return person(user).startswith("system:") or person(user) in {"retuned", ""}


def unbound(
    decision: SwapDecision, *, proposal: Proposal, policy_digest: Digest | None, now: datetime
) -> IgnoredReason | None:
    """Return why a decision does not cover this proposal, artifact, policy and time, or None."""
    if decision.digest != proposal.artifact:
        return IgnoredReason.OTHER_DIGEST
    if decision.at < proposal.created_at:
        return IgnoredReason.BEFORE_PROPOSAL
    if decision.at > now:
        return IgnoredReason.IN_THE_FUTURE
    if policy_digest is None or decision.policy_digest != policy_digest:
        return IgnoredReason.OTHER_POLICY
    return None


def count(
    decisions: Sequence[SwapDecision],
    *,
    proposal: Proposal,
    approvals: Approvals,
    required: int,
    policy_digest: Digest | None,
    now: datetime,
) -> Quorum:
    """Count the approvals of one proposal.

    Parameters
    ----------
    decisions
        All decisions about the proposal; only approvals count.
    required
        Approvals that are needed; may be more than the gate requires.
    """
    ignored: list[Ignored] = []
    good: dict[str, SwapDecision] = {}
    for decision in sorted(decisions, key=lambda d: (d.at, d.user)):
        if decision.decision is not DecisionKind.APPROVE:
            continue
        why = unbound(
            decision, proposal=proposal, policy_digest=policy_digest, now=now
        ) or _ineligible(decision, proposal=proposal, approvals=approvals)
        if why is None:
            good.setdefault(person(decision.user), decision)
        else:
            ignored.append(Ignored(user=decision.user, reason=why))
    taken = _taken(list(good.values()), approvals)
    counted = tuple(d.user for name, d in good.items() if name in taken)
    ignored += [
        Ignored(user=d.user, reason=IgnoredReason.SAME_GROUP)
        for name, d in good.items()
        if name not in taken
    ]
    missing = max(0, required - len(counted))
    free = {str(e) for e in approvals.from_} - set(taken.values())
    return Quorum(
        counted=counted,
        missing=missing,
        missing_from=tuple(sorted(free)) if missing else (),
        ignored=tuple(ignored),
    )


def breaks_glass(
    decisions: Sequence[SwapDecision],
    *,
    proposal: Proposal,
    rule: BreakGlass,
    policy_digest: Digest | None,
    now: datetime,
) -> tuple[str | None, tuple[Ignored, ...]]:
    """Return the user whose break-glass counts, or None, and those whose does not."""
    ignored: list[Ignored] = []
    for decision in sorted(decisions, key=lambda d: (d.at, d.user)):
        if decision.decision is not DecisionKind.BREAK_GLASS:
            continue
        why = unbound(decision, proposal=proposal, policy_digest=policy_digest, now=now)
        if why is None and not (rule.enabled and rule.group in decision.groups):
            why = IgnoredReason.NO_BREAK_GLASS
        if why is None and is_program(decision.user):
            why = IgnoredReason.SERVICE_ACCOUNT
        if why is None and person(decision.user) == person(proposal.requested_by):
            why = IgnoredReason.REQUESTER
        if why is None and rule.require_comment and not decision.comment.strip():
            why = IgnoredReason.NO_COMMENT
        if why is None:
            return decision.user, tuple(ignored)
        ignored.append(Ignored(user=decision.user, reason=why))
    return None, tuple(ignored)


def _ineligible(
    decision: SwapDecision, *, proposal: Proposal, approvals: Approvals
) -> IgnoredReason | None:
    if approvals.exclude_requester and person(decision.user) == person(proposal.requested_by):
        return IgnoredReason.REQUESTER
    if not approvals.allow_service_accounts and is_program(decision.user):
        return IgnoredReason.SERVICE_ACCOUNT
    if approvals.require_comment and not decision.comment.strip():
        return IgnoredReason.NO_COMMENT
    if approvals.from_ and not any(_is_one_of(decision, entry) for entry in approvals.from_):
        return IgnoredReason.NOT_AN_APPROVER
    return None


def _is_one_of(decision: SwapDecision, entry: Approver) -> bool:
    if entry.user is not None:
        return person(entry.user) == person(decision.user)
    return entry.group in decision.groups


def _taken(people: Sequence[SwapDecision], approvals: Approvals) -> Mapping[str, str]:
    """Return which person fills which entry; without `distinctGroups` each approver counts."""
    if not approvals.distinct_groups:
        return {person(p.user): "" for p in people}
    filled: dict[str, SwapDecision] = {}
    for someone in people:
        _seat(someone, filled=filled, entries=approvals.from_, seen=set())
    return {person(p.user): entry for entry, p in filled.items()}


def _seat(
    someone: SwapDecision,
    *,
    filled: dict[str, SwapDecision],
    entries: Sequence[Approver],
    seen: set[str],
) -> bool:
    """Assign an approver to an entry, moving others that have a choice (augmenting path)."""
    for entry in entries:
        name = str(entry)
        if name in seen or not _is_one_of(someone, entry):
            continue
        seen.add(name)
        holder = filled.get(name)
        if holder is None or _seat(holder, filled=filled, entries=entries, seen=seen):
            filled[name] = someone
            return True
    return False

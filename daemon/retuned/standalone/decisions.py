"""Decisions of people on one machine: by commands, by the review page and by messages.

A decision is a separate record, written once and bound to the artifact that was shown; the daemon
acts on it. This module refuses decisions that could have no effect; the gate alone decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from retuned.api.proposal import ProposalPhase
from retuned.control.decisions import DecisionFacts, check_phase, warnings_for
from retuned.errors import Refused, UnreadableInput
from retuned.ports import Store, Stored
from retuned.stages.gate import (
    DecisionKind,
    GateDecision,
    GateReason,
    SwapDecision,
    explain,
)
from retuned.stages.proposal import Proposal
from retuned.standalone.records import BEFORE_SWAP, GOING_BACK, IN_FORCE
from retuned.store.approvals import Approvals, Identity
from retuned.text import short_id

OPEN = BEFORE_SWAP
"""Phases before a swap."""
SWAPPED = (*IN_FORCE, *GOING_BACK)
"""Phases in which the server may run the artifact."""
ASKS = (str(ProposalPhase.AWAITING_APPROVAL), str(ProposalPhase.PAUSED))
"""Phases in which an approval is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Actor:
    """Who decides, and through which channel."""

    store: Store
    """The state, shared with the daemon."""
    approvals: Approvals
    """People's side of it."""
    who: Identity
    """Who."""
    now: datetime
    """When."""
    channel: str
    """Through what: ``cli``, ``review-page``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingRequest:
    """One request that the daemon has not carried out."""

    request: str
    """Its id."""
    what: str
    """``rollback`` or ``abort``."""
    who: str
    """Who asked."""
    at: str
    """When, ISO 8601."""

    def sentence(self) -> str:
        """Say it in a few words."""
        return f"{self.what} asked by {self.who} at {self.at}"

    def body(self) -> dict[str, Any]:
        """Return its stable JSON."""
        return {"request": self.request, "what": self.what, "who": self.who, "at": self.at}


def read_proposal(stored: Stored) -> Proposal:
    """Return the proposal in a record.

    Raises
    ------
    UnreadableInput
        If it was written by something else.
    """
    try:
        return Proposal.model_validate(stored.body)
    except ValidationError as error:
        raise UnreadableInput(
            "record-unreadable",
            where=f"proposal {short_id(stored.id)}",
            message=f"does not read as a proposal ({error.error_count()} problems)",
        ) from error


def gate_of(store: Store, proposal: str) -> GateDecision | None:
    """Return what the gate said last; None before the daemon has judged it.

    Raises
    ------
    UnreadableInput
        If it was written by something else.
    """
    stored = store.get("gate", proposal)
    if stored is None:
        return None
    try:
        return GateDecision.model_validate(stored.body)
    except ValidationError as error:
        raise UnreadableInput(
            "record-unreadable",
            where=f"gate of {short_id(proposal)}",
            message=f"does not read as a gate decision ({error.error_count()} problems)",
        ) from error


def asked_for(store: Store) -> Mapping[str, Sequence[PendingRequest]]:
    """Return what was asked for and is not done, oldest first, by proposal."""
    found: dict[str, list[PendingRequest]] = {}
    for stored in store.list("request", phase="new"):
        found.setdefault(str(stored.body.get("target")), []).append(_asked(stored))
    return found


def standing(store: Store, proposal: str, *, what: str) -> PendingRequest | None:
    """Return the first pending request of this kind; None without one."""
    waiting = asked_for(store).get(proposal, ())
    return next((asked for asked in waiting if asked.what == what), None)


def approve(
    voice: Actor,
    stored: Stored,
    proposal: Proposal,
    *,
    kind: DecisionKind = DecisionKind.APPROVE,
    comment: str,
) -> SwapDecision:
    """Approve, or break glass, under the policy that the daemon has judged by.

    Raises
    ------
    Refused
        If it is not awaiting, or an approval would have no effect.
    """
    _check_phase(stored, kind)
    gate = gate_of(voice.store, stored.id)
    if gate is None:
        raise Refused(
            "the daemon has not judged it yet, so no policy is known; start `retuned run`"
        )
    if gate.policy_digest is None or gate.reason is GateReason.OBSERVE_ONLY:
        raise Refused(
            f"{explain(gate)} An approval would have no effect; set policy_files, check the file "
            "with `retuned policy check`, and let the daemon look again"
        )
    return _give(voice, proposal, kind=kind, comment=comment, gate=gate)


def reject(voice: Actor, stored: Stored, proposal: Proposal, *, comment: str) -> SwapDecision:
    """Reject; one rejection ends a proposal.

    Raises
    ------
    Refused
        If it was swapped or has ended.
    """
    _check_phase(stored, DecisionKind.REJECT)
    gate = gate_of(voice.store, stored.id)
    return _give(voice, proposal, kind=DecisionKind.REJECT, comment=comment, gate=gate)


def abort(
    voice: Actor, stored: Stored, proposal: Proposal, *, comment: str
) -> tuple[SwapDecision | None, PendingRequest]:
    """Ask for the end of a proposal in any phase; without a decision if the request is pending.

    Raises
    ------
    Refused
        If it has ended.
    """
    before = standing(voice.store, stored.id, what="abort")
    if before is not None:
        return None, before
    _check_phase(stored, DecisionKind.ABORT)
    gate = gate_of(voice.store, stored.id)
    decision = _give(voice, proposal, kind=DecisionKind.ABORT, comment=comment, gate=gate)
    return decision, _ask(voice, stored.id, what="abort", reason=comment)


def rollback(voice: Actor, stored: Stored, *, reason: str) -> tuple[PendingRequest, bool]:
    """Ask for the rollback of a swap; return the request, and whether it is new.

    Raises
    ------
    Refused
        If no server can have it.
    """
    before = standing(voice.store, stored.id, what="rollback")
    if before is not None:
        return before, False
    _check_phase(stored, DecisionKind.ABORT, back=True)
    return _ask(voice, stored.id, what="rollback", reason=reason), True


def _check_phase(stored: Stored, kind: DecisionKind, *, back: bool = False) -> None:
    phase, name = ProposalPhase(stored.phase), short_id(stored.id)
    check_phase(phase, kind, name=name, program="retuned", back=back)


def warnings(
    proposal: Proposal, gate: GateDecision, who: Identity, *, comment: str, kind: DecisionKind
) -> tuple[str, ...]:
    """Return why the gate may not count a decision; see `warnings_for`."""
    facts = DecisionFacts(
        requested_by=proposal.requested_by,
        missing_from=gate.missing_from,
        received=gate.received,
        dry_run=gate.reason is GateReason.DRY_RUN,
    )
    return warnings_for(facts, kind, user=who.user, groups=who.groups, comment=comment)


def _give(
    voice: Actor, proposal: Proposal, *, kind: DecisionKind, comment: str, gate: GateDecision | None
) -> SwapDecision:
    decision = SwapDecision(
        proposal=proposal.id,
        digest=proposal.artifact,
        decision=kind,
        user=voice.who.user,
        groups=voice.who.groups,
        comment=comment,
        channel=voice.channel,
        at=voice.now,
        policy_digest=gate.policy_digest if gate else None,
    )
    voice.approvals.give(decision)
    return decision


def _ask(voice: Actor, proposal: str, *, what: str, reason: str) -> PendingRequest:
    user = voice.who.user
    request = voice.approvals.request(what, target=proposal, who=user, at=voice.now, reason=reason)
    return PendingRequest(request=request, what=what, who=user, at=_seconds(voice.now.isoformat()))


def _asked(stored: Stored) -> PendingRequest:
    body = stored.body
    return PendingRequest(
        request=stored.id,
        what=str(body.get("what", "")),
        who=str(body.get("who", "")),
        at=_seconds(str(body.get("at", ""))),
    )


def _seconds(moment: str) -> str:
    """Leave out the parts of a second of an ISO 8601 time."""
    whole, dot, rest = moment.partition(".")
    return whole + rest.lstrip("0123456789") if dot else moment

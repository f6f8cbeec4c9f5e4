"""The messages about proposals: their records and their sentences, the same on every channel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from pydantic import AwareDatetime, Field

from retuned.contract import Record
from retuned.report.proposal_text import meaning, origin_fields, subject_fields
from retuned.stages.gate import GateDecision, GateState, explain, utc_minute
from retuned.stages.proposal import Proposal, Risk
from retuned.text import clean, short_id


class Event(StrEnum):
    """Events. Stable: webhooks carry them."""

    AWAITING = "awaiting-approval"
    EXPIRING = "expiring"
    """Still waiting, and most of the time is over."""
    SETTLED = "settled"
    """No longer waiting, whatever was decided."""
    SWAPPED = "swapped"
    ROLLED_BACK = "rolled-back"
    ROLLBACK_FAILED = "rollback-failed"
    ROLLBACK_DONE = "rollback-done"


class Standing(StrEnum):
    """What a notice does to an alert or incident."""

    OPEN = "open"
    CLOSE = "close"
    TELL = "tell"
    """Neither; not an alert."""


class Severity(StrEnum):
    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"


class Notice(Record):
    """One message, the same on every channel."""

    key: str = Field(min_length=1, max_length=400)
    """Stable id; a process sends it once."""
    subject: str = Field(min_length=1, max_length=300)
    """What it opens or closes."""
    event: Event
    standing: Standing
    severity: Severity
    proposal: str = Field(min_length=1, max_length=256)
    artifact: str
    """Digest; a decision on another artifact does not count."""
    kernel: str
    target: str
    risk: str
    summary: str = Field(max_length=1000)
    """One sentence: what, how much, how sure, until when."""
    facts: tuple[tuple[str, str], ...] = ()
    """What a person needs to decide, by name, made harmless."""
    review_url: str = ""
    """Page that shows all; opening it decides nothing. Empty without a page."""
    approve_command: str = ""
    """Command that approves exactly this; empty if no approval is missing."""
    reject_command: str = ""
    """Command that rejects it."""
    at: AwareDatetime
    until: AwareDatetime
    """Not sent after this time."""


class Call(Record):
    """One request to a channel; what is secret is added when it is made."""

    method: str = "POST"
    path: str = ""
    """Added to the channel's address."""
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()
    """Besides content type and credentials."""


_MOST = 300
"""Longest fact."""
_TELL_FOR = timedelta(days=1)
_EXPIRING_AT = 0.9
"""Part of its time after which a proposal is about to expire."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Links and commands of messages."""

    review_url: Callable[[str], str] = lambda _: ""
    """Address of a proposal's page, by its id; empty without a page."""
    command: Callable[[str, Proposal], str] = lambda word, proposal: (
        f"retuned {word} {short_id(proposal.id)} --digest {proposal.artifact}"
    )


def awaiting(
    proposal: Proposal, gate: GateDecision, *, place: Place, round: int, now: datetime
) -> Notice | None:
    """Return the request for approvals; None if the gate waits for something else."""
    if gate.state is not GateState.WAITING or not gate.missing or now >= proposal.expires_at:
        return None
    whole = proposal.expires_at - proposal.created_at
    late = now >= proposal.created_at + _EXPIRING_AT * whole
    whom = " or ".join(gate.missing_from) or "anybody"
    asks = f"{gate.missing} approval{'s' if gate.missing > 1 else ''} of {whom}"
    by = utc_minute(proposal.expires_at)
    begin = "Expires soon, asks for" if late else "Asks for"
    text = f"{begin} {asks}: {meaning(proposal)}, until {by}"
    event = Event.EXPIRING if late else Event.AWAITING
    return _notice(
        proposal,
        event=event,
        standing=Standing.OPEN,
        severity=Severity.WARNING if late or proposal.risk is Risk.HIGH else Severity.INFO,
        key=f"{proposal.id}:{event}:{round}",
        summary=text,
        facts=(
            *subject_fields(proposal),
            *origin_fields(proposal, now=now),
            ("gate", explain(gate)),
        ),
        place=place,
        asks=True,
        at=now,
        until=proposal.expires_at,
    )


def settled(
    proposal: Proposal, *, phase: str, by: str, place: Place, round: int, now: datetime
) -> Notice:
    who = f" by {by}" if by else ""
    return _notice(
        proposal,
        event=Event.SETTLED,
        standing=Standing.CLOSE,
        severity=Severity.INFO,
        key=f"{proposal.id}:{Event.SETTLED}:{round}",
        summary=f"Now {phase}{who}: {meaning(proposal)}",
        facts=(("phase", phase), *((("by", by),) if by else ())),
        place=place,
        at=now,
        until=now + 3 * _TELL_FOR,
    )


def swapped(proposal: Proposal, *, place: Place, now: datetime) -> Notice:
    return _notice(
        proposal,
        event=Event.SWAPPED,
        standing=Standing.TELL,
        severity=Severity.INFO,
        key=f"{proposal.id}:{Event.SWAPPED}",
        summary=f"Swapped in, and watched: {meaning(proposal)}",
        facts=(("artifact", proposal.artifact),),
        place=place,
        at=now,
        until=now + _TELL_FOR,
    )


def rolled_back(
    proposal: Proposal,
    *,
    why: str,
    number: int,
    place: Place,
    now: datetime,
    pages: bool = False,
) -> Notice:
    """Report a rollback.

    Parameters
    ----------
    proposal, place, now
        As elsewhere.
    why
        Reason code and detail.
    number
        Counts the rollbacks of the proposal.
    pages
        Whether the server ran a harmful kernel that had been kept.
    """
    return _notice(
        proposal,
        event=Event.ROLLED_BACK,
        standing=Standing.TELL,
        severity=Severity.CRITICAL if pages else Severity.WARNING,
        key=f"{proposal.id}:{Event.ROLLED_BACK}:{number}",
        summary=f"Rolled back ({why or 'no reason kept'}): {meaning(proposal)}",
        facts=(("reason", why), ("artifact", proposal.artifact)),
        place=place,
        at=now,
        until=now + _TELL_FOR,
    )


def rollback_failed(
    proposal: Proposal, *, why: str, place: Place, round: int, now: datetime
) -> Notice:
    return _notice(
        proposal,
        event=Event.ROLLBACK_FAILED,
        standing=Standing.OPEN,
        severity=Severity.CRITICAL,
        key=f"{proposal.id}:{Event.ROLLBACK_FAILED}:{round}",
        subject=failure_of(proposal.id),
        summary=f"The rollback FAILS and is retried ({why}): {meaning(proposal)}",
        facts=(("reason", why), ("artifact", proposal.artifact)),
        place=place,
        at=now,
        until=now + 7 * _TELL_FOR,
    )


def rollback_done(
    proposal: Proposal, *, phase: str, place: Place, round: int, now: datetime
) -> Notice:
    return _notice(
        proposal,
        event=Event.ROLLBACK_DONE,
        standing=Standing.CLOSE,
        severity=Severity.INFO,
        key=f"{proposal.id}:{Event.ROLLBACK_DONE}:{round}",
        subject=failure_of(proposal.id),
        summary=f"The rollback no longer fails, now {phase}: {meaning(proposal)}",
        facts=(("phase", phase),),
        place=place,
        at=now,
        until=now + 3 * _TELL_FOR,
    )


def gone(last: Notice, *, round: int, now: datetime) -> Notice:
    """Close the last opening of a proposal that was deleted."""
    failing = last.event is Event.ROLLBACK_FAILED
    event = Event.ROLLBACK_DONE if failing else Event.SETTLED
    what = "The rollback is retried" if failing else "Asked for"
    return last.model_copy(
        update={
            "key": f"{last.subject}:{event}:{round}",
            "event": event,
            "standing": Standing.CLOSE,
            "severity": Severity.INFO,
            "summary": f"{what} no longer, the proposal is gone: {last.kernel} on {last.target}",
            "facts": (("phase", "gone"),),
            "approve_command": "",
            "reject_command": "",
            "at": now,
            "until": now + 3 * _TELL_FOR,
        }
    )


def failure_of(proposal: str) -> str:
    """Return the subject of a failing rollback, a separate alert."""
    return f"{proposal}/rollback"


def _notice(
    proposal: Proposal,
    *,
    event: Event,
    standing: Standing,
    severity: Severity,
    key: str,
    summary: str,
    facts: tuple[tuple[str, str], ...],
    place: Place,
    at: datetime,
    until: datetime,
    subject: str = "",
    asks: bool = False,
) -> Notice:
    return Notice(
        key=key,
        subject=subject or proposal.id,
        event=event,
        standing=standing,
        severity=severity,
        proposal=proposal.id,
        artifact=proposal.artifact,
        kernel=_cut(proposal.definition),
        target=_cut(proposal.target),
        risk=proposal.risk.value,
        summary=_cut(summary, 1000),
        facts=tuple((name, _cut(text)) for name, text in facts if text),
        review_url=place.review_url(proposal.id),
        approve_command=place.command("approve", proposal) if asks else "",
        reject_command=place.command("reject", proposal) if asks else "",
        at=at,
        until=until,
    )


def _cut(text: str, most: int = _MOST) -> str:
    """Return a text without what steers terminals, short enough for every channel."""
    said = clean(text)
    return said if len(said) <= most else said[: most - 1] + "…"

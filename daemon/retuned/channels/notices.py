"""What there is to say of a proposal now: the one place where messages get their words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from retuned.channels.records import Event, Notice, Severity, Standing
from retuned.report.proposal_text import meaning, origin_fields, subject_fields
from retuned.stages.gate import GateDecision, GateState, explain, utc_minute
from retuned.stages.proposal import Proposal, Risk
from retuned.text import clean, short_id

_MOST = 300
"""Longest fact."""
_TELL_FOR = timedelta(days=1)
_EXPIRING_AT = 0.9
"""Part of its time after which a proposal is about to expire."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where people find a proposal, and what they say there."""

    review_url: Callable[[str], str] = lambda _: ""
    """Address of a proposal's page, by its id; empty where there is none."""
    command: Callable[[str, Proposal], str] = lambda word, proposal: (
        f"retuned {word} {short_id(proposal.id)} --digest {proposal.artifact}"
    )
    """Command that says a word on a proposal."""


def awaiting(
    proposal: Proposal, gate: GateDecision, *, place: Place, round: int, now: datetime
) -> Notice | None:
    """Ask people for their word; None where the gate waits for something else.

    Parameters
    ----------
    round
        How often it was asked for and settled before.
    """
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
    """Say that people are asked no more, and what became of it."""
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
    """Say that a server runs it."""
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
    proposal: Proposal, *, why: str, number: int, place: Place, now: datetime
) -> Notice:
    """Say that a server went back, and why.

    Parameters
    ----------
    number
        How often it has.
    """
    return _notice(
        proposal,
        event=Event.ROLLED_BACK,
        standing=Standing.TELL,
        severity=Severity.WARNING,
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
    """Call for help: a server refuses the way back."""
    return _notice(
        proposal,
        event=Event.ROLLBACK_FAILED,
        standing=Standing.OPEN,
        severity=Severity.CRITICAL,
        key=f"{proposal.id}:{Event.ROLLBACK_FAILED}:{round}",
        subject=failure_of(proposal.id),
        summary=f"The way back FAILS and is tried again ({why}): {meaning(proposal)}",
        facts=(("reason", why), ("artifact", proposal.artifact)),
        place=place,
        at=now,
        until=now + 7 * _TELL_FOR,
    )


def rollback_done(
    proposal: Proposal, *, phase: str, place: Place, round: int, now: datetime
) -> Notice:
    """Say that the way back fails no more."""
    return _notice(
        proposal,
        event=Event.ROLLBACK_DONE,
        standing=Standing.CLOSE,
        severity=Severity.INFO,
        key=f"{proposal.id}:{Event.ROLLBACK_DONE}:{round}",
        subject=failure_of(proposal.id),
        summary=f"The way back fails no more, now {phase}: {meaning(proposal)}",
        facts=(("phase", phase),),
        place=place,
        at=now,
        until=now + 3 * _TELL_FOR,
    )


def gone(last: Notice, *, round: int, now: datetime) -> Notice:
    """Say that what was open is about a proposal that is there no more.

    Parameters
    ----------
    last
        What opened it.
    """
    failing = last.event is Event.ROLLBACK_FAILED
    event = Event.ROLLBACK_DONE if failing else Event.SETTLED
    what = "The way back is asked for" if failing else "Asked for"
    return last.model_copy(
        update={
            "key": f"{last.subject}:{event}:{round}",
            "event": event,
            "standing": Standing.CLOSE,
            "severity": Severity.INFO,
            "summary": f"{what} no more, the proposal is gone: {last.kernel} on {last.target}",
            "facts": (("phase", "gone"),),
            "approve_command": "",
            "reject_command": "",
            "at": now,
            "until": now + 3 * _TELL_FOR,
        }
    )


def failure_of(proposal: str) -> str:
    """Return the subject of a way back that fails: an incident of its own."""
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

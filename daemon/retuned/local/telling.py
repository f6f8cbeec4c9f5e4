"""What channels are to say of this machine's proposals, read from the store at each look.

Level-triggered: what is asked for now is open, what is open and not asked for any more is closed,
and each is kept once under its key. A daemon that was away says what still holds, and nothing else.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from datetime import datetime

from retuned.channels import notices
from retuned.channels.delivering import say
from retuned.channels.notices import Place
from retuned.channels.outbox import Outbox
from retuned.channels.records import Notice
from retuned.channels.sinks import Sink
from retuned.errors import UnreadableInput
from retuned.local.context import RecordKind
from retuned.local.people import gate_of, read_proposal
from retuned.ports import Event, Store, Stored

log = logging.getLogger(__name__)

_NEWEST = 50
"""Swaps and ways back that are looked at, the newest."""
_FAILURE = notices.failure_of("")


def look(
    store: Store, outbox: Outbox, sinks: Sequence[Sink], *, place: Place, now: datetime
) -> int:
    """Put what there is to say into the outbox; return how many messages are new."""
    return sum(say(outbox, notice, sinks, now=now) for notice in _all(store, outbox, place, now))


def _all(store: Store, outbox: Outbox, place: Place, now: datetime) -> Iterator[Notice]:
    yield from _closed(store, outbox, place, now)
    for stored in store.list(RecordKind.PROPOSAL, phase="awaiting"):
        notice = _asked(store, outbox, stored, place, now)
        if notice is not None:
            yield notice
    for stored in store.list(RecordKind.PROPOSAL, phase="rollback-failed"):
        subject = notices.failure_of(stored.id)
        try:
            yield notices.rollback_failed(
                read_proposal(stored),
                why=_why(_events(store, stored.id), "rollback-failed"),
                place=place,
                round=outbox.rounds(subject),
                now=now,
            )
        except UnreadableInput as error:
            log.error("%s", error)
    yield from _happened(store, outbox, place, now)


def _asked(
    store: Store, outbox: Outbox, stored: Stored, place: Place, now: datetime
) -> Notice | None:
    try:
        proposal, gate = read_proposal(stored), gate_of(store, stored.id)
    except UnreadableInput as error:  # nothing is swapped for it either
        log.error("%s", error)
        return None
    if gate is None:
        return None
    rounds = outbox.rounds(stored.id)
    return notices.awaiting(proposal, gate, place=place, round=rounds, now=now)


def _closed(store: Store, outbox: Outbox, place: Place, now: datetime) -> Iterator[Notice]:
    """Close what is open and asked for no more."""
    for subject in outbox.opened():
        failure = subject.endswith(_FAILURE)
        id = subject.removesuffix(_FAILURE) if failure else subject
        stored = store.get(RecordKind.PROPOSAL, id)
        if stored is None or stored.phase == ("rollback-failed" if failure else "awaiting"):
            continue
        try:
            proposal = read_proposal(stored)
        except UnreadableInput as error:
            log.error("%s", error)
            continue
        rounds = outbox.rounds(subject)
        if failure:
            yield notices.rollback_done(
                proposal, phase=stored.phase, place=place, round=rounds, now=now
            )
        else:
            by = _by(_events(store, id))
            yield notices.settled(
                proposal, phase=stored.phase, by=by, place=place, round=rounds, now=now
            )


def _happened(store: Store, outbox: Outbox, place: Place, now: datetime) -> Iterator[Notice]:
    """Say what servers run, and run no more, since there are channels."""
    begun = outbox.begun()
    newest = store.page(RecordKind.PROPOSAL, phases=("watching", "rolled-back"), limit=_NEWEST)
    for stored in newest:
        if stored.updated_at < begun:
            continue
        try:
            proposal = read_proposal(stored)
        except UnreadableInput as error:
            log.error("%s", error)
            continue
        if stored.phase == "watching":
            yield notices.swapped(proposal, place=place, now=now)
            continue
        alarms = [event for event in _events(store, stored.id) if event.what == "alarm"]
        yield notices.rolled_back(
            proposal,
            why=_why(alarms, "alarm"),
            number=len(alarms),
            place=place,
            now=now,
        )


def _events(store: Store, id: str) -> Sequence[Event]:
    return store.events(id=id, limit=200)


def _why(events: Sequence[Event], what: str) -> str:
    """Return the reason of the newest line of a kind."""
    for event in reversed(events):
        if event.what == what:
            said = (str(event.detail.get("reason", "")), str(event.detail.get("detail", "")))
            return ": ".join(text for text in said if text)
    return ""


def _by(events: Sequence[Event]) -> str:
    """Return who said the newest word; empty where time or policy did."""
    said = [event for event in events if event.what.startswith("decision-")]
    return said[-1].who if said else ""

"""Notifications about proposals of one machine, read from the store at each pass.

Level-triggered: a proposal that waits for approvals is open, one that was open and no longer waits
is closed. The sender sends each once. After a restart the daemon reports only what still holds.
"""

from __future__ import annotations

import logging
import pwd
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta

from retuned.api.proposal import ProposalPhase
from retuned.errors import Refused, UnreadableInput
from retuned.notify import inbound, messages
from retuned.notify.inbound import Alert, Arrivals, UsedTokens
from retuned.notify.messages import Notice, Place
from retuned.notify.sender import Sender
from retuned.notify.settings import incoming_of, sinks_of
from retuned.notify.slack import Pressed
from retuned.ports import Clock, Event, Store, Stored, Telemetry
from retuned.report.proposal_text import DECIDED, meaning
from retuned.review.server import PageServer, place_of
from retuned.settings import Settings
from retuned.stages.gate import DecisionKind
from retuned.standalone import decisions
from retuned.standalone.context import RecordKind
from retuned.standalone.decisions import Actor, gate_of, read_proposal
from retuned.standalone.proofs.repeated_proof import CAUSES
from retuned.standalone.records import UNDER_WAY
from retuned.standalone.review_source import key_of
from retuned.store.approvals import Approvals, Identity, identity_of_uid
from retuned.store.sqlite import SqliteStore
from retuned.telemetry.spans import NoSpans

log = logging.getLogger(__name__)

_EVERY_S = 1.0
_NEWEST = 50
"""Swaps and ways back that are looked at, the newest."""
_FAILURE = messages.failure_of("")
_HAPPENED = (*UNDER_WAY, str(ProposalPhase.ROLLED_BACK))


def notices_of(store: Store, sender: Sender, place: Place, now: datetime) -> Iterator[Notice]:
    """Yield the notices that hold now, those that close something first."""
    yield from _closed(store, sender, place, now)
    for stored in store.list(RecordKind.PROPOSAL, phase=ProposalPhase.AWAITING_APPROVAL):
        notice = _asked(store, sender, stored, place, now)
        if notice is not None:
            yield notice
    for stored in store.list(RecordKind.PROPOSAL, phase=ProposalPhase.ROLLBACK_FAILED):
        subject = messages.failure_of(stored.id)
        try:
            yield messages.rollback_failed(
                read_proposal(stored),
                why=_why(_events(store, stored.id), "rollback-failed"),
                place=place,
                round=sender.rounds(subject),
                now=now,
            )
        except UnreadableInput as error:
            log.error("%s", error)
    yield from _happened(store, sender, place, now)


def _asked(
    store: Store, sender: Sender, stored: Stored, place: Place, now: datetime
) -> Notice | None:
    try:
        proposal, gate = read_proposal(stored), gate_of(store, stored.id)
    except UnreadableInput as error:  # nothing is swapped for it either
        log.error("%s", error)
        return None
    if gate is None:
        return None
    rounds = sender.rounds(stored.id)
    return messages.awaiting(proposal, gate, place=place, round=rounds, now=now)


def _closed(store: Store, sender: Sender, place: Place, now: datetime) -> Iterator[Notice]:
    """Close what is open and asked for no more."""
    for subject in sender.opened():
        failure = subject.endswith(_FAILURE)
        id = subject.removesuffix(_FAILURE) if failure else subject
        stored = store.get(RecordKind.PROPOSAL, id)
        still = ProposalPhase.ROLLBACK_FAILED if failure else ProposalPhase.AWAITING_APPROVAL
        if stored is None or stored.phase == still:
            continue
        try:
            proposal = read_proposal(stored)
        except UnreadableInput as error:
            log.error("%s", error)
            continue
        rounds = sender.rounds(subject)
        if failure:
            yield messages.rollback_done(
                proposal, phase=stored.phase, place=place, round=rounds, now=now
            )
        else:
            by = _by(_events(store, id))
            yield messages.settled(
                proposal, phase=stored.phase, by=by, place=place, round=rounds, now=now
            )


def _happened(store: Store, sender: Sender, place: Place, now: datetime) -> Iterator[Notice]:
    """Yield notices of swaps that servers run, or stopped running, since channels exist."""
    begun = sender.begun
    newest = store.page(RecordKind.PROPOSAL, phases=_HAPPENED, limit=_NEWEST)
    for stored in newest:
        if stored.updated_at < begun:
            continue
        try:
            proposal = read_proposal(stored)
        except UnreadableInput as error:
            log.error("%s", error)
            continue
        if stored.phase != ProposalPhase.ROLLED_BACK:
            if any(event.what == "swapped" for event in _events(store, stored.id)):
                yield messages.swapped(proposal, place=place, now=now)
            continue
        returns = [event for event in _events(store, stored.id) if event.what == "rolling-back"]
        why = _why(returns, "rolling-back")
        yield messages.rolled_back(
            proposal,
            why=why,
            pages=why.startswith(tuple(f"{cause}-" for cause in CAUSES)),
            number=len(returns),
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


class LocalWords:
    """What channels' words do on one machine.

    Parameters
    ----------
    store
        The state.
    clock
        Time.
    replays
        Remembers which lines were written.
    group_map
        See `local_identity`.
    pause
        How long an alert stops tuning.
    """

    def __init__(
        self,
        store: Store,
        *,
        clock: Clock,
        replays: UsedTokens,
        group_map: dict[str, str],
        pause: timedelta,
    ) -> None:
        self._store = store
        self._clock = clock
        self._replays = replays
        self._group_map = group_map
        self._pause = pause

    def decide(self, pressed: Pressed) -> str:
        """Give a person's word as that person; see `Words.decide`."""
        who = self._identity(pressed.user)
        stored = self._store.get(RecordKind.PROPOSAL, pressed.proposal)
        if stored is None:
            raise Refused("the proposal does not exist any more")
        proposal = decisions.read_proposal(stored)
        if proposal.artifact != pressed.digest:
            raise Refused("the message shows another artifact than is proposed; look at the page")
        voice = Actor(
            store=self._store,
            approvals=Approvals(self._store),
            who=who,
            now=self._clock.now(),
            channel="slack",
        )
        comment = f"by Slack user {pressed.slack_user}"
        with NoSpans().span("decision", about={"proposal": stored.id}):
            if pressed.word is DecisionKind.APPROVE:
                decision = decisions.approve(voice, stored, proposal, comment=comment)
            else:
                decision = decisions.reject(voice, stored, proposal, comment=comment)
            log.info("%s by %s through slack", DECIDED[decision.decision], decision.user)
        return f"{DECIDED[decision.decision]} as {who.user}: {meaning(proposal)}"

    def heard(self, alerts: Sequence[Alert]) -> None:
        """Freeze, thaw or record, by alerts; see `Words.heard`."""
        for alert in alerts:
            self._hear(alert)

    def _hear(self, alert: Alert) -> None:
        now, approvals = self._clock.now(), Approvals(self._store)
        meant = inbound.meaning(
            alert, standing=approvals.freezes(now=now), pause=self._pause, now=now
        )
        if meant.freeze is not None and approvals.freeze(meant.freeze):
            log.warning("tuning stops until %s: %s", meant.freeze.until, alert.said)
        for freeze in meant.thaw:
            approvals.thaw(freeze, who="alertmanager", at=now, reason="the alert is over")
        if not meant.proposal or self._store.get(RecordKind.PROPOSAL, meant.proposal) is None:
            return
        if self._replays.use(alert.once, until=now + timedelta(days=30), now=now):
            self._store.record(
                Event(
                    at=now,
                    kind=RecordKind.PROPOSAL,
                    id=meant.proposal,
                    what=f"alert-{alert.status}",
                    who="alertmanager",
                    detail=inbound.detail(alert),
                )
            )

    def _identity(self, user: str) -> Identity:
        try:
            found = pwd.getpwnam(user)
        except (KeyError, ValueError):
            raise Refused(f"{user} is not a user of this machine; correct slack_users") from None
        if found.pw_uid == 0:
            raise Refused("root does not identify a person; map Slack's users to people")
        return identity_of_uid(found.pw_uid, self._group_map)


@contextmanager
def channelled(settings: Settings, *, clock: Clock, telemetry: Telemetry) -> Iterator[str]:
    """Run the channels while the daemon runs, and return where they listen; empty for nowhere.

    Raises
    ------
    UsageError
        If a channel is half set.
    UnreadableInput
        If a secret cannot be read.
    TemporaryError
        If the address is taken.
    """
    sinks, incoming = sinks_of(settings), incoming_of(settings)
    if not sinks and incoming is None:
        yield ""
        return
    store = SqliteStore(settings.state_dir, clock=clock)
    place, used = place_for(settings), UsedTokens(since=clock.now())
    sender = Sender(sinks, clock=clock, telemetry=telemetry)
    server = None
    if incoming is not None:
        words = LocalWords(
            store,
            clock=clock,
            replays=used,
            group_map=dict(settings.group_map),
            pause=timedelta(seconds=settings.alertmanager_pause_s),
        )
        arrivals = Arrivals(words, incoming, replays=used, clock=clock, telemetry=telemetry)
        server = _listening(settings, arrivals)
    try:
        if sinks:
            sender.start(lambda now: notices_of(store, sender, place, now), every_s=_EVERY_S)
        yield f"{settings.channels_listen.rpartition(':')[0]}:{server.port}" if server else ""
    finally:
        if server is not None:
            server.stop()
        sender.stop()
        store.close()


def place_for(settings: Settings) -> Place:
    """Return where people find this machine's proposals."""
    base = settings.review_url.rstrip("/")
    if not base and settings.review:
        host, port = place_of(settings.review)
        base = f"http://{f'[{host}]' if ':' in host else host}:{port}" if port else ""
    return Place(review_url=lambda id: f"{base}/proposals/{key_of(id)}" if base else "")


def _listening(settings: Settings, arrivals: Arrivals) -> PageServer:
    host, port = place_of(settings.channels_listen, what="channels_listen")
    server = PageServer(host, port, what="channels")
    server.start(arrivals.app())
    return server

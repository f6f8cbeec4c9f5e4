"""Channels of the daemon on one machine: what is said of proposals, and who may answer.

Channels have threads and connections of their own: no channel that hangs holds the loop up, and
with all of them away proposals are decided by commands and the page as ever.
"""

from __future__ import annotations

import logging
import pwd
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

from retuned.adapters.approvals import Approvals, Identity, identity_of_uid
from retuned.adapters.sqlite_store import SqliteStore
from retuned.channels import incoming_alerts
from retuned.channels.app import Arrivals
from retuned.channels.configuring import incoming_of, sinks_of
from retuned.channels.incoming_alerts import Alert
from retuned.channels.incoming_slack import Pressed
from retuned.channels.notices import Place
from retuned.channels.outbox import Outbox
from retuned.channels.running import Channels
from retuned.errors import Refused
from retuned.local import people, telling
from retuned.local.context import RecordKind
from retuned.local.people import Actor
from retuned.local.review_source import key_of
from retuned.ports import Clock, Event, Store, Telemetry
from retuned.settings import Settings
from retuned.spans import NoSpans
from retuned.stages.gate import DecisionKind
from retuned.terminal.proposals import DECIDED, meaning
from retuned.web.serving import PageServer, place_of

log = logging.getLogger(__name__)


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
        replays: Outbox,
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
            raise Refused("there is no such proposal any more")
        proposal = people.read_proposal(stored)
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
                decision = people.approve(voice, stored, proposal, comment=comment)
            else:
                decision = people.reject(voice, stored, proposal, comment=comment)
            log.info("%s by %s through slack", DECIDED[decision.decision], decision.user)
        return f"{DECIDED[decision.decision]} as {who.user}: {meaning(proposal)}"

    def heard(self, alerts: Sequence[Alert]) -> None:
        """Stop, go on, or write down; see `Words.heard`."""
        for alert in alerts:
            self._hear(alert)

    def _hear(self, alert: Alert) -> None:
        now, approvals = self._clock.now(), Approvals(self._store)
        meant = incoming_alerts.meaning(
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
                    detail=incoming_alerts.detail(alert),
                )
            )

    def _identity(self, user: str) -> Identity:
        try:
            found = pwd.getpwnam(user)
        except (KeyError, ValueError):
            raise Refused(f"{user} is no user of this machine; correct slack_users") from None
        if found.pw_uid == 0:
            raise Refused("root is nobody in particular; map Slack's users to people")
        return identity_of_uid(found.pw_uid, self._group_map)


@contextmanager
def channelled(settings: Settings, *, clock: Clock, telemetry: Telemetry) -> Iterator[str]:
    """Run the channels while the daemon runs, and return where they listen; empty for nowhere.

    Raises
    ------
    UsageError
        If a channel is half set.
    UnreadableInput
        If a secret or the outbox cannot be read.
    TemporaryError
        If the address is taken.
    """
    sinks, incoming = sinks_of(settings), incoming_of(settings)
    if not sinks and incoming is None:
        yield ""
        return
    store = SqliteStore(settings.state_dir, clock=clock)
    outbox = Outbox(settings.state_dir, now=clock.now())
    place = place_for(settings)
    channels = Channels(
        outbox,
        sinks,
        say=lambda now: telling.look(store, outbox, sinks, place=place, now=now),
        clock=clock,
        telemetry=telemetry,
    )
    server = None
    if incoming is not None:
        words = LocalWords(
            store,
            clock=clock,
            replays=outbox,
            group_map=dict(settings.group_map),
            pause=timedelta(seconds=settings.alertmanager_pause_s),
        )
        arrivals = Arrivals(words, incoming, replays=outbox, clock=clock, telemetry=telemetry)
        server = _listening(settings, arrivals)
    try:
        channels.start()
        yield f"{settings.channels_listen.rpartition(':')[0]}:{server.port}" if server else ""
    finally:
        if server is not None:
            server.stop()
        channels.stop()
        store.close()
        outbox.close()


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

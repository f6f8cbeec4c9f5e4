"""Channels of an operator, while it leads.

The outbox is in the operator's state, and only who leads opens it: what the last leader has not
sent the next one sends, and what it has sent is not sent again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

from starlette.types import ASGIApp

from retuned.channels.app import Arrivals
from retuned.channels.configuring import incoming_of, sinks_of
from retuned.channels.notices import Place
from retuned.channels.outbox import Outbox
from retuned.channels.running import Channels
from retuned.ports import Clock, Telemetry
from retuned_operator.controllers.ports import Caches
from retuned_operator.kube.client import Api
from retuned_operator.notify_inbound import ClusterWords
from retuned_operator.notify_settings import ChannelSettings
from retuned_operator.proposal_notifier import ProposalNotifier

_LOOK_S = 2.0


class ClusterChannels:
    """All of an operator's channels, while it leads.

    Parameters
    ----------
    settings
        Which there are.
    folder
        The operator's state.
    api, own, caches
        See `ClusterWords`.
    clock
        Time.
    telemetry
        Counts messages.
    leads
        Whether this operator leads now.

    Raises
    ------
    UsageError
        If a channel is half set.
    UnreadableInput
        If a secret cannot be read.
    """

    def __init__(
        self,
        settings: ChannelSettings,
        *,
        folder: Path,
        api: Api,
        own: Api,
        caches: Caches,
        clock: Clock,
        telemetry: Telemetry,
        leads: Callable[[], bool],
    ) -> None:
        self._settings = settings
        self._folder = folder
        self._api = api
        self._own = own
        self._caches = caches
        self._clock = clock
        self._telemetry = telemetry
        self._leads = leads
        self._sinks = sinks_of(settings)  # a missing secret is found at the start
        self._incoming = incoming_of(settings)
        self._lock = threading.Lock()
        self._outbox: Outbox | None = None
        self._running: Channels | None = None

    @property
    def is_any(self) -> bool:
        """Whether there are channels at all."""
        return bool(self._sinks) or self._incoming is not None

    @property
    def has_begun(self) -> bool:
        """Whether they are at work."""
        return self._outbox is not None

    def start(self) -> ASGIApp | None:
        """Begin, as the one that leads; return what listens, None where nobody is heard.

        Raises
        ------
        RetunedError
            If the outbox cannot be opened.
        """
        with self._lock:
            outbox = Outbox(self._folder, now=self._clock.now())
            self._outbox = outbox
            telling = ProposalNotifier(
                self._caches, outbox, self._sinks, place=place_of(self._settings.review_url)
            )
            if self._sinks:
                self._running = Channels(
                    outbox,
                    self._sinks,
                    say=telling.look,
                    clock=self._clock,
                    telemetry=self._telemetry,
                    may=self._leads,
                    look_s=_LOOK_S,
                )
                self._running.start()
        if self._incoming is None:
            return None
        words = ClusterWords(
            self._api,
            own=self._own,
            caches=self._caches,
            settings=self._settings,
            clock=self._clock,
            replays=outbox,
        )
        return Arrivals(
            words, self._incoming, replays=outbox, clock=self._clock, telemetry=self._telemetry
        ).app()

    def stop(self) -> None:
        """End; what is not sent is kept."""
        with self._lock:
            if self._running is not None:
                self._running.stop()
            if self._outbox is not None:
                self._outbox.close()
            self._running = self._outbox = None


def place_of(review_url: str) -> Place:
    """Return where people find a cluster's proposals.

    Examples
    --------
    >>> place_of("https://tuning.example.com/").review_url("serving/swp-1")
    'https://tuning.example.com/proposals/serving/swp-1'
    """
    base = review_url.rstrip("/")
    return Place(
        review_url=lambda key: f"{base}/proposals/{quote(key)}" if base else "",
        command=lambda word, proposal: (
            f"kubectl retuned {word} {proposal.id} --digest {proposal.artifact}"
        ),
    )

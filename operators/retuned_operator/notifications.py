"""Notifications of an operator while it leads.

Only the leader sends. A new leader starts with an empty record of what was sent, so it repeats at
most once the messages about proposals that still wait.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from urllib.parse import quote

from starlette.types import ASGIApp

from retuned.notify.inbound import Arrivals, UsedTokens
from retuned.notify.messages import Place
from retuned.notify.sender import Sender
from retuned.notify.settings import incoming_of, sinks_of
from retuned.ports import Clock, Telemetry
from retuned_operator.controllers.ports import Caches
from retuned_operator.kube.client import Api
from retuned_operator.notify_inbound import ClusterWords
from retuned_operator.notify_settings import ChannelSettings
from retuned_operator.proposal_notifier import ProposalNotifier

_EVERY_S = 2.0


class ClusterChannels:
    """All of an operator's channels, while it leads.

    Parameters
    ----------
    settings
        Which there are.
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
        api: Api,
        own: Api,
        caches: Caches,
        clock: Clock,
        telemetry: Telemetry,
        leads: Callable[[], bool],
    ) -> None:
        self._settings = settings
        self._api = api
        self._own = own
        self._caches = caches
        self._clock = clock
        self._telemetry = telemetry
        self._leads = leads
        self._sinks = sinks_of(settings)  # a missing secret is found at the start
        self._incoming = incoming_of(settings)
        self._lock = threading.Lock()
        self._sender: Sender | None = None

    @property
    def is_any(self) -> bool:
        """Whether there are channels at all."""
        return bool(self._sinks) or self._incoming is not None

    @property
    def has_begun(self) -> bool:
        """Whether they are at work."""
        return self._sender is not None

    def start(self) -> ASGIApp | None:
        """Start as the leader; return the application for inbound requests, if any are accepted."""
        used = UsedTokens(since=self._clock.now())
        with self._lock:
            sender = Sender(
                self._sinks, clock=self._clock, telemetry=self._telemetry, may=self._leads
            )
            self._sender = sender
            if self._sinks:
                notifier = ProposalNotifier(
                    self._caches, sender, place=place_of(self._settings.review_url)
                )
                sender.start(notifier.notices, every_s=_EVERY_S)
        if self._incoming is None:
            return None
        words = ClusterWords(
            self._api,
            own=self._own,
            caches=self._caches,
            settings=self._settings,
            clock=self._clock,
            replays=used,
        )
        return Arrivals(
            words, self._incoming, replays=used, clock=self._clock, telemetry=self._telemetry
        ).app()

    def stop(self) -> None:
        """End; the next leader sends what was not sent."""
        with self._lock:
            if self._sender is not None:
                self._sender.stop()
            self._sender = None


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

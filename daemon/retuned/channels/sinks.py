"""Where messages go: each channel's address, credentials and form behind one small face."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from retuned.channels import alerts, hooks, pagers, slack
from retuned.channels.posting import Answer, send
from retuned.channels.records import Call, Notice, Standing
from retuned.urls import check_url

Secret = Callable[[], str]
"""Reads a secret; see `read_secret`."""
Sender = Callable[..., Answer]
"""`send`, or a test's."""
_STANDS = timedelta(minutes=10)
_SAID_AGAIN_S = 120.0


class Sink(Protocol):
    """One channel."""

    @property
    def name(self) -> str:
        """What the outbox calls it."""
        ...

    @property
    def again_s(self) -> float | None:
        """How often something open is said again, seconds; None says it once."""
        ...

    def takes(self, notice: Notice) -> bool:
        """Whether this channel says such things."""
        ...

    def send(self, notice: Notice, *, now: datetime) -> Answer:
        """Say it, once.

        Raises
        ------
        UnreadableInput
            If a secret cannot be read.
        UsageError
            If the address is none.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SlackHook:
    """Slack's incoming webhook; its address is the secret."""

    url: Secret
    buttons: bool = False
    sender: Sender = send
    name: str = "slack"
    again_s: float | None = None

    def takes(self, notice: Notice) -> bool:
        """Whether it says this: everything."""
        return True

    def send(self, notice: Notice, *, now: datetime) -> Answer:
        """Post a message."""
        url = self.url()
        check_url(url, what="slack_webhook", secret=True)
        return self.sender(url, slack.message(notice, buttons=self.buttons))


@dataclass(frozen=True, slots=True, kw_only=True)
class SlackBot:
    """Slack's `chat.postMessage`."""

    token: Secret
    channel: str
    buttons: bool = False
    url: str = "https://slack.com"
    sender: Sender = send
    name: str = "slack"
    again_s: float | None = None

    def takes(self, notice: Notice) -> bool:
        """Whether it says this: everything."""
        return True

    def send(self, notice: Notice, *, now: datetime) -> Answer:
        """Post a message."""
        call = slack.message(notice, buttons=self.buttons, channel=self.channel)
        call = call.model_copy(update={"path": "/api/chat.postMessage"})
        return self.sender(self.url, call, headers=_bearer(self.token()), says_ok=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class PagerDuty:
    """PagerDuty's Events API v2."""

    key: Secret
    url: str = "https://events.pagerduty.com"
    sender: Sender = send
    name: str = "pagerduty"
    again_s: float | None = None

    def takes(self, notice: Notice) -> bool:
        """Whether it opens or closes an incident."""
        return notice.standing is not Standing.TELL

    def send(self, notice: Notice, *, now: datetime) -> Answer:
        """Trigger or resolve."""
        return _sent(pagers.pagerduty(notice, routing_key=self.key()), self.sender, self.url)


@dataclass(frozen=True, slots=True, kw_only=True)
class Opsgenie:
    """Opsgenie's alerts."""

    key: Secret
    url: str = "https://api.opsgenie.com"
    sender: Sender = send
    name: str = "opsgenie"
    again_s: float | None = None

    def takes(self, notice: Notice) -> bool:
        """Whether it opens or closes an alert."""
        return notice.standing is not Standing.TELL

    def send(self, notice: Notice, *, now: datetime) -> Answer:
        """Open or close."""
        headers = (("authorization", f"GenieKey {self.key()}"),)
        return _sent(pagers.opsgenie(notice), self.sender, self.url, headers=headers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Alertmanager:
    """Alertmanager's API v2. It forgets what is not said again, so what is open is."""

    url: str
    token: Secret | None = None
    sender: Sender = send
    name: str = "alertmanager"
    again_s: float | None = _SAID_AGAIN_S

    def takes(self, notice: Notice) -> bool:
        """Whether it opens or closes an alert."""
        return notice.event in alerts.NAMES

    def send(self, notice: Notice, *, now: datetime) -> Answer:
        """Raise or resolve."""
        headers = _bearer(self.token()) if self.token is not None else ()
        call = alerts.alert(notice, keep=_STANDS, now=now)
        return _sent(call, self.sender, self.url, headers=headers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hook:
    """An address of the user's own; requests are signed."""

    url: str
    secret: Secret
    sender: Sender = send
    name: str = "webhook"
    again_s: float | None = None

    def takes(self, notice: Notice) -> bool:
        """Whether it says this: everything."""
        return True

    def send(self, notice: Notice, *, now: datetime) -> Answer:
        """Post it, signed at this moment."""
        call = hooks.request(notice)
        proof = hooks.signed(call.body, secret=self.secret().encode(), now_s=int(now.timestamp()))
        return self.sender(self.url, call, headers=proof)


def _sent(
    call: Call | None, sender: Sender, url: str, *, headers: tuple[tuple[str, str], ...] = ()
) -> Answer:
    return Answer(taken=True) if call is None else sender(url, call, headers=headers)


def _bearer(token: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {token}"),)

"""From settings to channels; what is half set is refused before anything runs."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from retuned.errors import UnreadableInput, UsageError
from retuned.files import read_plain
from retuned.notify.alertmanager import Alertmanager
from retuned.notify.http import Secret, Sink
from retuned.notify.slack import SlackBot, SlackHook
from retuned.notify.webhook import Hook
from retuned.urls import check_url

_VARIABLE = re.compile(r"env:([A-Za-z_][A-Za-z0-9_]{0,127})")
_MAX_BYTES = 8192


def read_secret(reference: str, *, what: str) -> str:
    """Return a secret, read anew each time: files of secrets are exchanged while we run.

    Parameters
    ----------
    reference
        Path of a file, or ``env:NAME``.
    what
        Which setting names it, for messages.

    Raises
    ------
    UnreadableInput
        If there is none, or it holds what no secret holds.
    """
    found = _VARIABLE.fullmatch(reference)
    if found is not None:
        text = os.environ.get(found[1], "")
        where = f"{what}: variable {found[1]}"
    else:
        where = f"{what}: {reference}"
        try:
            data = read_plain(Path(reference).expanduser(), max_bytes=_MAX_BYTES)
        except (OSError, ValueError) as error:
            said = getattr(error, "strerror", None) or "no path"
            raise UnreadableInput(
                "no-secret", where=where, message=f"cannot be read: {said}"
            ) from error
        text = (data or b"").decode("ascii", "replace")
    text = text.strip()
    if not text or not text.isascii() or not text.isprintable():
        message = "holds nothing, or characters that no secret has"
        raise UnreadableInput("no-secret", where=where, message=message)
    return text


class Chosen(Protocol):
    """What was chosen, by the names of `retuned.settings`; secrets are references to them."""

    @property
    def slack_webhook(self) -> str:
        """Address of Slack's incoming webhook, by reference."""
        ...

    @property
    def slack_token(self) -> str:
        """Slack bot's token, by reference."""
        ...

    @property
    def slack_channel(self) -> str:
        """Slack channel that the bot posts to."""
        ...

    @property
    def slack_signing_secret(self) -> str:
        """What Slack signs with, by reference."""
        ...

    @property
    def slack_team(self) -> str:
        """Slack workspace."""
        ...

    @property
    def slack_users(self) -> Mapping[str, str]:
        """Our users by Slack's ids."""
        ...

    @property
    def alertmanager_url(self) -> str:
        """Address of Alertmanager."""
        ...

    @property
    def alertmanager_token(self) -> str:
        """Token for it, by reference."""
        ...

    @property
    def alertmanager_webhook_token(self) -> str:
        """Token that it sends, by reference."""
        ...

    @property
    def webhook_url(self) -> str:
        """Address of one's own."""
        ...

    @property
    def webhook_secret(self) -> str:
        """What requests to it are signed with, by reference."""
        ...

    @property
    def channels_listen(self) -> str:
        """Where answers are heard; empty hears none."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Incoming:
    """What is heard, and from whom."""

    signing_secret: Secret | None
    """Slack's; None hears nothing of Slack."""
    team: str
    """Slack workspace."""
    users: Mapping[str, str]
    """Our users by Slack's ids."""
    alert_token: Secret | None
    """Alertmanager's; None hears nothing of it."""


def sinks_of(settings: Chosen) -> tuple[Sink, ...]:
    """Return the channels that messages go to.

    Raises
    ------
    UsageError
        If one is half set, or its address is none.
    UnreadableInput
        If a secret cannot be read.
    """
    found = [
        _slack(settings),
        _alertmanager(settings),
        _hook(settings),
    ]
    return tuple(sink for sink in found if sink is not None)


def incoming_of(settings: Chosen) -> Incoming | None:
    """Return what is heard; None where nobody listens.

    Raises
    ------
    UsageError
        If it is half set.
    UnreadableInput
        If a secret cannot be read.
    """
    answers = _answers(settings)
    if not settings.channels_listen:
        if settings.alertmanager_webhook_token:
            raise UsageError("alertmanager_webhook_token needs channels_listen as well")
        return None
    if not answers and not settings.alertmanager_webhook_token:
        raise UsageError(
            "channels_listen hears nobody: set alertmanager_webhook_token, or slack_signing_secret"
        )
    return Incoming(
        signing_secret=_secret(settings, "slack_signing_secret") if answers else None,
        team=settings.slack_team,
        users=settings.slack_users,
        alert_token=_secret(settings, "alertmanager_webhook_token"),
    )


def _secret(settings: Chosen, name: str) -> Secret | None:
    """Return how to read a secret, having read it once; None where none is set."""
    reference: str = getattr(settings, name)
    if not reference:
        return None

    def read() -> str:
        return read_secret(reference, what=name)

    read()
    return read


def _answers(settings: Chosen) -> bool:
    """Whether people may decide in Slack."""
    if not settings.slack_signing_secret:
        return False
    if not (settings.slack_team and settings.slack_users and settings.channels_listen):
        raise UsageError(
            "slack_signing_secret needs slack_team, slack_users and channels_listen as well"
        )
    return True


def _slack(settings: Chosen) -> Sink | None:
    buttons = _answers(settings)
    webhook, token = _secret(settings, "slack_webhook"), _secret(settings, "slack_token")
    if webhook is not None and token is not None:
        raise UsageError("slack_webhook and slack_token are two ways to the same; set one")
    if (token is not None) != bool(settings.slack_channel):
        raise UsageError("slack_token and slack_channel are set together, or not at all")
    if webhook is not None:
        check_url(webhook(), what="slack_webhook", secret=True)
        return SlackHook(url=webhook, buttons=buttons)
    if token is not None:
        return SlackBot(token=token, channel=settings.slack_channel, buttons=buttons)
    return None


def _alertmanager(settings: Chosen) -> Sink | None:
    token = _secret(settings, "alertmanager_token")
    if not settings.alertmanager_url:
        if token is not None:
            raise UsageError("alertmanager_token needs alertmanager_url as well")
        return None
    check_url(settings.alertmanager_url, what="alertmanager_url", secret=token is not None)
    return Alertmanager(url=settings.alertmanager_url, token=token)


def _hook(settings: Chosen) -> Sink | None:
    secret = _secret(settings, "webhook_secret")
    if (secret is None) == bool(settings.webhook_url):
        raise UsageError("webhook_url and webhook_secret are set together, or not at all")
    if secret is None:
        return None
    check_url(settings.webhook_url, what="webhook_url", secret=True, query=True)
    return Hook(url=settings.webhook_url, secret=secret)

"""Settings of notifications and their secrets; incomplete ones are refused at the start."""

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
    """Read a secret from a file or ``env:NAME``, again for each message: files may be replaced.

    Raises
    ------
    UnreadableInput
        If it is missing, empty or not printable ASCII.
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
        message = "is empty or not printable ASCII"
        raise UnreadableInput("no-secret", where=where, message=message)
    return text


class Chosen(Protocol):
    """The settings that are read here; secrets are references."""

    @property
    def slack_webhook(self) -> str: ...
    @property
    def slack_token(self) -> str: ...
    @property
    def slack_channel(self) -> str: ...
    @property
    def slack_signing_secret(self) -> str: ...
    @property
    def slack_team(self) -> str: ...
    @property
    def slack_users(self) -> Mapping[str, str]: ...
    @property
    def alertmanager_url(self) -> str: ...
    @property
    def alertmanager_token(self) -> str: ...
    @property
    def alertmanager_webhook_token(self) -> str: ...
    @property
    def webhook_url(self) -> str: ...
    @property
    def webhook_secret(self) -> str: ...
    @property
    def channels_listen(self) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Incoming:
    """Accepted senders; None accepts no request."""

    signing_secret: Secret | None
    team: str
    users: Mapping[str, str]
    alert_token: Secret | None


def sinks_of(settings: Chosen) -> tuple[Sink, ...]:
    """Return the configured channels.

    Raises
    ------
    UsageError
        If one is incomplete, or its address is invalid.
    UnreadableInput
        If a secret cannot be read.
    """
    found = [_slack(settings), _alertmanager(settings), _hook(settings)]
    return tuple(sink for sink in found if sink is not None)


def incoming_of(settings: Chosen) -> Incoming | None:
    """Return the accepted senders; None without `channels_listen`.

    Raises
    ------
    UsageError
        If it is incomplete.
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
            "channels_listen has no sender: set alertmanager_webhook_token, or slack_signing_secret"
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

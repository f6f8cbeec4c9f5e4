"""From settings to channels; what is half set is refused before anything runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from retuned.adapters.urls import check_url
from retuned.channels.secrets import read_secret
from retuned.channels.sinks import (
    Alertmanager,
    Hook,
    Opsgenie,
    PagerDuty,
    Secret,
    Sink,
    SlackBot,
    SlackHook,
)
from retuned.errors import UsageError
from retuned.settings import Settings


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


def sinks_of(settings: Settings) -> tuple[Sink, ...]:
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
        _pagerduty(settings),
        _opsgenie(settings),
        _alertmanager(settings),
        _hook(settings),
    ]
    return tuple(sink for sink in found if sink is not None)


def incoming_of(settings: Settings) -> Incoming | None:
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


def _secret(settings: Settings, name: str) -> Secret | None:
    """Return how to read a secret, having read it once; None where none is set."""
    reference: str = getattr(settings, name)
    if not reference:
        return None

    def read() -> str:
        return read_secret(reference, what=name)

    read()
    return read


def _answers(settings: Settings) -> bool:
    """Whether people may decide in Slack."""
    if not settings.slack_signing_secret:
        return False
    if not (settings.slack_team and settings.slack_users and settings.channels_listen):
        raise UsageError(
            "slack_signing_secret needs slack_team, slack_users and channels_listen as well"
        )
    return True


def _slack(settings: Settings) -> Sink | None:
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


def _pagerduty(settings: Settings) -> Sink | None:
    key = _secret(settings, "pagerduty_key")
    if key is None:
        return None
    check_url(settings.pagerduty_url, what="pagerduty_url", secret=True)
    return PagerDuty(key=key, url=settings.pagerduty_url)


def _opsgenie(settings: Settings) -> Sink | None:
    key = _secret(settings, "opsgenie_key")
    if key is None:
        return None
    check_url(settings.opsgenie_url, what="opsgenie_url", secret=True)
    return Opsgenie(key=key, url=settings.opsgenie_url)


def _alertmanager(settings: Settings) -> Sink | None:
    token = _secret(settings, "alertmanager_token")
    if not settings.alertmanager_url:
        if token is not None:
            raise UsageError("alertmanager_token needs alertmanager_url as well")
        return None
    check_url(settings.alertmanager_url, what="alertmanager_url", secret=token is not None)
    return Alertmanager(url=settings.alertmanager_url, token=token)


def _hook(settings: Settings) -> Sink | None:
    secret = _secret(settings, "webhook_secret")
    if (secret is None) == bool(settings.webhook_url):
        raise UsageError("webhook_url and webhook_secret are set together, or not at all")
    if secret is None:
        return None
    check_url(settings.webhook_url, what="webhook_url", secret=True, query=True)
    return Hook(url=settings.webhook_url, secret=secret)

"""Which channels an operator has, and whom people in Slack speak as."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from retuned_operator.settings import PersonName, read_part


class SlackActor(BaseModel):
    """User and groups of a person in Slack."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    user: PersonName
    """Name, as the API server knows it."""
    groups: tuple[PersonName, ...] = Field(default=(), max_length=64)
    """Groups that the word is given for; the operator's role names them as well."""


class ChannelSettings(BaseModel):
    """Which channels there are; what is secret is a path."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, alias_generator=to_camel, use_attribute_docstrings=True
    )

    slack_webhook: str = ""
    """File with the address of Slack's incoming webhook."""
    slack_token: str = ""
    """File with a bot's token, in place of the webhook."""
    slack_channel: str = Field(default="", max_length=100)
    """Channel that the bot posts to."""
    slack_signing_secret: str = ""
    """File with the signing secret of Slack; empty refuses decisions from Slack."""
    slack_team: str = Field(default="", max_length=32)
    """Workspace."""
    slack_people: dict[Annotated[str, Field(pattern=r"^[A-Z0-9]{1,32}$")], SlackActor] = Field(
        default_factory=dict, max_length=500
    )
    """Whom people speak as, by Slack's ids."""
    alertmanager_url: str = ""
    """Address of Alertmanager, API v2, where alerts are raised."""
    alertmanager_token: str = ""
    """File with a bearer token for it; empty sends none."""
    alertmanager_webhook_token: str = ""
    """File with the bearer token that Alertmanager's webhook sends; empty hears none."""
    alertmanager_pause_seconds: float = Field(default=6 * 3600.0, ge=600.0, le=7 * 86_400.0)
    """How long an alert stops tuning unless Alertmanager sends it again, seconds."""
    webhook_url: str = ""
    """Address that all notifications are posted to."""
    webhook_secret: str = ""
    """File with what those posts are signed with."""
    review_url: str = Field(default="", max_length=1024)
    """Address of the review page, for links; empty leaves them out."""

    @property
    def slack_users(self) -> dict[str, str]:
        """Users by Slack's ids."""
        return {id: each.user for id, each in self.slack_people.items()}

    @property
    def channels_listen(self) -> str:
        """Whether the operator accepts requests of channels; its own settings have the port."""
        heard = self.slack_signing_secret or self.alertmanager_webhook_token
        return "here" if heard else ""


def channel_settings(given: object) -> ChannelSettings:
    """Read the part ``channels`` of the file.

    Raises
    ------
    UsageError
        With each thing that is wrong.
    """
    return read_part(ChannelSettings, given, where="channels")

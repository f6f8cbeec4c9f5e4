"""What Alertmanager's webhook says: alerts that stop tuning for a while, or stand with a proposal.

No alert decides: it may stop what people would otherwise let happen, and it is written down.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from retuned.channels.hooks import refused
from retuned.errors import UnreadableInput
from retuned.stages.gate import FreezeScope, TuningFreeze
from retuned.text import clean

MAX_BODY_BYTES = 1 << 20
PAUSE = "retuned_pause"
"""Label of alerts that stop tuning; its value is ``true``."""
_PREFIX = "alertmanager-"
_Text = Annotated[str, Field(max_length=4000)]
_Labels = Annotated[dict[Annotated[str, Field(max_length=200)], _Text], Field(max_length=100)]


class Alert(BaseModel):
    """One alert; what else is said of it is left aside."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    status: Literal["firing", "resolved"]
    labels: _Labels
    annotations: _Labels = {}
    startsAt: AwareDatetime
    fingerprint: Annotated[str, Field(pattern=r"^[0-9a-f]{1,64}$")]

    @property
    def stop(self) -> str:
        """Beginning of the names of the freezes that stand for this alert."""
        return f"{_PREFIX}{self.fingerprint}-{int(self.startsAt.timestamp())}-"

    @property
    def once(self) -> str:
        """What makes a line about it one."""
        text = f"{self.fingerprint} {self.startsAt.isoformat()} {self.status}"
        return "alert:" + hashlib.sha256(text.encode()).hexdigest()

    @property
    def pauses(self) -> bool:
        """Whether it stops tuning."""
        return self.labels.get(PAUSE) == "true"

    @property
    def said(self) -> str:
        """What it says, in one line."""
        text = self.annotations.get("summary") or self.labels.get("alertname") or "an alert"
        return clean(text)[:500]


class _Payload(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    version: Literal["4"]
    alerts: Annotated[tuple[Alert, ...], Field(max_length=200)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Meant:
    """What is done about an alert."""

    freeze: TuningFreeze | None = None
    """Stop sign to set; None sets none."""
    thaw: tuple[str, ...] = ()
    """Stop signs to lift."""
    proposal: str = ""
    """Proposal with which it is written down; empty with none."""


def prove(headers: Mapping[str, str], *, token: str) -> None:
    """Check that the sender knows the token.

    Raises
    ------
    Refused
        ``not-signed`` or ``signature-wrong``.
    """
    scheme, _, said = headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not said:
        raise refused("not-signed", "the request has no bearer token")
    if not token or not hmac.compare_digest(said.strip().encode(), token.encode()):
        raise refused("signature-wrong", "the bearer token is another")


def read(body: bytes) -> tuple[Alert, ...]:
    """Read a webhook's body.

    Raises
    ------
    UnreadableInput
        If it is none of version 4.
    """
    try:
        return _Payload.model_validate(json.loads(body)).alerts
    except (ValueError, RecursionError) as error:
        count = error.error_count() if isinstance(error, ValidationError) else 1
        raise UnreadableInput(
            "body-invalid",
            where="alertmanager",
            message=f"is no webhook body of version 4 ({count} problems)",
        ) from error


def meaning(
    alert: Alert, *, standing: tuple[TuningFreeze, ...], pause: timedelta, now: datetime
) -> Meant:
    """Say what an alert means now.

    Parameters
    ----------
    standing
        Stop signs that stand.
    pause
        How long tuning stops unless the alert is said again.
    """
    proposal = alert.labels.get("proposal", "")[:256]
    if not alert.pauses:
        return Meant(proposal=proposal)
    mine = [freeze for freeze in standing if freeze.id.startswith(alert.stop)]
    if alert.status == "resolved":
        return Meant(thaw=tuple(freeze.id for freeze in mine), proposal=proposal)
    lasts = max((freeze.until for freeze in mine if freeze.until is not None), default=now)
    if lasts - now > pause / 2:
        return Meant(proposal=proposal)
    freeze = TuningFreeze(
        id=f"{alert.stop}{int(now.timestamp())}",
        scope=_scope(alert),
        until=now + pause,
        reason=alert.said,
        user="alertmanager",
        at=now,
    )
    return Meant(freeze=freeze, proposal=proposal)


def _scope(alert: Alert) -> FreezeScope:
    """Return what the alert names; what is no name stops everything."""
    try:
        return FreezeScope.model_validate(
            {
                plural: [alert.labels[name]] if alert.labels.get(name) else []
                for name, plural in (("target", "targets"), ("kernel", "kernels"))
            }
        )
    except ValidationError:
        return FreezeScope()


def detail(alert: Alert) -> dict[str, Any]:
    """Return what is written down of an alert."""
    name = clean(alert.labels.get("alertname", ""))[:200]
    return {"alert": name, "summary": alert.said, "fingerprint": alert.fingerprint}

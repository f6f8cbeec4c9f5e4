"""Alerts for Alertmanager's API v2, for machines whose metrics no Prometheus reads."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, timedelta

from retuned.notify.http import Answer, Post, Secret, bearer, send
from retuned.notify.messages import Call, Event, Notice, Standing

NAMES = {
    Event.AWAITING: "RetunedSwapAwaitingApproval",
    Event.EXPIRING: "RetunedSwapAwaitingApproval",
    Event.SETTLED: "RetunedSwapAwaitingApproval",
    Event.ROLLBACK_FAILED: "RetunedSwapRollbackFailed",
    Event.ROLLBACK_DONE: "RetunedSwapRollbackFailed",
}
"""Alerts by event, named as those of `dashboards/rules`."""
_SKEW = timedelta(seconds=30)
"""Difference of clocks: an end must be past by Alertmanager's clock too."""


def alert(notice: Notice, *, keep: timedelta, now: datetime) -> Call | None:
    """Return the request; None if nothing opens or closes. The alert ends after `keep`."""
    name = NAMES.get(notice.event)
    if name is None:
        return None
    opens = notice.standing is Standing.OPEN
    annotations = {"summary": notice.summary, **dict(_extra(notice))}
    body = {
        "labels": {
            "alertname": name,
            "severity": _severity(name),
            "proposal": notice.proposal,
            "target": notice.target,
            "kernel": notice.kernel,
            "digest": notice.artifact,
            "risk": notice.risk,
            "source": "retuned",
        },
        "annotations": annotations,
        "startsAt": (min(notice.at, now) if opens else now - _SKEW).isoformat(),
        "endsAt": (now + keep if opens else now - _SKEW).isoformat(),
        **({"generatorURL": notice.review_url} if notice.review_url else {}),
    }
    return Call(path="/api/v2/alerts", body=json.dumps([body]).encode())


def _severity(name: str) -> str:
    """By name, not event: other labels would be another alert."""
    return "critical" if name == "RetunedSwapRollbackFailed" else "info"


def _extra(notice: Notice) -> list[tuple[str, str]]:
    found = [
        ("review_url", notice.review_url),
        ("approve_command", notice.approve_command),
        ("reject_command", notice.reject_command),
    ]
    return [(name, text) for name, text in found if text]


_STANDS = timedelta(minutes=10)
_SAID_AGAIN_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Alertmanager:
    """Alertmanager's API v2; open alerts are repeated because it forgets them."""

    url: str
    token: Secret | None = None
    sender: Post = send
    name: str = "alertmanager"
    again_s: float | None = _SAID_AGAIN_S

    def takes(self, notice: Notice) -> bool:
        return notice.event in NAMES

    def send(self, notice: Notice, *, now: datetime) -> Answer:
        headers = bearer(self.token()) if self.token is not None else ()
        call = alert(notice, keep=_STANDS, now=now)
        return Answer(taken=True) if call is None else self.sender(self.url, call, headers=headers)

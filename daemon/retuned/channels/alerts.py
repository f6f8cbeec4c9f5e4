"""A notice as an alert for Alertmanager's API v2, for a machine that no Prometheus looks at."""

from __future__ import annotations

import json
from datetime import datetime, timedelta

from retuned.channels.records import Call, Event, Notice, Standing

NAMES = {
    Event.AWAITING: "KernelSwapAwaitingApproval",
    Event.EXPIRING: "KernelSwapAwaitingApproval",
    Event.SETTLED: "KernelSwapAwaitingApproval",
    Event.ROLLBACK_FAILED: "KernelSwapRollbackFailed",
    Event.ROLLBACK_DONE: "KernelSwapRollbackFailed",
}
"""Alerts by event; what is only told is none."""


def alert(notice: Notice, *, keep: timedelta, now: datetime) -> Call | None:
    """Return the request; None where nothing opens or closes.

    Parameters
    ----------
    keep
        How long it stands if it is not said again; the sender says it again sooner.
    now
        When it is sent.
    """
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
            "risk": notice.risk,
            "source": "retuned",
        },
        "annotations": annotations,
        "startsAt": min(notice.at, now).isoformat(),
        "endsAt": (now + keep if opens else now).isoformat(),
        **({"generatorURL": notice.review_url} if notice.review_url else {}),
    }
    return Call(path="/api/v2/alerts", body=json.dumps([body]).encode())


def _severity(name: str) -> str:
    """Return it by name and not by event: labels that change would be another alert."""
    return "page" if name == "KernelSwapRollbackFailed" else "ticket"


def _extra(notice: Notice) -> list[tuple[str, str]]:
    found = [
        ("review_url", notice.review_url),
        ("approve_command", notice.approve_command),
        ("reject_command", notice.reject_command),
        ("digest", notice.artifact),
    ]
    return [(name, text) for name, text in found if text]

"""A notice as an incident: PagerDuty's Events API v2, Opsgenie's alerts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from retuned.channels.records import Call, Notice, Severity, Standing

_PRIORITY = {Severity.INFO: "P4", Severity.WARNING: "P3", Severity.CRITICAL: "P1"}


def pagerduty(notice: Notice, *, routing_key: str) -> Call | None:
    """Return the event; None where nothing opens or closes."""
    if notice.standing is Standing.TELL:
        return None
    body: dict[str, Any] = {
        "routing_key": routing_key,
        "event_action": "trigger" if notice.standing is Standing.OPEN else "resolve",
        "dedup_key": notice.subject[:255],
        "client": "Retuned",
        "payload": {
            "summary": notice.summary[:1024],
            "source": notice.target,
            "severity": str(notice.severity),
            "timestamp": notice.at.isoformat(),
            "component": notice.kernel,
            "group": notice.target,
            "class": str(notice.event),
            "custom_details": details(notice),
        },
    }
    if notice.review_url:
        body["client_url"] = notice.review_url
        body["links"] = [{"href": notice.review_url, "text": "Review"}]
    return Call(path="/v2/enqueue", body=json.dumps(body).encode())


def opsgenie(notice: Notice) -> Call | None:
    """Return the request; None where nothing opens or closes."""
    if notice.standing is Standing.TELL:
        return None
    alias = notice.subject[:512]
    if notice.standing is Standing.CLOSE:
        path = f"/v2/alerts/{quote(alias, safe='')}/close?identifierType=alias"
        note = {"source": notice.target[:100], "note": notice.summary, "user": "retuned"}
        return Call(path=path, body=json.dumps(note).encode())
    body = {
        "message": notice.summary[:130],
        "alias": alias,
        "description": _description(notice)[:15_000],
        "entity": notice.kernel[:512],
        "source": notice.target[:100],
        "priority": _PRIORITY[notice.severity],
        "tags": ["retuned", str(notice.event), notice.risk],
        "details": details(notice),
    }
    return Call(path="/v2/alerts", body=json.dumps(body).encode())


def details(notice: Notice) -> Mapping[str, str]:
    """Return what a person needs to decide, by name."""
    found = dict(notice.facts) | {"proposal": notice.proposal, "digest": notice.artifact}
    for name, text in (
        ("approve", notice.approve_command),
        ("reject", notice.reject_command),
        ("review", notice.review_url),
    ):
        if text:
            found[name] = text
    return found


def _description(notice: Notice) -> str:
    return "\n".join(
        [notice.summary, *(f"{name}: {text}" for name, text in details(notice).items())]
    )

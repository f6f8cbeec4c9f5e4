"""A notice as a Slack message. Everything in it is plain text: names are no markup."""

from __future__ import annotations

import json
from typing import Any

from retuned.channels.records import Call, Notice

APPROVE = "retuned-approve"
REJECT = "retuned-reject"
_HEADER = 150
_SECTION = 2900
_FACTS = 10
"""Fields that Slack takes in one section."""


def message(notice: Notice, *, buttons: bool, channel: str = "") -> Call:
    """Return the message.

    Parameters
    ----------
    buttons
        Whether it may be answered in Slack.
    channel
        Where `chat.postMessage` puts it; empty for an incoming webhook, which knows.
    """
    body: dict[str, Any] = {
        "text": escaped(notice.summary),
        "mrkdwn": False,
        "unfurl_links": False,
        "unfurl_media": False,
        "blocks": _blocks(notice, buttons=buttons),
    }
    if channel:
        body["channel"] = channel
        body["metadata"] = {
            "event_type": "retuned_notice",
            "event_payload": {"proposal": notice.proposal, "event": str(notice.event)},
        }
    return Call(body=json.dumps(body).encode())


def escaped(text: str) -> str:
    """Write a text so that Slack finds no link, user or channel in it.

    Examples
    --------
    >>> escaped("<!channel> a & b")
    '&lt;!channel&gt; a &amp; b'
    """
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def said_by(notice: Notice) -> str:
    """Return what a button says of what it is about."""
    return json.dumps({"proposal": notice.proposal, "digest": notice.artifact})


def _blocks(notice: Notice, *, buttons: bool) -> list[dict[str, Any]]:
    head = f"{notice.event}: {notice.kernel} on {notice.target}"
    found: list[dict[str, Any]] = [
        {"type": "header", "text": _plain(head, _HEADER)},
        {"type": "section", "text": _plain(notice.summary, _SECTION)},
    ]
    facts = notice.facts[:_FACTS]
    if facts:
        fields = [_plain(f"{name}\n{text}", 2000) for name, text in facts]
        found.append({"type": "section", "fields": fields})
    commands = [text for text in (notice.approve_command, notice.reject_command) if text]
    if commands:
        found.append({"type": "section", "text": _plain("\n".join(commands), _SECTION)})
    answers = _answers(notice, buttons=buttons)
    if answers:
        found.append({"type": "actions", "block_id": "retuned", "elements": answers})
    return found


def _answers(notice: Notice, *, buttons: bool) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    if notice.review_url:
        found.append(
            {
                "type": "button",
                "action_id": "retuned-review",
                "text": _plain("Review", 75),
                "url": notice.review_url,
            }
        )
    if buttons and notice.approve_command:
        asked = notice.summary[:280]
        for action, word, style in (
            (APPROVE, "Approve", "primary"),
            (REJECT, "Reject", "danger"),
        ):
            found.append(
                {
                    "type": "button",
                    "action_id": action,
                    "style": style,
                    "text": _plain(word, 75),
                    "value": said_by(notice),
                    "confirm": {
                        "title": _plain(f"{word}?", 100),
                        "text": _plain(asked, 300),
                        "confirm": _plain(word, 30),
                        "deny": _plain("Not now", 30),
                    },
                }
            )
    return found


def _plain(text: str, most: int) -> dict[str, Any]:
    cut = text if len(text) <= most else text[: most - 1] + "…"
    return {"type": "plain_text", "text": cut, "emoji": False}

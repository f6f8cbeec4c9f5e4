"""Slack messages about proposals, and the check of the buttons that people press there.

Everything in a message is plain text: names are not markup.

Slack signs with ``v0=`` and the HMAC-SHA256 of ``v0:TIMESTAMP:BODY``. What is not exactly what we
sent is refused; who is not mapped to a user of ours has no word here.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import parse_qs, urlsplit

from retuned.notify.http import Answer, Post, Secret, bearer, send
from retuned.notify.messages import Call, Notice
from retuned.notify.webhook import check_signed, refused
from retuned.stages.gate import DecisionKind
from retuned.urls import check_url

APPROVE = "retuned-approve"
REJECT = "retuned-reject"
_HEADER = 150
_SECTION = 2900
_FACTS = 10
"""Fields that Slack takes in one section."""


def message(notice: Notice, *, buttons: bool, channel: str = "") -> Call:
    """Return the message; `channel` is empty for an incoming webhook."""
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


MAX_BODY_BYTES = 64 * 1024
_WORDS = {APPROVE: DecisionKind.APPROVE, REJECT: DecisionKind.REJECT}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pressed:
    """A pressed button."""

    word: DecisionKind | None
    """The decision; None where the button only opens a page."""
    proposal: str
    digest: str
    """Artifact that the message showed."""
    user: str
    slack_user: str
    reply_url: str
    """Address of Slack for an answer to this person; may be empty."""


def signature_of(body: bytes, *, secret: str, timestamp: str) -> str:
    """Return the signature that Slack would send."""
    text = f"v0:{timestamp}:".encode() + body
    return "v0=" + hmac.new(secret.encode(), text, hashlib.sha256).hexdigest()


def prove(body: bytes, headers: Mapping[str, str], *, secret: str, now_s: float) -> str:
    """Check signature and time; return the token that detects a replay.

    Raises
    ------
    Refused
        ``not-signed``, ``too-old`` or ``signature-wrong``.
    """
    timestamp = headers.get("x-slack-request-timestamp", "")
    signature = headers.get("x-slack-signature", "")
    expected = signature_of(body, secret=secret, timestamp=timestamp[:32])
    check_signed(
        body,
        secret=secret.encode(),
        timestamp=timestamp,
        signature=signature,
        expected=expected,
        now_s=now_s,
    )
    return f"slack:{signature}"


def read(body: bytes, *, team: str, users: Mapping[str, str]) -> Pressed:
    """Parse a verified request of workspace `team`; `users` maps Slack's ids to our users.

    Raises
    ------
    Refused
        ``not-understood``, ``other-workspace`` or ``user-unknown``.
    """
    payload = _payload(body)
    user = _mapping(payload.get("user"))
    of = {_text(_mapping(payload.get("team")).get("id")), _text(user.get("team_id"), team)}
    if of != {team}:
        raise refused("other-workspace", "this comes from another workspace")
    slack_user = _text(user.get("id"))
    known = users.get(slack_user)
    if known is None:
        raise refused(
            "user-unknown",
            f"Slack user {slack_user[:32]} is not mapped; an administrator sets slack_users",
        )
    action = _action(payload)
    word = _WORDS.get(_text(action.get("action_id")))
    if word is None:
        return Pressed(
            word=None, proposal="", digest="", user=known, slack_user=slack_user, reply_url=""
        )
    said = _mapping(_json(_text(action.get("value"))))
    if set(said) != {"proposal", "digest"}:
        raise refused("not-understood", "the button is not one of Retuned")
    return Pressed(
        word=word,
        proposal=_text(said["proposal"])[:256],
        digest=_text(said["digest"])[:128],
        user=known,
        slack_user=slack_user,
        reply_url=_reply_url(_text(payload.get("response_url"))),
    )


def _payload(body: bytes) -> Mapping[str, Any]:
    try:
        fields = parse_qs(
            body.decode("utf-8"), strict_parsing=True, max_num_fields=4, keep_blank_values=True
        )
    except (ValueError, UnicodeError):
        raise refused("not-understood", "the body is not a form") from None
    found = fields.get("payload", [])
    if len(found) != 1:
        raise refused("not-understood", "the form has not one payload")
    payload = _mapping(_json(found[0]))
    if payload.get("type") != "block_actions":
        raise refused("not-understood", "this is not a button press")
    return payload


def _action(payload: Mapping[str, Any]) -> Mapping[str, Any]:
    actions = payload.get("actions")
    if not isinstance(actions, list) or len(actions) != 1:
        raise refused("not-understood", "one button is pressed at a time")
    return _mapping(actions[0])


def _reply_url(url: str) -> str:
    """Return the address if it is Slack's, else an empty string."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return ""
    ours = parts.scheme == "https" and parts.hostname == "hooks.slack.com" and port in (None, 443)
    return url if ours and not parts.username and len(url) < 1000 else ""


def _json(text: str) -> object:
    try:
        found: object = json.loads(text)
    except (ValueError, RecursionError):
        raise refused("not-understood", "the payload is not JSON") from None
    return found


def _mapping(value: object) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise refused("not-understood", "the payload has another form")
    return value


def _text(value: object, default: str = "") -> str:
    return value if isinstance(value, str) else default


@dataclass(frozen=True, slots=True, kw_only=True)
class SlackHook:
    """Slack's incoming webhook; its address is the secret."""

    url: Secret
    buttons: bool = False
    sender: Post = send
    name: str = "slack"
    again_s: float | None = None

    def takes(self, notice: Notice) -> bool:
        return True

    def send(self, notice: Notice, *, now: datetime) -> Answer:
        url = self.url()
        check_url(url, what="slack_webhook", secret=True)
        return self.sender(url, message(notice, buttons=self.buttons))


@dataclass(frozen=True, slots=True, kw_only=True)
class SlackBot:
    """Slack's `chat.postMessage`."""

    token: Secret
    channel: str
    buttons: bool = False
    url: str = "https://slack.com"
    sender: Post = send
    name: str = "slack"
    again_s: float | None = None

    def takes(self, notice: Notice) -> bool:
        return True

    def send(self, notice: Notice, *, now: datetime) -> Answer:
        call = message(notice, buttons=self.buttons, channel=self.channel)
        call = call.model_copy(update={"path": "/api/chat.postMessage"})
        return self.sender(self.url, call, headers=bearer(self.token()), says_ok=True)

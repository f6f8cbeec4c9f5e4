"""A press of a button in Slack: proven to be Slack's, of now, of our workspace, of a known person.

Slack signs with ``v0=`` and the HMAC-SHA256 of ``v0:TIMESTAMP:BODY``. What is not exactly what we
sent is refused; who is not mapped to a user of ours has no word here.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlsplit

from retuned.channels.hooks import check_signed, refused
from retuned.channels.slack import APPROVE, REJECT
from retuned.stages.gate import DecisionKind

MAX_BODY_BYTES = 64 * 1024
_WORDS = {APPROVE: DecisionKind.APPROVE, REJECT: DecisionKind.REJECT}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pressed:
    """What somebody pressed."""

    word: DecisionKind | None
    """What they said; None where the button only opens a page."""
    proposal: str
    """Id of the proposal."""
    digest: str
    """Artifact that the message showed."""
    user: str
    """Our user, by the settings."""
    slack_user: str
    """Slack's."""
    reply_url: str
    """Where Slack takes an answer for this person alone; empty where it named none of its own."""


def signature_of(body: bytes, *, secret: str, timestamp: str) -> str:
    """Return the signature that Slack would send."""
    text = f"v0:{timestamp}:".encode() + body
    return "v0=" + hmac.new(secret.encode(), text, hashlib.sha256).hexdigest()


def prove(body: bytes, headers: Mapping[str, str], *, secret: str, now_s: float) -> str:
    """Check that Slack sent this just now, and return what makes it one, for replays.

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
    """Read what was pressed, and who pressed it.

    Parameters
    ----------
    body
        Proven to be Slack's.
    team
        Id of our workspace.
    users
        Our users by Slack's ids.

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
            f"Slack user {slack_user[:32]} is nobody here; an administrator sets slack_users",
        )
    action = _action(payload)
    word = _WORDS.get(_text(action.get("action_id")))
    if word is None:
        return Pressed(
            word=None, proposal="", digest="", user=known, slack_user=slack_user, reply_url=""
        )
    said = _mapping(_json(_text(action.get("value"))))
    if set(said) != {"proposal", "digest"}:
        raise refused("not-understood", "the button is none of ours")
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
        raise refused("not-understood", "the body is no form") from None
    found = fields.get("payload", [])
    if len(found) != 1:
        raise refused("not-understood", "the form has not one payload")
    payload = _mapping(_json(found[0]))
    if payload.get("type") != "block_actions":
        raise refused("not-understood", "this is no press of a button")
    return payload


def _action(payload: Mapping[str, Any]) -> Mapping[str, Any]:
    actions = payload.get("actions")
    if not isinstance(actions, list) or len(actions) != 1:
        raise refused("not-understood", "one button is pressed at a time")
    return _mapping(actions[0])


def _reply_url(url: str) -> str:
    """Return an address of Slack's own; nothing else is ever called."""
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
        raise refused("not-understood", "the payload is no JSON") from None
    return found


def _mapping(value: object) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise refused("not-understood", "the payload has another form")
    return value


def _text(value: object, default: str = "") -> str:
    return value if isinstance(value, str) else default

"""Tokens that a form carries: who saw what, and when. Without one nothing is decided.

A token is an HMAC over session, person, proposal, artifact, policy and time. It proves that this
very browser was shown this very artifact, not long ago; another site cannot make one, and it is no
use for anything else. Pure: time and randomness are arguments.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

LIFE = timedelta(hours=8)
"""After this a page is too old to decide by."""
_SKEW = timedelta(seconds=60)
_MAX = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class FormToken:
    """What a form was made for."""

    session: str
    """Of the browser."""
    user: str
    """Who was shown it."""
    key: str
    """Proposal."""
    artifact: str
    """Digest that was shown."""
    policy: str
    """Digest of the policy that was shown; empty where none was."""


def sign(shown: FormToken, *, key: bytes, now: datetime) -> str:
    """Return a token.

    Examples
    --------
    >>> shown = Shown(session="s", user="ada", key="p", artifact="sha256:aa", policy="")
    >>> noon = datetime(2026, 3, 2, 12, tzinfo=UTC)
    >>> token = sign(shown, key=b"k" * 32, now=noon)
    >>> fault_of(token, shown, key=b"k" * 32, now=noon)
    >>> fault_of(token, shown, key=b"k" * 32, now=noon + timedelta(days=1))
    'too-old'
    """
    at = int(now.timestamp())
    return f"v1.{at}.{_digest(shown, at, key)}"


def fault_of(token: str, shown: FormToken, *, key: bytes, now: datetime) -> str | None:
    """Return why a token does not prove what it should, or None.

    Returns
    -------
    ``no-token``, ``forged`` (another session, person, proposal, artifact or policy, or another
    key), or ``too-old``.
    """
    version, _, rest = token[:_MAX].partition(".")
    moment, _, said = rest.partition(".")
    if version != "v1" or not (moment.isascii() and moment.isdigit()) or len(moment) > 12:
        return "no-token"
    at = int(moment)
    if not hmac.compare_digest(said.encode(), _digest(shown, at, key).encode()):
        return "forged"
    made = datetime.fromtimestamp(at, UTC)
    return None if made - _SKEW <= now < made + LIFE else "too-old"


def _digest(shown: FormToken, at: int, key: bytes) -> str:
    parts = [shown.session, shown.user, shown.key, shown.artifact, shown.policy, at]
    made = hmac.new(key, json.dumps(parts).encode(), hashlib.sha256).digest()
    return base64.urlsafe_b64encode(made).decode().rstrip("=")

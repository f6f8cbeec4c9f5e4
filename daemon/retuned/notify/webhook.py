"""The signed webhook of notices, and the check of signatures and times.

The signature is over time and body: ``v1=`` and the HMAC-SHA256 of ``TIMESTAMP.BODY`` in
hexadecimal. A receiver compares it in constant time, refuses requests older than five
minutes, and accepts an ``Idempotency-Key`` once.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from dataclasses import dataclass
from datetime import datetime

from retuned.errors import Refused
from retuned.notify.http import Answer, Post, Secret, send
from retuned.notify.messages import Call, Notice

MAX_AGE_S = 300
"""Largest difference of a request's time to now, seconds."""
SIGNATURE = "x-retuned-signature"
TIMESTAMP = "x-retuned-timestamp"


def request(notice: Notice) -> Call:
    """Return the request; it is signed when it is sent."""
    body = {"version": 1, **notice.model_dump(mode="json"), "facts": dict(notice.facts)}
    return Call(
        body=json.dumps(body, sort_keys=True).encode(),
        headers=(("idempotency-key", notice.key), ("x-retuned-event", str(notice.event))),
    )


def signed(body: bytes, *, secret: bytes, now_s: int) -> tuple[tuple[str, str], ...]:
    return (TIMESTAMP, str(now_s)), (SIGNATURE, signature_of(body, secret=secret, now_s=now_s))


def signature_of(body: bytes, *, secret: bytes, now_s: int) -> str:
    """Return the signature of a body at a time.

    Examples
    --------
    >>> signature_of(b"{}", secret=b"key", now_s=1)[:12]
    'v1=1ba6b8171'
    """
    digest = hmac.new(secret, f"{now_s}.".encode() + body, hashlib.sha256)
    return f"v1={digest.hexdigest()}"


def check_signed(
    body: bytes, *, secret: bytes, timestamp: str, signature: str, expected: str, now_s: float
) -> None:
    """Check time (seconds since the epoch) and signature in constant time.

    Raises
    ------
    Refused
        ``not-signed``, ``too-old`` or ``signature-wrong``.
    """
    if not secret or not timestamp or not signature:
        raise refused("not-signed", "the request is not signed")
    if not timestamp.isascii() or not timestamp.isdigit() or len(timestamp) > 12:
        raise refused("too-old", "the request's time is invalid")
    if abs(now_s - int(timestamp)) > MAX_AGE_S:
        raise refused("too-old", f"the request is not from the last {MAX_AGE_S} s")
    if not hmac.compare_digest(signature.encode("utf-8", "replace"), expected.encode()):
        raise refused("signature-wrong", "the signature is not that of this body and time")


def refused(code: str, text: str) -> Refused:
    """Return a refusal with its stable code."""
    error = Refused(text)
    error.code = code
    return error


@dataclass(frozen=True, slots=True, kw_only=True)
class Hook:
    """The webhook."""

    url: str
    secret: Secret
    sender: Post = send
    name: str = "webhook"
    again_s: float | None = None

    def takes(self, notice: Notice) -> bool:
        return True

    def send(self, notice: Notice, *, now: datetime) -> Answer:
        call = request(notice)
        proof = signed(call.body, secret=self.secret().encode(), now_s=int(now.timestamp()))
        return self.sender(self.url, call, headers=proof)

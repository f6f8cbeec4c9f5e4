"""Addresses, headers and forms of requests, bounded before any other code reads them.

What a browser sends with a POST, read within bounds.

What stands before every request: which name was asked for, and headers on every answer.

Tokens that a form carries: who saw what, and when. Without one nothing is decided.

Refusals of the page itself, by their stable codes.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal
from urllib.parse import parse_qsl

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from retuned.contract import Digest
from retuned.errors import Refused, UsageError
from retuned.review import html
from retuned.review.ports import ReviewedProposal
from retuned.review.records import Act, Slice

KEY_MAX = 400
"""Longest key in an address, characters."""
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def headers_of(request: Request) -> dict[str, str]:
    """Return the headers, without those that are sent twice."""
    found: dict[str, str] = {}
    twice: set[str] = set()
    for name, value in request.headers.items():
        if name in found:
            twice.add(name)
        found[name] = value
    return {name: value for name, value in found.items() if name not in twice}


def place_of(found: object) -> tuple[str, int]:
    """Return address and port of an end of the connection; of another kind of socket neither."""
    if not isinstance(found, tuple | list) or not isinstance(found[1], int):
        return "", 0
    return str(found[0]), found[1]


def key_of(request: Request) -> str:
    """Return the key in the address.

    Raises
    ------
    HTTPException
        404 if it is empty, too long or not printable.
    """
    key = str(request.path_params["key"])
    if not 0 < len(key) <= KEY_MAX or not key.isprintable():
        raise HTTPException(404, "This address does not exist.")
    return key


def slice_of(request: Request, *, limit: int) -> Slice:
    """Return the requested part of a list, by the key of its first entry.

    Raises
    ------
    HTTPException
        404 if the key is too long or not printable.
    """
    before = request.query_params.get("before", "")
    if len(before) > KEY_MAX or not (before.isprintable() or not before):
        raise HTTPException(404, "This part of the list does not exist.")
    return Slice(before=before, limit=limit)


def act_of(form: Mapping[str, str]) -> Act:
    """Return what a form decides.

    Raises
    ------
    UsageError
        If it does not say.
    """
    try:
        return Act(form.get("act", ""))
    except ValueError:
        raise UsageError("the form does not say what is decided; load the page again") from None


def seen_of(form: Mapping[str, str]) -> ReviewedProposal:
    """Return what a form says that the person was shown.

    Raises
    ------
    UsageError
        If it names no artifact.
    """
    artifact, policy = form.get("artifact", ""), form.get("policy", "")
    if not _DIGEST.fullmatch(artifact) or not (policy == "" or _DIGEST.fullmatch(policy)):
        raise UsageError("the form names no artifact; load the page again")
    digest: Digest | None = policy or None
    return ReviewedProposal(artifact=artifact, policy=digest)


Code = Literal[
    "not-known", "other-site", "other-host", "form-too-old", "not-what-was-shown", "expired"
]
STATUS = {
    "not-known": 403,
    "other-site": 403,
    "other-host": 421,
    "form-too-old": 409,
    "not-what-was-shown": 409,
    "expired": 410,
}
"""HTTP status of each; other refusals are a conflict with how things stand, 409."""


def refused(code: Code, message: str) -> Refused:
    """Return a refusal with its code."""
    error = Refused(message)
    error.code = code
    return error


MAX_BYTES = 32 * 1024
"""A comment of 4,000 characters takes 12 bytes each at most when it is encoded."""
MAX_FIELDS = 16
READ_S = 10.0
"""Seconds in which a form must have come."""


async def form_of(request: Request) -> Mapping[str, str]:
    """Return the fields of a form.

    Raises
    ------
    UsageError
        If it is not a form, too large, too slow, has too many fields, or one of them twice.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise UsageError("a decision is sent by the form of the page, and this was none")
    try:
        async with asyncio.timeout(READ_S):
            text = await _bounded(request)
    except (TimeoutError, ClientDisconnect):
        raise UsageError("the form did not come in time; send it again") from None
    try:
        pairs = parse_qsl(
            text.decode("utf-8"),
            keep_blank_values=True,
            strict_parsing=True,
            errors="strict",
            max_num_fields=MAX_FIELDS,
        )
    except (UnicodeDecodeError, ValueError) as error:
        raise UsageError("the form cannot be read; load the page again") from error
    found = dict(pairs)
    if len(found) != len(pairs):
        raise UsageError("the form names a field twice; load the page again")
    return found


async def _bounded(request: Request) -> bytes:
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > MAX_BYTES:
            raise UsageError(f"the form is larger than {MAX_BYTES} bytes; shorten the comment")
        parts.append(part)
    return b"".join(parts)


def same_site(headers: Mapping[str, str], *, origins: frozenset[str]) -> None:
    """Refuse a form that another site has sent.

    Parameters
    ----------
    headers
        By name in lower case.
    origins
        What this page is called, such as ``http://127.0.0.1:9476``.

    Raises
    ------
    Refused
        With the code ``other-site``.
    """
    site = headers.get("sec-fetch-site", "same-origin")
    origin = headers.get("origin")
    if site != "same-origin" or origin is None or origin not in origins:
        raise refused("other-site", "another site has sent this form")


class Guard:
    """Refuses other hosts' names, and sets the headers that restrict browsers.

    Parameters
    ----------
    app
        The pages.
    hosts
        Host names that requests may have, in lower case, with their port unless it is the default.
    open_paths
        Paths that are served under any host name, such as those of probes.
    """

    def __init__(
        self, app: ASGIApp, *, hosts: frozenset[str], open_paths: frozenset[str] = frozenset()
    ) -> None:
        self._app = app
        self._hosts = hosts
        self._open = open_paths
        self._headers = [(name.encode(), value.encode()) for name, value in html.HEADERS.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *self._headers]
            await send(message)

        asked = [value for name, value in scope["headers"] if name == b"host"]
        known = len(asked) == 1 and asked[0].decode("latin-1").lower() in self._hosts
        if known or scope["path"] in self._open:
            await self._app(scope, receive, with_headers)
            return
        said = b"This page is not known by that name.\n"
        status = STATUS["other-host"]
        headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"cache-control", b"no-store")]
        await with_headers({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": said})


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
    >>> shown = FormToken(session="s", user="ada", key="p", artifact="sha256:aa", policy="")
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

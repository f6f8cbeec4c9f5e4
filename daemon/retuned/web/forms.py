"""What a browser sends with a POST, read within bounds."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from urllib.parse import parse_qsl

from starlette.requests import ClientDisconnect, Request

from retuned.errors import UsageError
from retuned.web.refusing import refused

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
        If it is no form, too large, too slow, has too many fields, or one of them twice.
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

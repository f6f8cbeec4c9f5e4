"""One message to one address: bounded in time and size, no redirects, no proxy of the environment.

The deadline covers the whole exchange, so a peer that sends single bytes gets no more time. Only a
name server that hangs may take longer. Errors never contain the address, which may be a secret.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

import httpx

from retuned.notify.messages import Call, Notice

WITHIN_S = 10.0
"""Deadline of sending and answering a message, seconds."""
_ANSWER_BYTES = 64 * 1024
_SHOWN = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Result of sending a message."""

    taken: bool
    detail: str = ""
    """The error; never a secret."""


def send(
    url: str,
    call: Call,
    *,
    headers: tuple[tuple[str, str], ...] = (),
    says_ok: bool = False,
    within_s: float = WITHIN_S,
) -> Answer:
    """Send a message once.

    `url` may be a secret; `headers` are credentials and signatures. With `says_ok` the answer
    must be JSON with ``ok``, as of Slack's methods with every status.
    """
    sent = [("content-type", "application/json; charset=utf-8"), *call.headers, *headers]
    try:
        response, body = asyncio.run(
            _exchange(url.rstrip("/") + call.path, call, headers=sent, within_s=within_s)
        )
    except TimeoutError:
        return Answer(taken=False, detail=f"no whole answer within {within_s:g} s")
    except httpx.TransportError as error:
        return Answer(taken=False, detail=f"no answer: {type(error).__name__}")
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, UnicodeError) as error:
        return Answer(taken=False, detail=f"cannot be sent: {type(error).__name__}")
    status = response.status_code
    if not 200 <= status < 300:
        return Answer(taken=False, detail=f"status {status}: {_shown(body)}")
    return _said(body) if says_ok else Answer(taken=True)


async def _exchange(
    url: str, call: Call, *, headers: list[tuple[str, str]], within_s: float
) -> tuple[httpx.Response, bytes]:
    """Return the answer and the beginning of its body.

    Time-outs of a connection count from its last byte on, so the deadline is set around it all.
    """
    async with (
        asyncio.timeout(within_s),
        httpx.AsyncClient(timeout=None, follow_redirects=False, trust_env=False) as client,
        client.stream(call.method, url, content=call.body, headers=headers) as response,
    ):
        return response, await _beginning(response)


async def _beginning(response: httpx.Response) -> bytes:
    body = bytearray()
    async for chunk in response.aiter_raw():
        body += chunk
        if len(body) >= _ANSWER_BYTES:
            break
    return bytes(body[:_ANSWER_BYTES])


def _said(body: bytes) -> Answer:
    """Parse the answer of a Slack method."""
    try:
        said = json.loads(body)
        taken, why = said.get("ok") is True, str(said.get("error", ""))[:60]
    except (ValueError, RecursionError, AttributeError):
        return Answer(taken=False, detail="the answer is not JSON")
    return Answer(taken=taken, detail="" if taken else f"the error is {why!r}")


def _shown(body: bytes) -> str:
    text = " ".join(body[:_SHOWN].decode("utf-8", "replace").split())
    return "".join(char if char.isprintable() else "?" for char in text)


Secret = Callable[[], str]
"""Reads a secret; see `read_secret`."""
Post = Callable[..., Answer]
"""`send`, or a test's."""


class Sink(Protocol):
    """One channel."""

    @property
    def name(self) -> str:
        """Name in metrics and logs."""
        ...

    @property
    def again_s(self) -> float | None:
        """Interval of repeating an open notice, seconds; None sends it once."""
        ...

    def takes(self, notice: Notice) -> bool: ...

    def send(self, notice: Notice, *, now: datetime) -> Answer:
        """Send a notice once.

        Raises
        ------
        UnreadableInput
            If a secret cannot be read.
        UsageError
            If the address is invalid.
        """
        ...


def bearer(token: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {token}"),)

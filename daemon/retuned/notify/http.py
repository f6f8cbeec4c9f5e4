"""One message to one address: bounded in time and size, no redirects, no proxy of the environment.

The bound in time is on the whole of it: a peer that drips bytes gets no longer than one that says
nothing. Only a name server that hangs may take longer, as long as the system's resolver lets it.

What goes wrong is said without the address, which may be a secret.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

import httpx

from retuned.notify.messages import Call, Notice

WITHIN_S = 10.0
"""A message is sent and answered within so long, or counts as not taken."""
_ANSWER_BYTES = 64 * 1024
_AGAIN = frozenset({408, 409, 425, 429, 500, 502, 503, 504})
_SHOWN = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What became of a message."""

    taken: bool
    """Whether the channel has it."""
    again: bool = False
    """Whether trying again soon may help."""
    pause_s: float = 0.0
    """How long the channel asks to be left alone, seconds."""
    detail: str = ""
    """What went wrong; never a secret."""


def send(
    url: str,
    call: Call,
    *,
    headers: tuple[tuple[str, str], ...] = (),
    says_ok: bool = False,
    within_s: float = WITHIN_S,
) -> Answer:
    """Send a message once.

    Parameters
    ----------
    url
        Base address; it may be a secret.
    call
        What to send.
    headers
        Credentials and signatures.
    says_ok
        Whether the answer is JSON that says ``ok``, as Slack's methods do with every status.
    within_s
        How long all of it may take, seconds.
    """
    sent = [("content-type", "application/json; charset=utf-8"), *call.headers, *headers]
    try:
        response, body = asyncio.run(
            _exchange(url.rstrip("/") + call.path, call, headers=sent, within_s=within_s)
        )
    except TimeoutError:
        return Answer(taken=False, again=True, detail=f"no whole answer within {within_s:g} s")
    except httpx.TransportError as error:
        return Answer(taken=False, again=True, detail=f"no answer: {type(error).__name__}")
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, UnicodeError) as error:
        return Answer(taken=False, detail=f"cannot be sent: {type(error).__name__}")
    status = response.status_code
    if not 200 <= status < 300:
        return Answer(
            taken=False,
            again=status in _AGAIN,
            pause_s=_pause(response.headers.get("retry-after", "")),
            detail=f"status {status}: {_shown(body)}",
        )
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
    """Read what one of Slack's methods says."""
    try:
        said = json.loads(body)
        taken, why = said.get("ok") is True, str(said.get("error", ""))[:60]
    except (ValueError, RecursionError, AttributeError):
        return Answer(taken=False, again=True, detail="the answer is no JSON")
    passing = why in {"ratelimited", "internal_error", "service_unavailable", "request_timeout"}
    return Answer(taken=taken, again=passing, detail="" if taken else f"says {why!r}")


def _pause(text: str) -> float:
    """Read seconds; a date or nonsense is as good as nothing."""
    try:
        seconds = float(text)
    except ValueError:
        return 0.0
    return min(seconds, 3600.0) if math.isfinite(seconds) and seconds > 0.0 else 0.0


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
        """How often something open is said again, seconds; None says it once."""
        ...

    def takes(self, notice: Notice) -> bool:
        """Whether this channel says such things."""
        ...

    def send(self, notice: Notice, *, now: datetime) -> Answer:
        """Say it, once.

        Raises
        ------
        UnreadableInput
            If a secret cannot be read.
        UsageError
            If the address is none.
        """
        ...


def bearer(token: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {token}"),)

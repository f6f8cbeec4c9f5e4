"""HTTP transport for any endpoint with OpenAI's ``/chat/completions`` interface.

The endpoint is untrusted. The transport uses exactly one address: it refuses redirects and ignores
proxies of the environment. Responses are bounded in size and time and must be JSON with that
content type.
"""

from __future__ import annotations

import asyncio
import json
import math
from dataclasses import dataclass
from typing import Any, Literal

import httpx

from retuned import urls
from retuned.errors import UsageError
from retuned.lab.llm.budget import Usage
from retuned.lab.llm.client import WireAnswer, WireFailed
from retuned.ports import ChatRequest

MAX_BODY_BYTES = 8 * 2**20
_CONNECT_S = 15.0
_AGAIN = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
_WORKED_ON = frozenset({408, 500, 502, 504})
"""Statuses after which the try counts as paid: the model may have run behind a gateway."""
_SHOWN = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Address and options of a model."""

    url: str
    """Base address, ``https://host/v1``; ``http`` only for this machine, or without a key."""
    model: str
    key: str = ""
    """Bearer token; empty sends none. It is never stored or logged."""
    temperature: float | None = None
    tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """The endpoint's field name of the answer's maximum length."""
    timeout_s: float = 180.0
    """Maximum wait for one answer, from the first byte sent to the last one read."""

    def __repr__(self) -> str:  # the key must not reach a log through a repr
        return f"Endpoint(model={self.model!r}, key={'set' if self.key else 'none'})"


class HttpWire:
    """Sends questions over HTTP, with a new connection each time.

    Raises
    ------
    UsageError
        If the address is invalid, or would send a key unencrypted.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        check_url(endpoint.url, key=bool(endpoint.key))
        if not endpoint.key.isascii() or not endpoint.key.isprintable():
            raise UsageError("the key of the model's endpoint holds characters that no key has")
        self._endpoint = endpoint
        self.model = endpoint.model
        self._url = endpoint.url.rstrip("/") + "/chat/completions"

    def ask(self, request: ChatRequest, *, timeout_s: float = math.inf) -> WireAnswer:
        wait_s = min(self._endpoint.timeout_s, timeout_s)
        try:
            status, headers, body = asyncio.run(self._post(request, wait_s=wait_s))
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            detail = f"cannot be reached: {type(error).__name__}"
            raise WireFailed("unreachable", detail=detail, again=True) from error
        except (TimeoutError, httpx.TimeoutException) as error:
            detail = f"no answer within {wait_s:.3g} s"
            raise WireFailed("timed-out", detail=detail, again=True, billed=True) from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            detail = f"the connection broke: {type(error).__name__}"
            raise WireFailed("unreadable-broken", detail=detail, again=True, billed=True) from error
        if status != 200:
            raise _refused(status, headers, body)
        return _read(headers, body)

    async def _post(
        self, request: ChatRequest, *, wait_s: float
    ) -> tuple[int, httpx.Headers, bytes]:
        endpoint = self._endpoint
        headers = {"accept": "application/json", "accept-encoding": "identity"}
        if endpoint.key:
            headers["authorization"] = f"Bearer {endpoint.key}"
        timeout = httpx.Timeout(wait_s, connect=min(_CONNECT_S, wait_s))
        async with (
            asyncio.timeout(wait_s),
            httpx.AsyncClient(
                follow_redirects=False, trust_env=False, timeout=timeout, headers=headers
            ) as client,
            client.stream("POST", self._url, json=self._body(request)) as response,
        ):
            status = response.status_code
            plain = response.headers.get("content-encoding", "identity") == "identity"
            if 300 <= status < 400 or (status != 200 and not plain):
                return status, response.headers, b""
            if not plain:
                raise WireFailed(
                    "unreadable-encoding",
                    detail="the body is compressed, which was not asked for",
                    again=False,
                    billed=True,
                )
            body = bytearray()
            async for chunk in response.aiter_raw():
                body += chunk
                if len(body) > MAX_BODY_BYTES:
                    detail = f"sends more than {MAX_BODY_BYTES} bytes"
                    raise WireFailed("answer-too-long", detail=detail, again=False, billed=True)
            return status, response.headers, bytes(body)

    def _body(self, request: ChatRequest) -> dict[str, Any]:
        endpoint = self._endpoint
        body: dict[str, Any] = {
            "model": endpoint.model,
            "messages": [{"role": m.role, "content": m.content} for m in request.messages],
            "stream": False,
            endpoint.tokens_field: request.max_tokens,
        }
        if endpoint.temperature is not None:
            body["temperature"] = endpoint.temperature
        return body


def check_url(url: str, *, key: bool) -> None:
    """Check an endpoint's address.

    Raises
    ------
    UsageError
        If it is not an http or https address, or a key would be sent unencrypted.

    Examples
    --------
    >>> check_url("http://127.0.0.1:8000/v1", key=True)
    >>> check_url("http://elsewhere.example/v1", key=True)
    Traceback (most recent call last):
    ...
    retuned.errors.UsageError: the model's address: a key is sent over https only, or to this very machine
    """  # noqa: E501 - a doctest's line
    urls.check_url(url, what="the model's address", secret=key)


def _refused(status: int, headers: httpx.Headers, body: bytes) -> WireFailed:
    if 300 <= status < 400:
        detail = f"answers {status}, a redirect, which is not followed; set the address it names"
        return WireFailed("redirected", detail=detail, again=False)
    said = " ".join(body[:_SHOWN].decode("utf-8", "replace").split())
    text = "".join(char if char.isprintable() else "?" for char in said)
    return WireFailed(
        f"status-{status}",
        detail=f"answers {status}: {text}",
        again=status in _AGAIN,
        pause_s=_retry_after(headers),
        billed=status in _WORKED_ON,
    )


def _retry_after(headers: httpx.Headers) -> float | None:
    """Parse seconds; a date or an invalid value counts as absent."""
    try:
        seconds = float(headers.get("retry-after", ""))
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) and seconds >= 0.0 else None


def _read(headers: httpx.Headers, body: bytes) -> WireAnswer:
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        detail = f"answers with content type {kind[:60]!r}, not application/json"
        raise WireFailed("unreadable-type", detail=detail, again=False, billed=True)
    try:
        answer = json.loads(body)
        choice = answer["choices"][0]
        text, finish = choice["message"]["content"], choice.get("finish_reason")
    except (ValueError, RecursionError, KeyError, IndexError, TypeError, AttributeError) as error:
        detail = f"the answer has another form: {type(error).__name__}"
        raise WireFailed("unreadable-json", detail=detail, again=True, billed=True) from error
    if not isinstance(text, str):
        detail = "the answer holds no text"
        raise WireFailed("unreadable-json", detail=detail, again=True, billed=True)
    ended = finish if isinstance(finish, str) else "unknown"
    return WireAnswer(text=text, finish=ended[:40], usage=_usage(answer.get("usage")))


def _usage(body: object) -> Usage | None:
    if not isinstance(body, dict):
        return None
    read, written = body.get("prompt_tokens"), body.get("completion_tokens")
    if type(read) is not int or type(written) is not int or read <= 0 or written < 0:
        return None
    if max(read, written) > 10**9:
        return None
    return Usage(prompt_tokens=read, completion_tokens=written)

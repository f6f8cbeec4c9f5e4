"""A server measured over HTTP, by any API that streams completions as OpenAI's does; and the fake.

The requests are the user's, one JSON object a line. They are sent unchanged except `stream` and,
where a prompt is given as text, a temperature of 0. Answers are untrusted: they are bounded in size
and time, and only their tokens, the probabilities and the end are read.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from retuned.errors import TemporaryError, UnreadableInput, UsageError
from retuned.stages.watch import Served, ServerResponse

__all__ = ["FakeEndToEnd", "HttpEndToEnd", "load_requests"]

MAX_REQUESTS = 1024
"""Requests of one pass."""
MAX_FILE_BYTES = 16 << 20
"""Longest file of requests."""
MAX_ANSWER_BYTES = 8 << 20
"""Longest answer that is read."""
MAX_TOKENS = 16_384
"""Most tokens of an answer that are read."""
_MAX_LINE_BYTES = 1 << 20
_CONNECT_S = 5.0
_RETRY_S = 5.0
_WORDS = re.compile(r"\s*\S+")


def load_requests(path: Path) -> tuple[Mapping[str, Any], ...]:
    """Read the requests of a pass.

    Raises
    ------
    UnreadableInput
        If the file cannot be read, or a line is not a JSON object.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        message = f"cannot be read ({error.strerror})"
        raise UnreadableInput("cannot-open", where=str(path), message=message) from error
    lines = [line for line in data.split(b"\n") if line.strip()]
    if len(data) > MAX_FILE_BYTES or not 1 <= len(lines) <= MAX_REQUESTS:
        message = f"holds {len(lines)} requests; 1 to {MAX_REQUESTS} can be sent"
        raise UnreadableInput("bad-requests", where=str(path), message=message)
    return tuple(_request(line, where=f"{path}: line {n}") for n, line in enumerate(lines, 1))


def _request(line: bytes, *, where: str) -> Mapping[str, Any]:
    try:
        body = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UnreadableInput("bad-requests", where=where, message=f"no JSON: {error}") from error
    if not isinstance(body, dict):
        raise UnreadableInput("bad-requests", where=where, message="no JSON object")
    spoken = "prompt" in body or "messages" in body
    return {**({"temperature": 0} if spoken else {}), **body, "stream": True}


class HttpEndToEnd:
    """An `EndToEnd` over a server's streaming API.

    Parameters
    ----------
    url
        Base address, such as ``http://127.0.0.1:8000/v1``.
    requests
        Bodies; those with ``messages`` go to ``/chat/completions``, others to ``/completions``.
    concurrency
        Requests under way at a time.
    timeout_s
        Longest time of one answer, seconds.

    Raises
    ------
    UsageError
        If the address is not an HTTP address.
    """

    def __init__(
        self,
        url: str,
        requests: Sequence[Mapping[str, Any]],
        *,
        concurrency: int = 4,
        timeout_s: float = 300.0,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
            raise UsageError("end_to_end_url must begin with http:// or https:// and name a host")
        self._url = url.rstrip("/")
        self._requests = tuple(requests)
        self._concurrency = concurrency
        self._timeout_s = timeout_s

    def serve(self) -> Served:
        """Send every request once; see `EndToEnd.serve`."""
        timeout = httpx.Timeout(self._timeout_s, connect=_CONNECT_S)
        limits = httpx.Limits(max_connections=self._concurrency)
        with (
            httpx.Client(
                timeout=timeout,
                limits=limits,
                trust_env=False,
                follow_redirects=False,
                headers={"accept-encoding": "identity"},
            ) as client,
            ThreadPoolExecutor(self._concurrency) as pool,
        ):
            begin_s = time.perf_counter()
            answers = tuple(pool.map(lambda body: self._ask(client, body), self._requests))
            wall_s = time.perf_counter() - begin_s
        if all(answer.failed for answer in answers):
            message = f"{self._url}: none of {len(answers)} requests was answered"
            raise TemporaryError(message, delay_s=_RETRY_S)
        return Served(answers=answers, wall_s=wall_s)

    def _ask(self, client: httpx.Client, body: Mapping[str, Any]) -> ServerResponse:
        """Send one request; whatever goes wrong with it is an answer that failed."""
        path = "/chat/completions" if "messages" in body else "/completions"
        begin_s = time.perf_counter()
        heard = _Heard(begin_s=begin_s, until_s=begin_s + self._timeout_s)
        try:
            with client.stream("POST", self._url + path, json=dict(body)) as response:
                if response.status_code != 200:
                    return ServerResponse(failed=True)
                for line in _lines(response, until_s=heard.until_s):
                    if heard.take(line):
                        break
        except (httpx.HTTPError, _Unbounded):
            return ServerResponse(failed=True)
        return heard.answer()


class _Unbounded(Exception):
    """An answer that is longer, in bytes, tokens or time, than any that is read."""


def _lines(response: httpx.Response, *, until_s: float) -> Iterator[str]:
    size, rest = 0, b""
    for chunk in response.iter_raw():
        size += len(chunk)
        if size > MAX_ANSWER_BYTES or len(rest) > _MAX_LINE_BYTES:
            raise _Unbounded
        if time.perf_counter() > until_s:  # a line that never ends is never taken in
            raise _Unbounded
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield line.decode("utf-8", errors="replace").strip()
    yield rest.decode("utf-8", errors="replace").strip()


@dataclass(slots=True)
class _Heard:
    """What has come of one answer."""

    begin_s: float
    until_s: float
    tokens: list[str] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    first_s: float | None = None
    last_s: float = 0.0
    ended: bool = False

    def take(self, line: str) -> bool:
        """Take one line of the stream in; return whether it was the last."""
        if time.perf_counter() > self.until_s or len(self.tokens) > MAX_TOKENS:
            raise _Unbounded
        if not line.startswith("data:"):
            return False
        said = line.removeprefix("data:").strip()
        if said == "[DONE]":
            self.ended = True
            return True
        try:
            event = json.loads(said)
        except (ValueError, RecursionError):
            return False
        if isinstance(event, dict) and self._told(event):
            self.last_s = time.perf_counter()
            self.first_s = self.first_s or self.last_s
        return False

    def _told(self, event: Mapping[str, Any]) -> bool:
        """Read an event; return whether it brought anything of the answer."""
        if type(event.get("token")) is int:  # a server that speaks in tokens only
            self.tokens.append(str(event["token"]))
            return True
        choices = event.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        if not isinstance(choice, dict):
            return False
        delta = choice.get("delta")
        text = delta.get("content") if isinstance(delta, dict) else choice.get("text")
        if not isinstance(text, str) or not text:
            return False
        self.text.append(text)
        self._told_tokens(choice.get("logprobs"))
        return True

    def _told_tokens(self, said: object) -> None:
        """Read tokens and probabilities as completions, or as chat completions tell them."""
        if not isinstance(said, dict):
            return
        content = said.get("content")
        if isinstance(content, list):
            pairs = [(e.get("token"), e.get("logprob")) for e in content if isinstance(e, dict)]
        else:
            names, numbers = said.get("tokens"), said.get("token_logprobs")
            if not isinstance(names, list) or not isinstance(numbers, list):
                return
            pairs = list(zip(names, numbers, strict=False))
        for name, number in pairs:
            if isinstance(name, str) and isinstance(number, (int, float)):
                self.tokens.append(name)
                self.logprobs.append(max(-1e4, min(1e4, float(number))))

    def answer(self) -> ServerResponse:
        """Return the answer; if the server reports no tokens, the words of the text count."""
        if not self.ended or self.first_s is None:
            return ServerResponse(failed=True)
        tokens = self.tokens or _WORDS.findall("".join(self.text)) or ["".join(self.text)]
        further = len(tokens) - 1
        took_s = self.last_s - self.first_s
        return ServerResponse(
            tokens=tuple(tokens),
            logprobs=tuple(self.logprobs),
            ttft_s=max(self.first_s - self.begin_s, 1e-9),
            tpot_s=took_s / further if further and took_s > 0.0 else None,
        )


@dataclass(slots=True)
class FakeEndToEnd:
    """Hands out what a test wrote, and counts how often it was asked."""

    script: list[Served | Exception] = field(default_factory=list)
    """Answers in order; the last one repeatedly."""
    passes: int = 0
    """How often it was asked."""

    def serve(self) -> Served:
        """Return the next answer; see `EndToEnd.serve`."""
        self.passes += 1
        if not self.script:
            raise TemporaryError("the fake server is away", delay_s=_RETRY_S)
        said = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if isinstance(said, Exception):
            raise said
        return said

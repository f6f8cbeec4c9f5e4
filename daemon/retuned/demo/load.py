"""Sends traffic to a server, with a cap on requests in flight, and checks every answer.

A request is ok only if its stream has exactly the requested tokens, the usage that
belongs to them and the end mark. Everything else is a failure with a reason.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from retuned.demo.throughput import Timeline
from retuned.demo.traffic import SCALES, Phase, Request, Scale, Traffic

_MAX_EVENT_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """One request that came to an end."""

    t_s: float
    """When, monotonic seconds."""
    phase: Phase
    """Traffic it was part of."""
    failure: str | None
    """Why it failed, a stable code; None if all went well."""
    prompt_tokens: int
    """Sent."""
    output_tokens: int
    """Received."""
    latency_s: float
    """From sending to the end."""
    ttft_s: float | None
    """From sending to the first token; None if none came."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSettings:
    """How to send."""

    in_flight: int = 8
    """Most requests at once; the server is saturated when it never has fewer."""
    timeout_s: float = 60.0
    """A request that takes longer has failed."""
    vocab: int = 2048
    """Tokens are drawn below this."""
    seed: int = 0
    """Of lengths, gaps and tokens."""
    scale: Scale = SCALES["cpu"]
    """How the traffic of a data centre becomes this one's."""


class RequestFailed(Exception):
    """One request failed; carries its stable reason."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class LoadGenerator:
    """Replays traffic until stopped; all methods belong to one event loop.

    Parameters
    ----------
    url
        Of the server, such as ``http://127.0.0.1:8000``.
    phase
        Traffic to begin with.
    settings
        How to send.
    """

    def __init__(self, url: str, *, phase: Phase, settings: LoadSettings) -> None:
        self._url = url.rstrip("/") + "/v1/completions"
        self._settings = settings
        self._traffic = {each: Traffic(each, scale=self._settings.scale) for each in Phase}
        self._rng = random.Random(settings.seed)
        self._stop = asyncio.Event()
        self.phase = phase
        self.sent = 0
        self.ended: list[Ended] = []
        self.failures: Counter[str] = Counter()
        self.timeline = Timeline()

    @property
    def in_flight(self) -> int:
        """Requests sent and not ended."""
        return self.sent - len(self.ended)

    @property
    def failed(self) -> int:
        """Requests that failed."""
        return self.failures.total()

    def stop(self) -> None:
        """Send no more; `run` returns when what is in flight has ended."""
        self._stop.set()

    async def run(self) -> None:
        """Send until `stop`."""
        slots = asyncio.Semaphore(self._settings.in_flight)
        limits = httpx.Limits(max_connections=self._settings.in_flight, keepalive_expiry=300)
        async with (
            httpx.AsyncClient(limits=limits, timeout=None, trust_env=False) as client,
            asyncio.TaskGroup() as group,
        ):
            while not self._stop.is_set():
                await slots.acquire()
                if self._stop.is_set():
                    break
                request = self._traffic[self.phase].draw(self._rng)
                group.create_task(self._send(client, request, slots))
                await self._pause(request.gap_s)

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._stop.wait()
        except TimeoutError:
            return

    async def _send(
        self, client: httpx.AsyncClient, request: Request, slots: asyncio.Semaphore
    ) -> None:
        phase, started_s = self.phase, time.monotonic()
        answer = StreamedAnswer(request, self.timeline)
        failure: str | None = None
        self.sent += 1
        try:
            async with asyncio.timeout(self._settings.timeout_s):
                await self._exchange(client, request, answer)
        except RequestFailed as error:
            failure = error.reason
        except TimeoutError:
            failure = "timeout"
        except httpx.HTTPError as error:
            failure = "no-connection" if isinstance(error, httpx.ConnectError) else "cut-short"
        finally:
            slots.release()
        ended_s = time.monotonic()
        if failure is not None:
            self.failures[failure] += 1
        first_s = answer.first_s
        self.ended.append(
            Ended(
                t_s=ended_s,
                phase=phase,
                failure=failure,
                prompt_tokens=request.prompt_tokens,
                output_tokens=answer.tokens,
                latency_s=ended_s - started_s,
                ttft_s=None if first_s is None else first_s - started_s,
            )
        )

    async def _exchange(
        self, client: httpx.AsyncClient, request: Request, answer: StreamedAnswer
    ) -> None:
        vocab = self._settings.vocab
        prompt = [self._rng.randrange(vocab) for _ in range(request.prompt_tokens)]
        await exchange(client, self._url, prompt=prompt, answer=answer)


async def exchange(
    client: httpx.AsyncClient, url: str, *, prompt: Sequence[int], answer: StreamedAnswer
) -> None:
    """Send one request and read its stream into `answer` to the end.

    Raises
    ------
    RequestFailed
        If anything else comes back than exactly what was asked for.
    httpx.HTTPError
        If the connection cannot be made, or breaks.
    """
    wanted = answer.request.output_tokens
    body = {"prompt_tokens": list(prompt), "max_tokens": wanted, "stream": True}
    async with client.stream("POST", url, json=body) as response:
        if response.status_code != 200:
            raise RequestFailed(f"status-{response.status_code}")
        async for event in events_of(response.aiter_raw()):
            answer.take(event)
    answer.check()


class StreamedAnswer:
    """One stream, as far as it came.

    Parameters
    ----------
    request
        What was asked for.
    timeline
        Where its work is noted.
    """

    def __init__(self, request: Request, timeline: Timeline) -> None:
        self.token_ids: list[int] = []
        self.first_s: float | None = None
        self.request = request
        self._timeline = timeline
        self._usage: Any = None
        self._done = False

    @property
    def tokens(self) -> int:
        """Tokens received."""
        return len(self.token_ids)

    def take(self, event: bytes) -> None:
        """Read one event.

        Raises
        ------
        RequestFailed
            If it is not what may come next.
        """
        if self._done:
            raise RequestFailed("after-the-end")
        if event == b"[DONE]":
            self._done = True
            return
        try:
            body = json.loads(event)
        except ValueError as error:
            raise RequestFailed("bad-event") from error
        if not isinstance(body, dict) or "error" in body:
            raise RequestFailed("error-event" if isinstance(body, dict) else "bad-event")
        if "usage" in body:
            self._usage = body["usage"]
        elif type(body.get("token")) is int:
            self._count(body["token"])
        else:
            raise RequestFailed("bad-event")

    def check(self) -> None:
        """Raise unless everything came that was asked for.

        Raises
        ------
        RequestFailed
            With what is missing.
        """
        if not self._done:
            raise RequestFailed("cut-short")
        asked, sent = self.request.output_tokens, self.request.prompt_tokens
        if self.tokens != asked:
            raise RequestFailed("wrong-token-count")
        if self._usage != {"prompt_tokens": sent, "completion_tokens": asked}:
            raise RequestFailed("wrong-usage")

    def _count(self, token: int) -> None:
        now_s = time.monotonic()
        prompt = 0
        if self.first_s is None:
            self.first_s = now_s
            prompt = self.request.prompt_tokens
        self.token_ids.append(token)
        self._timeline.add(now_s, prompt_tokens=prompt, output_tokens=1)


async def events_of(parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Cut a stream into the data of its server-sent events; an unfinished last one is dropped.

    Raises
    ------
    RequestFailed
        If something else than data events comes, or an event without end.
    """
    rest = b""
    async for part in parts:
        *whole, rest = (rest + part).split(b"\n\n")
        if len(rest) > _MAX_EVENT_BYTES:
            raise RequestFailed("bad-event")
        for event in whole:
            if not event.startswith(b"data: "):
                raise RequestFailed("bad-event")
            yield event[len(b"data: ") :]

"""Requests of the two phases, drawn from the demo's traffic, and who sends them and keeps answers.

Chat has short prompts and longer answers, code long prompts and short answers. A list of requests
is a function of phase, count and seed, so that every side of a comparison gets the same work.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import httpx

from retuned.demo.load import RequestFailed, StreamedAnswer, exchange
from retuned.demo.throughput import Timeline
from retuned.demo.traffic import Phase, Request, Scale, Traffic

SCALES: Mapping[str, Mapping[Phase, Scale]] = {
    "gpu": {
        Phase.CHAT: Scale(prompt_divisor=16.0, prompt_cap=128, output_divisor=2.0, output_cap=96),
        Phase.CODE: Scale(prompt_divisor=3.0, prompt_cap=640, output_divisor=2.0, output_cap=24),
    },
    "tiny": {
        Phase.CHAT: Scale(prompt_divisor=128.0, prompt_cap=12, output_divisor=40.0, output_cap=4),
        Phase.CODE: Scale(prompt_divisor=32.0, prompt_cap=60, output_divisor=40.0, output_cap=2),
    },
}
"""By model: the shapes of both distributions stay, their lengths fit into the model's rows."""
VOCAB: Mapping[str, int] = {"gpu": 32000, "tiny": 512}
"""Tokens known, by model."""
TIMEOUT_S = 60.0
"""A request that takes longer has failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One request."""

    phase: Phase
    """Traffic it is part of."""
    prompt: tuple[int, ...]
    """Token ids."""
    output_tokens: int
    """Tokens asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """One request that came to an end."""

    asked: Asked
    """What was asked."""
    tokens: tuple[int, ...]
    """What came."""
    failure: str | None
    """Why it failed, a stable code; None if all went well."""
    latency_s: float
    """From sending to the end."""
    ttft_s: float | None
    """From sending to the first token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """A list of requests, answered."""

    answers: tuple[Answered, ...]
    """In the order of the requests."""
    seconds: float
    """From the first request sent to the last answer's end."""

    @property
    def tokens_per_s(self) -> float:
        """Prompt and generated tokens a second."""
        return sum(len(a.asked.prompt) + len(a.tokens) for a in self.answers) / self.seconds

    @property
    def failed(self) -> int:
        """Requests that failed."""
        return sum(answer.failure is not None for answer in self.answers)


def endless(phase: Phase, *, model: str, seed: int) -> Iterator[Asked]:
    """Yield requests of a phase without end, always the same for a seed."""
    traffic, rng = Traffic(phase, scale=SCALES[model][phase]), random.Random(seed)
    while True:
        drawn = traffic.draw(rng)
        prompt = tuple(rng.randrange(VOCAB[model]) for _ in range(drawn.prompt_tokens))
        yield Asked(phase=phase, prompt=prompt, output_tokens=drawn.output_tokens)


def requests_of(phase: Phase, count: int, *, model: str, seed: int) -> tuple[Asked, ...]:
    """Return the first `count` of them."""
    return tuple(itertools.islice(endless(phase, model=model, seed=seed), count))


def play(url: str, requests: Sequence[Asked], *, in_flight: int) -> Played:
    """Send requests, so many at a time, and wait for all answers."""
    kept: dict[int, Answered] = {}

    async def everything() -> float:
        numbered = iter(enumerate(requests))
        start_s = time.perf_counter()
        await _senders(url, numbered, kept, in_flight=in_flight)
        return time.perf_counter() - start_s

    seconds = asyncio.run(everything())
    return Played(answers=tuple(kept[n] for n in range(len(requests))), seconds=seconds)


def play_together(url: str, requests: Sequence[Asked]) -> Played:
    """Send requests while the server holds its steps, so that it composes batches as ever.

    The first request is begun on alone; all others wait in their order when the server is let go.
    From then on which sequence runs in which step depends on lengths alone.
    """
    kept: dict[int, Answered] = {}

    async def everything() -> float:
        async with httpx.AsyncClient(trust_env=False, timeout=TIMEOUT_S) as control:
            await _switch(control, url, "hold", on=True)
            start_s = time.perf_counter()
            tasks = []
            for number, asked in enumerate(requests):
                turn = iter([(number, asked)])
                tasks.append(asyncio.create_task(_senders(url, turn, kept, in_flight=1)))
                await asyncio.sleep(0.03)  # one after the other: their order is the batch's
            await _switch(control, url, "hold", on=False)
            await asyncio.gather(*tasks)
            return time.perf_counter() - start_s

    seconds = asyncio.run(everything())
    return Played(answers=tuple(kept[n] for n in range(len(requests))), seconds=seconds)


async def _switch(client: httpx.AsyncClient, url: str, what: str, *, on: bool) -> None:
    answer = await client.post(f"{url}/live/{what}", json={"on": on})
    answer.raise_for_status()


async def _senders(
    url: str,
    requests: Iterable[tuple[int, Asked]],
    kept: dict[int, Answered],
    *,
    in_flight: int,
    stop: threading.Event | None = None,
    pause_s: Callable[[], float] = lambda: 0.0,
) -> None:
    async def sender(client: httpx.AsyncClient) -> None:
        for number, asked in requests:
            kept[number] = await _ask(client, url, asked)
            if stop is not None and stop.is_set():
                return
            await asyncio.sleep(pause_s())

    limits = httpx.Limits(max_connections=in_flight, keepalive_expiry=300)
    async with (
        httpx.AsyncClient(limits=limits, timeout=None, trust_env=False) as client,
        asyncio.TaskGroup() as group,
    ):
        for _ in range(in_flight):
            group.create_task(sender(client))


async def _ask(client: httpx.AsyncClient, url: str, asked: Asked) -> Answered:
    request = Request(prompt_tokens=len(asked.prompt), output_tokens=asked.output_tokens, gap_s=0.0)
    answer, failure = StreamedAnswer(request, Timeline()), None
    start_s, sent_s = time.perf_counter(), time.monotonic()
    try:
        async with asyncio.timeout(TIMEOUT_S):
            await exchange(client, f"{url}/v1/completions", prompt=asked.prompt, answer=answer)
    except RequestFailed as error:
        failure = error.reason
    except TimeoutError:
        failure = "timeout"
    except httpx.HTTPError as error:
        failure = "no-connection" if isinstance(error, httpx.ConnectError) else "cut-short"
    return Answered(
        asked=asked,
        tokens=tuple(answer.token_ids),
        failure=failure,
        latency_s=time.perf_counter() - start_s,
        ttft_s=None if answer.first_s is None else answer.first_s - sent_s,
    )


class Background:
    """Traffic that goes on in a thread until it is stopped, with a phase that can be switched.

    Parameters
    ----------
    url
        Of the server.
    model
        Which lengths.
    in_flight
        Requests at a time.
    seed
        Of the requests.
    """

    def __init__(self, url: str, *, model: str, in_flight: int, seed: int) -> None:
        self.phase = Phase.CHAT
        self.pause_s = 0.0
        """Between a sender's requests, seconds."""
        self.answers: dict[int, Answered] = {}
        self._url = url
        self._in_flight = in_flight
        self._sources = {p: endless(p, model=model, seed=seed) for p in Phase}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="traffic", daemon=True)
        self._thread.start()

    def stop(self) -> tuple[Answered, ...]:
        """Send no more, wait for what is in flight, and return every answer."""
        self._stop.set()
        self._thread.join(2 * TIMEOUT_S)
        return tuple(self.answers[number] for number in sorted(self.answers))

    def _run(self) -> None:
        requests = ((n, next(self._sources[self.phase])) for n in itertools.count())
        asyncio.run(
            _senders(self._url, requests, self.answers, in_flight=self._in_flight, stop=self._stop)
        )

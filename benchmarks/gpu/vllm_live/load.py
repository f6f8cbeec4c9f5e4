"""Traffic of the show, and what it measures: completions, decoding, and fixed prompts."""

from __future__ import annotations

import asyncio
import json
import math
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
from benchmarks.gpu.vllm_live.models import VOCABULARY

_T_95 = (12.7, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13)


def prompt(seed: object, length: int) -> list[int]:
    """Return token ids; the same for the same seed."""
    chosen = random.Random(f"{seed}")
    return [chosen.randrange(4, VOCABULARY) for _ in range(length)]


def interval(log_ratios: Sequence[float]) -> dict[str, float] | None:
    """Return the geometric mean of ratios with its 95 % interval (t)."""
    count = len(log_ratios)
    if count < 2:
        return None
    middle, spread = statistics.mean(log_ratios), statistics.stdev(log_ratios)
    t = _T_95[min(count - 2, len(_T_95) - 1)]
    half = t * spread / math.sqrt(count)
    bounds = {"ratio": middle, "low": middle - half, "high": middle + half}
    return {"pairs": count} | {name: round(math.exp(x), 4) for name, x in bounds.items()}


@dataclass(frozen=True, slots=True)
class Done:
    """One completed request; times of the monotonic clock, seconds."""

    sent_s: float
    ended_s: float
    prompt_tokens: int
    tokens: int


def durations(done: Sequence[Done], *, after_s: float) -> dict[str, float]:
    """Return the number of requests that ended after a time, and how long they took, seconds."""
    took_s = sorted(each.ended_s - each.sent_s for each in done if each.ended_s >= after_s)
    if not took_s:
        return {"requests": 0}
    return {
        "requests": len(took_s),
        "median_s": round(statistics.median(took_s), 3),
        "p99_s": round(took_s[int(0.99 * (len(took_s) - 1))], 3),
        "longest_s": round(took_s[-1], 3),
    }


@dataclass(slots=True)
class Load:
    """Keeps a number of requests under way until it is stopped.

    `lengths` are the prompts' tokens in turn, `output` the tokens of each answer.
    """

    url: str
    concurrency: int
    lengths: Sequence[int]
    output: int
    seed: str = "load"
    done: list[Done] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    _on: bool = True
    _sent: int = 0
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)
    _http: httpx.AsyncClient | None = None
    _bodies: list[tuple[int, bytes]] = field(default_factory=list)

    async def start(self) -> Load:
        """Begin."""
        self._http = _client()
        for index in range(max(8, len(self.lengths))):
            length = self.lengths[index % len(self.lengths)]
            ids = prompt(f"{self.seed}/{index}", length)
            self._bodies.append((length, _body(ids, self.output)))
        self._tasks = [asyncio.create_task(self._worker()) for _ in range(self.concurrency)]
        return self

    async def _worker(self) -> None:
        assert self._http is not None, "started"
        while self._on:
            length, body = self._bodies[self._sent % len(self._bodies)]
            self._sent += 1
            sent_s = time.monotonic()
            try:
                answer = await self._http.post(
                    self.url + "/v1/completions", content=body, headers=_JSON
                )
                answer.raise_for_status()
                used = answer.json()["usage"]["completion_tokens"]
                self.done.append(Done(sent_s, time.monotonic(), length, used))
            except (httpx.HTTPError, KeyError, ValueError) as error:
                self.failed.append(f"after {time.monotonic() - sent_s:.2f} s: {error!r}"[:200])
                await asyncio.sleep(0.2)

    async def until(self, count: int, *, limit_s: float = 120.0) -> None:
        """Wait until so many requests are done."""
        begin_s = time.monotonic()
        while len(self.done) < count:
            if time.monotonic() - begin_s > limit_s:
                raise TimeoutError(f"{len(self.done)} of {count} requests in {limit_s} s")
            await asyncio.sleep(0.002)

    async def stop(self) -> None:
        """End after the requests under way."""
        self._on = False
        await asyncio.gather(*self._tasks)
        if self._http is not None:
            await self._http.aclose()


_JSON = {"Content-Type": "application/json"}


def _body(ids: list[int], tokens: int, **more: object) -> bytes:
    return json.dumps(
        {
            "model": "m",
            "prompt": ids,
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "seed": 0,
            **more,
        }
    ).encode()


def _client() -> httpx.AsyncClient:
    """Return a client without a limit of connections.

    A connection that was idle for 5 s may be closed by the server in the moment of its next use;
    seen against a vLLM without Retuned.
    """
    limits = httpx.Limits(max_connections=None, keepalive_expiry=1.0)
    return httpx.AsyncClient(timeout=300.0, limits=limits)


async def decoding(url: str, *, count: int, length: int, tokens: int) -> dict[str, Any]:
    """Decode `count` prompts together; return milliseconds a token.

    Answers of two lengths are asked for, and the difference of their times counts: prefill is in
    both, and no stream is read, which would take a client of Python as long as a step.
    """

    async def batch(http: httpx.AsyncClient, size: int) -> float:
        begin_s = time.monotonic()

        async def one(index: int) -> None:
            body = _body(prompt(f"stream/{index}", length), size)
            answer = await http.post(url + "/v1/completions", content=body, headers=_JSON)
            answer.raise_for_status()

        await asyncio.gather(*map(one, range(count)))
        return time.monotonic() - begin_s

    async with _client() as http:
        short_s, long_s = [await batch(http, size) for size in (tokens, 4 * tokens)]
    return {
        "streams": count,
        "prompt_tokens": length,
        "seconds": [round(short_s, 4), round(long_s, 4)],
        "ms_per_token": round(1e3 * (long_s - short_s) / (3 * tokens), 4),
    }


async def answers(url: str, lengths: Sequence[int], *, tokens: int = 16) -> list[dict[str, Any]]:
    """Return greedy answers to fixed prompts, one request at a time, with log-probabilities."""
    found = []
    async with _client() as http:
        for index, length in enumerate(lengths):
            body = _body(
                prompt(f"answer/{index}", length), tokens, logprobs=2, return_token_ids=True
            )
            answer = await http.post(url + "/v1/completions", content=body, headers=_JSON)
            answer.raise_for_status()
            choice = answer.json()["choices"][0]
            said = choice.get("logprobs") or {}
            tops = [sorted(each.values())[-2:] for each in said.get("top_logprobs") or [] if each]
            found.append(
                {
                    "tokens": choice.get("token_ids") or choice["text"],
                    "gaps": [round(b - a, 4) for a, b in (x for x in tops if len(x) == 2)],
                    "logprobs": said.get("token_logprobs") or [],
                }
            )
    return found


def compared(one: Sequence[dict[str, Any]], other: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return how many answers are equal, and where the others part: the gap shows a tie."""
    parted = []
    distance = 0.0
    for index, (a, b) in enumerate(zip(one, other, strict=True)):
        pairs = list(zip(a["tokens"], b["tokens"], strict=False))
        at = next((i for i, (x, y) in enumerate(pairs) if x != y), None)
        shared = len(pairs) if at is None else at
        for x, y in list(zip(a["logprobs"], b["logprobs"], strict=False))[:shared]:
            distance = max(distance, abs(x - y))
        if at is not None:
            gap = a["gaps"][at] if at < len(a["gaps"]) else None
            parted.append({"answer": index, "token": at, "gap_of_the_two_best": gap})
    return {
        "equal": len(one) - len(parted),
        "of": len(one),
        "parted": parted,
        "largest_logprob_distance_while_equal": round(distance, 5),
    }

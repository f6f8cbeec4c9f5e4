"""Continuous batching: sequences join and leave the running batch at every step.

`Engine.step` does one step and is what the tests drive; `Engine.start` runs it in a thread of its
own, which alone touches the model and its caches. Everything else talks to it through `submit` and
`cancel`, and hears from it through `deliver`, called in the engine's thread once per step.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic

from retuned import runtime
from retuned.demo.batches import (
    C,
    Chunk,
    EngineLimits,
    Finish,
    Model,
    Need,
    Progress,
    Share,
    StepHook,
    StepReport,
    plan_step,
)
from retuned.errors import TemporaryError

log = logging.getLogger(__name__)

# What a model or one of its kernels may raise; such a step fails its requests, not the server.
STEP_ERRORS = (RuntimeError, ValueError, TypeError, ArithmeticError, LookupError, OSError)


@dataclass(slots=True)
class _Sequence(Generic[C]):
    id: int
    pending: list[int]
    remaining: int
    prompt_left: int
    computed: int = 0
    """Tokens in the cache."""
    cache: C | None = field(default=None)


class Engine(Generic[C]):
    """Runs a model for many requests at once.

    Parameters
    ----------
    model
        What computes.
    limits
        Bounds of the batch.
    deliver
        Receives the news of each step, in the engine's thread; must not block.
    hooks
        Called around each step.
    """

    def __init__(
        self,
        model: Model[C],
        *,
        limits: EngineLimits,
        deliver: Callable[[Sequence[Progress]], None],
        hooks: Sequence[StepHook] = (),
    ) -> None:
        self._model = model
        self._limits = limits
        self._deliver = deliver
        self._hooks = tuple(hooks)
        self._free: list[C] = [model.new_cache() for _ in range(limits.max_running)]
        self._running: dict[int, _Sequence[C]] = {}
        self._waiting: deque[_Sequence[C]] = deque()
        self._cancelled: set[int] = set()
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None
        self._next_id = 1
        self._stopped = False
        self._idle = True
        """Whether there was nothing to run before the next step."""

    @property
    def alive(self) -> bool:
        """Whether the thread runs and requests are taken."""
        return self._thread is not None and self._thread.is_alive() and not self._stopped

    def submit(self, prompt: Sequence[int], *, max_tokens: int) -> int:
        """Queue a request and return its id.

        Raises
        ------
        TemporaryError
            If the queue is full or the engine has stopped.
        ValueError
            If there is nothing to compute.
        """
        if not prompt or max_tokens < 1:
            raise ValueError("a request needs at least one prompt token and one output token")
        with self._wake:
            if self._stopped:
                raise TemporaryError("the engine is stopping", delay_s=5.0)
            if len(self._waiting) >= self._limits.max_waiting:
                raise TemporaryError(f"{len(self._waiting)} requests wait already", delay_s=1.0)
            id, self._next_id = self._next_id, self._next_id + 1
            self._waiting.append(_Sequence(id, list(prompt), max_tokens, len(prompt)))
            self._wake.notify()
        return id

    def cancel(self, id: int) -> None:
        """Forget a request whose client has gone; one that has ended is left alone."""
        with self._wake:
            self._cancelled.add(id)
            self._wake.notify()

    def step(self) -> StepReport | None:
        """Admit, run one step, deliver; None if there was nothing to run."""
        self._admit()
        needs = [Need(id=s.id, pending=len(s.pending)) for s in self._running.values()]
        shares = plan_step(needs, token_budget=self._limits.token_budget)
        if not shares:
            self._idle = True
            return None
        batch = [self._running[share.id] for share in shares]
        prompts = sum(
            min(sequence.prompt_left, share.tokens)
            for sequence, share in zip(batch, shares, strict=True)
        )
        for hook in self._hooks:
            hook.before_step()
        started = time.perf_counter()
        try:
            with self._marked(batch, shares):
                news = self._compute(batch, shares)
        except STEP_ERRORS:
            log.exception("step of %d sequences failed; their requests fail", len(batch))
            news = self._fail(batch)
        self._deliver(news)
        report = StepReport(
            duration_s=time.perf_counter() - started,
            prefill_tokens=prompts,
            output_tokens=sum(item.token is not None for item in news),
            running=len(self._running),
            waiting=len(self._waiting),
            failed=sum(item.finish is Finish.ERROR for item in news),
        )
        for hook in self._hooks:
            hook.after_step(report)
        return report

    def start(self) -> None:
        """Run steps in a thread until `stop`."""
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def stop(self, *, timeout_s: float = 10.0) -> None:
        """End after the present step; requests that are left fail."""
        with self._wake:
            self._stopped = True
            self._wake.notify()
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            while not self._stopped:
                if self.step() is None:
                    with self._wake:
                        self._wake.wait_for(lambda: self._waiting or self._stopped)
        finally:
            with self._wake:
                self._stopped = True
                left = [*self._running.values(), *self._waiting]
                self._waiting.clear()
            self._deliver(self._fail(left))
            for hook in self._hooks:
                hook.stopped()

    def _admit(self) -> None:
        with self._wake:
            gone, self._cancelled = self._cancelled, set()
            if gone:
                self._waiting = deque(s for s in self._waiting if s.id not in gone)
            for id in gone & self._running.keys():
                self._release(self._running[id])
            while self._waiting and self._free:
                sequence = self._waiting.popleft()
                sequence.cache = self._free.pop()
                sequence.cache.clear()
                self._running[sequence.id] = sequence

    def _marked(self, batch: Sequence[_Sequence[C]], shares: Sequence[Share]) -> runtime.step:
        """Return the mark of this step, so that a live proof compares it with steps like it."""
        after_idle, self._idle = self._idle, False
        tokens = [share.tokens for share in shares]
        decode = tokens.count(1)
        return runtime.step(
            prefill=sum(tokens) - decode,
            decode=decode,
            context=sum(sequence.computed for sequence in batch),
            after_idle=after_idle,
        )

    def _compute(self, batch: Sequence[_Sequence[C]], shares: Sequence[Share]) -> list[Progress]:
        chunks = [
            Chunk(sequence.pending[: share.tokens], _cache_of(sequence), share.completes)
            for sequence, share in zip(batch, shares, strict=True)
        ]
        tokens = iter(self._model.forward(chunks))
        news = []
        for sequence, share in zip(batch, shares, strict=True):
            sequence.prompt_left = max(0, sequence.prompt_left - share.tokens)
            del sequence.pending[: share.tokens]
            sequence.computed += share.tokens
            if share.completes:
                news.append(self._sampled(sequence, next(tokens)))
        return news

    def _sampled(self, sequence: _Sequence[C], token: int) -> Progress:
        sequence.pending.append(token)
        sequence.remaining -= 1
        if sequence.remaining > 0:
            return Progress(sequence.id, token, None)
        self._release(sequence)
        return Progress(sequence.id, token, Finish.LENGTH)

    def _fail(self, sequences: Sequence[_Sequence[C]]) -> list[Progress]:
        for sequence in sequences:
            self._release(sequence)
        return [Progress(sequence.id, None, Finish.ERROR) for sequence in sequences]

    def _release(self, sequence: _Sequence[C]) -> None:
        self._running.pop(sequence.id, None)
        if sequence.cache is not None:
            self._free.append(sequence.cache)
            sequence.cache = None


def _cache_of(sequence: _Sequence[C]) -> C:
    if sequence.cache is None:
        raise RuntimeError(f"sequence {sequence.id} runs without a cache")
    return sequence.cache

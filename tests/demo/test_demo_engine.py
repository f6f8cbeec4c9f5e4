"""Continuous batching: what runs together must answer as if it ran alone."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.expect import raises_naming
from tests.runtime.steps.played import taken

from retuned.demo.batches import Chunk, EngineLimits, Finish, Need, Progress, StepReport, plan_step
from retuned.demo.engine import Engine
from retuned.errors import TemporaryError
from retuned.runtime.core.attach import attach


@dataclass
class FakeCache:
    """Remembers the tokens it saw, so that the next token depends on all of them."""

    seen: list[int] = field(default_factory=list)

    def clear(self) -> None:
        self.seen.clear()


class FakeModel:
    """Next token = a checksum of everything before it."""

    def __init__(
        self, *, fail_at_step: int | None = None, raises: type[Exception] = RuntimeError
    ) -> None:
        self.steps: list[list[int]] = []
        self.caches: list[FakeCache] = []
        self._fail_at_step = fail_at_step
        self._raises = raises

    def new_cache(self) -> FakeCache:
        self.caches.append(FakeCache())
        return self.caches[-1]

    def forward(self, chunks: Sequence[Chunk[FakeCache]]) -> list[int]:
        self.steps.append([len(chunk.tokens) for chunk in chunks])
        if self._fail_at_step == len(self.steps):
            raise self._raises("a kernel broke")
        answer = []
        for chunk in chunks:
            chunk.cache.seen.extend(chunk.tokens)
            if chunk.sample:
                answer.append(checksum(chunk.cache.seen))
        return answer


def checksum(tokens: Sequence[int]) -> int:
    total = 0
    for place, token in enumerate(tokens, start=1):
        total = (total * 31 + token * place) % 997
    return total


def alone(prompt: Sequence[int], count: int) -> list[int]:
    """What a sequence must answer, computed without an engine."""
    seen, answer = list(prompt), []
    for _ in range(count):
        answer.append(checksum(seen))
        seen.append(answer[-1])
    return answer


class Inbox:
    """Collects what an engine delivers."""

    def __init__(self) -> None:
        self.tokens: dict[int, list[int]] = defaultdict(list)
        self.finish: dict[int, Finish] = {}
        self.changed = threading.Condition()

    def __call__(self, news: Sequence[Progress]) -> None:
        with self.changed:
            for item in news:
                if item.token is not None:
                    self.tokens[item.id].append(item.token)
                if item.finish is not None:
                    assert item.id not in self.finish, "a sequence ends once"
                    self.finish[item.id] = item.finish
            self.changed.notify_all()

    def wait_for(self, predicate: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(predicate, timeout=120), "the engine delivered nothing"


def engine_of(
    model: FakeModel, *, budget: int = 64, running: int = 4, waiting: int = 1000
) -> tuple[Engine[FakeCache], Inbox]:
    inbox = Inbox()
    limits = EngineLimits(token_budget=budget, max_running=running, max_waiting=waiting)
    return Engine(model, limits=limits, deliver=inbox), inbox


def drain(engine: Engine[FakeCache], *, most: int = 10_000) -> list[StepReport]:
    reports = []
    while (report := engine.step()) is not None:
        reports.append(report)
        assert len(reports) < most, "the engine does not come to an end"
    return reports


prompts = st.lists(st.integers(0, 500), min_size=1, max_size=90)


@given(
    requests=st.lists(st.tuples(prompts, st.integers(1, 12)), min_size=1, max_size=12),
    budget=st.integers(1, 64),
    running=st.integers(1, 5),
)
@settings(max_examples=60, deadline=None)
def test_neither_batching_nor_chunks_change_an_answer(
    requests: list[tuple[list[int], int]], budget: int, running: int
) -> None:
    model = FakeModel()
    engine, inbox = engine_of(model, budget=budget, running=running)
    ids = [engine.submit(prompt, max_tokens=count) for prompt, count in requests]
    reports = drain(engine)
    for id, (prompt, count) in zip(ids, requests, strict=True):
        assert inbox.tokens[id] == alone(prompt, count)
        assert inbox.finish[id] is Finish.LENGTH
    assert max(sum(step) for step in model.steps) <= budget
    assert max(len(step) for step in model.steps) <= running
    assert sum(r.prefill_tokens for r in reports) == sum(len(p) for p, _ in requests)
    assert sum(r.output_tokens for r in reports) == sum(count for _, count in requests)


def test_a_request_that_arrives_later_joins_the_running_batch() -> None:
    model = FakeModel()
    engine, inbox = engine_of(model)
    first = engine.submit([1, 2, 3], max_tokens=6)
    engine.step()
    second = engine.submit([4, 5], max_tokens=2)
    engine.step()
    assert model.steps == [[3], [1, 2]]
    drain(engine)
    assert inbox.tokens[first] == alone([1, 2, 3], 6)
    assert inbox.tokens[second] == alone([4, 5], 2)


def test_a_long_prompt_is_cut_and_does_not_stop_others() -> None:
    model = FakeModel()
    engine, _ = engine_of(model, budget=16)
    engine.submit([7], max_tokens=5)
    engine.step()
    engine.submit(list(range(40)), max_tokens=1)
    drain(engine)
    assert model.steps == [[1], [1, 15], [1, 15], [1, 10], [1]]


def test_a_cancelled_request_frees_its_place_and_says_nothing_more() -> None:
    model = FakeModel()
    engine, inbox = engine_of(model, running=1)
    gone = engine.submit([1, 2], max_tokens=1000)
    heir = engine.submit([3], max_tokens=2)
    engine.step()
    engine.cancel(gone)
    drain(engine, most=5)
    assert len(inbox.tokens[gone]) == 1
    assert gone not in inbox.finish
    assert inbox.tokens[heir] == alone([3], 2)


def test_a_waiting_request_that_is_cancelled_never_runs() -> None:
    model = FakeModel()
    engine, inbox = engine_of(model, running=1)
    engine.submit([1], max_tokens=3)
    waiting = engine.submit([2], max_tokens=3)
    engine.cancel(waiting)
    drain(engine)
    assert waiting not in inbox.tokens
    assert sum(map(sum, model.steps)) == 3


def test_overload_queues_and_does_not_fail() -> None:
    model = FakeModel()
    engine, inbox = engine_of(model, running=2)
    ids = [engine.submit([n], max_tokens=3) for n in range(200)]
    drain(engine)
    assert [inbox.tokens[id] for id in ids] == [alone([n], 3) for n in range(200)]
    assert len(model.caches) == 2, "caches are recycled"


def test_a_full_queue_asks_to_come_back() -> None:
    engine, _ = engine_of(FakeModel(), waiting=2)
    engine.submit([1], max_tokens=1)
    engine.submit([1], max_tokens=1)
    with raises_naming(TemporaryError, "2 requests") as refused:
        engine.submit([1], max_tokens=1)
    assert refused.value.delay_s > 0


@pytest.mark.parametrize("raises", [RuntimeError, FloatingPointError, ValueError])
def test_a_step_that_raises_fails_its_requests_and_the_engine_goes_on(
    raises: type[Exception],
) -> None:
    model = FakeModel(fail_at_step=2, raises=raises)
    engine, inbox = engine_of(model, running=2)
    doomed = [engine.submit([n], max_tokens=5) for n in (1, 2)]
    later = engine.submit([3], max_tokens=2)
    reports = drain(engine)
    assert [inbox.finish[id] for id in doomed] == [Finish.ERROR, Finish.ERROR]
    assert inbox.tokens[later] == alone([3], 2)
    assert [r.failed for r in reports] == [0, 2, 0, 0]


@pytest.mark.parametrize(("prompt", "count"), [([], 1), ([1], 0)])
def test_a_request_for_nothing_is_refused(prompt: list[int], count: int) -> None:
    engine, _ = engine_of(FakeModel())
    with raises_naming(ValueError, "prompt token", "output token"):
        engine.submit(prompt, max_tokens=count)


def test_the_thread_serves_many_submitters() -> None:
    engine, inbox = engine_of(FakeModel(), budget=8, running=3)
    engine.start()
    answers: dict[int, list[int]] = {}

    def submit(first: int) -> None:
        for n in range(first, first + 25):
            answers[engine.submit([n, n + 1], max_tokens=4)] = alone([n, n + 1], 4)

    threads = [threading.Thread(target=submit, args=(100 * n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    inbox.wait_for(lambda: len(inbox.finish) == 100)
    engine.stop()
    assert inbox.tokens == answers


def test_stopping_fails_what_is_left_and_takes_no_more() -> None:
    engine, inbox = engine_of(FakeModel(), running=1)
    endless = engine.submit([1], max_tokens=10**9)
    waiting = engine.submit([1], max_tokens=10**9)
    engine.start()
    inbox.wait_for(lambda: len(inbox.tokens[endless]) > 2)
    alive_before = engine.alive
    engine.stop()
    assert (alive_before, engine.alive) == (True, False)
    assert inbox.finish == {endless: Finish.ERROR, waiting: Finish.ERROR}
    with raises_naming(TemporaryError, "stopping"):
        engine.submit([1], max_tokens=1)


class Hook:
    """Notes in which order an engine calls it."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def before_step(self) -> None:
        self.calls.append("before")

    def after_step(self, report: StepReport) -> None:
        self.calls.append(f"after {report.prefill_tokens}+{report.output_tokens}")

    def stopped(self) -> None:
        self.calls.append("stopped")


def test_hooks_see_each_step_and_the_end() -> None:
    hook, inbox = Hook(), Inbox()
    limits = EngineLimits(token_budget=2)
    engine = Engine(FakeModel(), limits=limits, deliver=inbox, hooks=[hook])
    engine.submit([1, 2, 3], max_tokens=2)
    engine.start()
    inbox.wait_for(lambda: bool(inbox.finish))
    engine.stop()
    steps = ["before", "after 2+0", "before", "after 1+1", "before", "after 0+1"]
    assert hook.calls == [*steps, "stopped"]


@given(
    pending=st.lists(st.integers(1, 400), max_size=20),
    budget=st.integers(1, 300),
)
def test_a_plan_spends_the_budget_and_never_more(pending: list[int], budget: int) -> None:
    needs = [Need(id=n, pending=count) for n, count in enumerate(pending)]
    shares = plan_step(needs, token_budget=budget)
    assert sum(share.tokens for share in shares) == min(budget, sum(pending))
    assert all(1 <= share.tokens <= pending[share.id] for share in shares)
    assert all(share.completes == (share.tokens == pending[share.id]) for share in shares)
    assert sum(not share.completes for share in shares) <= 1, "at most one prompt is cut"


def test_a_plan_without_budget_is_refused() -> None:
    with raises_naming(ValueError, "token_budget", "got 0"):
        plan_step([], token_budget=0)


def test_each_step_is_marked_with_what_it_computes() -> None:
    runtime = attach(server="test")
    try:
        runtime.steps.log.start()
        engine, _ = engine_of(FakeModel(), budget=8)
        engine.submit(range(10), max_tokens=2)
        assert engine.step() is not None
        engine.submit(range(3), max_tokens=1)
        drain(engine)
        engine.submit([1, 2], max_tokens=1)
        drain(engine)
        records = taken(runtime.steps.log)
    finally:
        runtime.close()
    found = [(each["prefill"], each["decode"], each["context"]) for each in records]
    assert found == [(8, 0, 0), (5, 0, 8), (0, 1, 10), (2, 0, 0)]
    # the first step of all, and the one that came when nothing was running
    assert [each["period_us"] is None for each in records] == [True, False, False, True]

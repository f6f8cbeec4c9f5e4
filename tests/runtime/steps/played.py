"""A device, a worker and a scheduler that play vLLM's, and what records of timed steps show."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from retuned.runtime.steps.composition import Composition
from retuned.runtime.steps.log import FIELDS, StepLog


class Event:
    """An event on the played device's timeline."""

    def __init__(self, cuda: Cuda, *, enable_timing: bool) -> None:
        assert enable_timing
        self.cuda, self.at_ms = cuda, -1.0

    def record(self) -> None:
        assert not self.cuda.capturing, "an event was recorded during a capture"
        self.at_ms = self.cuda.queued_ms
        self.cuda.recorded += 1

    def query(self) -> bool:
        return self.cuda.reached_ms >= self.at_ms

    def elapsed_time(self, end: Event) -> float:
        assert self.query()
        assert end.query()
        return end.at_ms - self.at_ms


class Cuda:
    """Plays ``torch.cuda``: work is queued, and reached when the test says so."""

    def __init__(self) -> None:
        self.queued_ms = self.reached_ms = 0.0
        self.capturing = False
        self.made = self.recorded = 0

    def Event(self, *, enable_timing: bool) -> Event:
        self.made += 1
        return Event(self, enable_timing=enable_timing)

    def is_current_stream_capturing(self) -> bool:
        return self.capturing

    def launch(self, ms: float) -> None:
        self.queued_ms += ms

    def wait(self) -> None:
        self.reached_ms = self.queued_ms


class Dispatcher:
    """Plays the choice of graphs in both runners: sizes of 8, no graph over 64 tokens."""

    def __init__(self, *, second: bool) -> None:
        self.second = second

    def dispatch(self, num_tokens: int, *, eager: bool = False) -> Any:
        padded = num_tokens if eager or num_tokens > 64 else -(-num_tokens // 8) * 8
        mode = SimpleNamespace(name="NONE" if eager or num_tokens > 64 else "FULL")
        if self.second:
            return SimpleNamespace(cg_mode=mode, num_tokens=padded)
        return mode, SimpleNamespace(num_tokens=padded)


def scheduled(
    tokens: dict[str, int], *, computed: dict[str, int] | None = None, new: Sequence[str] = ()
) -> Any:
    """Return a scheduler's output: new tokens and computed tokens by sequence."""
    known = computed or {}
    cached = [name for name in tokens if name not in new]
    return SimpleNamespace(
        num_scheduled_tokens=tokens,
        total_num_scheduled_tokens=sum(tokens.values()),
        scheduled_cached_reqs=SimpleNamespace(
            req_ids=cached, num_computed_tokens=[known.get(name, 0) for name in cached]
        ),
        scheduled_new_reqs=[
            SimpleNamespace(req_id=name, num_computed_tokens=known.get(name, 0)) for name in new
        ],
    )


def worker_class() -> Any:
    """Return a class that plays vLLM's worker; `doing` of an instance is called in both calls."""

    class Worker:
        def __init__(self, doing: Callable[[str], None] = lambda _: None, **runner: Any) -> None:
            self.doing = doing
            self.model_runner = SimpleNamespace(**runner)

        def execute_model(self, scheduler_output: Any) -> str | None:
            tokens = scheduler_output.total_num_scheduled_tokens
            for name in ("cudagraph_manager", "cudagraph_dispatcher"):
                holder = getattr(self.model_runner, name, None)
                if holder is not None:
                    holder.dispatch(tokens)
                    holder.dispatch(1)  # a part of the model
            self.doing("execute")
            return None if tokens else "nothing"

        def sample_tokens(self, grammar_output: Any) -> str:
            self.doing("sample")
            return "answer"

    return Worker


def named(record: Sequence[Any]) -> dict[str, Any]:
    return dict(zip(FIELDS, record, strict=True))


def taken(log: StepLog, *, since: int | None = 0, limit: int = 4096) -> list[dict[str, Any]]:
    return [named(each) for each in log.take(since=since, limit=limit)["records"]]


def check_timed_steps(
    log: StepLog, launch: Callable[[float], None], wait: Callable[[], None]
) -> None:
    """Assert what records show of steps of about 2, 4 and 8 ms with gaps of about 2 ms.

    Parameters
    ----------
    launch
        Queues work of so many milliseconds on the device, and does not wait for it.
    wait
        Waits for the device.
    """
    log.start()
    for ms in (2.0, 4.0, 8.0):
        log.begin(Composition(0, 1, 100))
        launch(ms)
        log.end(0)
        launch(2.0)  # work of other code, between two steps
    assert taken(log)[3:] == []
    wait()
    first, second, third = taken(log)
    assert first["period_us"] is None
    for record, ms in ((second, 4.0), (third, 8.0)):
        assert 0.5e3 * ms < record["busy_us"] < 2e3 * ms
        gap_us = record["period_us"] - record["busy_us"]
        assert 1e3 < gap_us < 4e3

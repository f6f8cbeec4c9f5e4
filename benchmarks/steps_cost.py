"""Host cost of a step's hook: not installed, installed, and recording 1, 64 and 256 sequences.

    python -m benchmarks.steps_cost [--blocks 200] [--steps 200]

A step is `execute_model` and `sample_tokens` of a worker that does nothing, so the time is that of
the hook. Subjects are interleaved: a block times each subject once, in a new random order. The
report has the median over blocks with an interval of 95 % from order statistics, and the same for
the difference to another subject within each block. The clock is the thread's processor time.
Events of a GPU are played by objects that do nothing: what real events cost, only a GPU shows.
Reading the records is timed apart.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from benchmarks.slots import interval, processor

import retuned.runtime
from retuned.runtime.core.attach import attach
from retuned.runtime.steps.clock import HostClock, StepClock, TorchClock
from retuned.runtime.steps.hook import MODULE, Steps
from retuned.runtime.steps.log import StepLog

RESULT = Path(__file__).parent / "results" / "steps_cost.json"
SEQUENCES = (1, 64, 256)
Step = Callable[[], None]
Played = Any
"""An object that plays one of vLLM's."""


class Event:
    """An event that is always reached."""

    def __init__(self, *, enable_timing: bool) -> None:
        pass

    def record(self) -> None:
        pass

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: Event) -> float:
        return 1.0


def device_clock() -> StepClock:
    return TorchClock(SimpleNamespace(Event=Event, is_current_stream_capturing=lambda: False))


def output(sequences: int) -> Played:
    """Return what vLLM's scheduler sends for a decode step."""
    names = [f"request-{number}" for number in range(sequences)]
    return SimpleNamespace(
        num_scheduled_tokens=dict.fromkeys(names, 1),
        total_num_scheduled_tokens=sequences,
        scheduled_cached_reqs=SimpleNamespace(
            req_ids=names, num_computed_tokens=[1000] * sequences
        ),
        scheduled_new_reqs=[],
    )


class Dispatcher:
    """Chooses a graph, as the second runner's manager does."""

    def __init__(self) -> None:
        self.found = SimpleNamespace(cg_mode=SimpleNamespace(name="FULL"), num_tokens=256)

    def dispatch(self) -> Played:
        return self.found


def worker_class() -> Played:
    class Worker:
        def __init__(self) -> None:
            self.model_runner = SimpleNamespace(cudagraph_manager=Dispatcher())

        def execute_model(self, scheduler_output: Played) -> None:
            self.model_runner.cudagraph_manager.dispatch()

        def sample_tokens(self, grammar_output: Played) -> str:
            return "answer"

    return Worker


def stepping(worker: Played, sequences: int) -> Step:
    scheduled = output(sequences)

    def step() -> None:
        worker.execute_model(scheduled)
        worker.sample_tokens(None)

    return step


def hooked(*, clock: Callable[[], StepClock] | None) -> tuple[Any, Steps]:
    """Return a worker whose class has the hook; a clock lets it record."""
    cls = worker_class()
    sys.modules[MODULE] = SimpleNamespace(Worker=cls)  # type: ignore[assignment]
    steps = Steps()
    if clock is not None:
        steps.log = StepLog(clock=clock, when_off=steps.graph.leave)
        steps.log.start()
    steps.install(lambda: None)
    del sys.modules[MODULE]
    return cls(), steps


def marked() -> None:
    with retuned.runtime.step(decode=64, context=64_000):
        pass


def subjects() -> tuple[dict[str, tuple[Step, StepLog | None]], dict[str, str]]:
    """Return what is timed, with the log to empty between blocks; and what it is compared with."""
    found: dict[str, tuple[Step, StepLog | None]] = {}
    against: dict[str, str] = {}
    for count in SEQUENCES:
        found[f"no hook, {count}"] = (stepping(worker_class()(), count), None)
        off, _ = hooked(clock=None)
        found[f"hook, off, {count}"] = (stepping(off, count), None)
        against[f"hook, off, {count}"] = f"no hook, {count}"
        for name, clock in (("host clock", HostClock), ("played events", device_clock)):
            worker, steps = hooked(clock=clock)
            found[f"recording, {name}, {count}"] = (stepping(worker, count), steps.log)
            against[f"recording, {name}, {count}"] = f"hook, off, {count}"
    found["marked step, off"] = (marked, None)
    return found, against


def per_step_us(step: Step, steps: int) -> float:
    start_ns = time.thread_time_ns()
    for _ in range(steps):
        step()
    return (time.thread_time_ns() - start_ns) / steps / 1e3


def measured(blocks: int, steps: int) -> dict[str, Any]:
    runtime = attach(server="bench", windows=False)
    every, against = subjects()
    times: dict[str, list[float]] = {name: [] for name in every}
    reading: list[float] = []
    for block in range(blocks + 1):
        for name in random.sample(list(every), len(every)):
            step, log = every[name]
            spent_us = per_step_us(step, steps)
            if log is not None:
                log.start()
                start_ns = time.thread_time_ns()
                records = log.take(since=block * steps, limit=steps)["records"]
                read_us = (time.thread_time_ns() - start_ns) / steps / 1e3
                if len(records) != steps:
                    raise RuntimeError(f"{name}: {len(records)} records of {steps} steps")
            if block:  # the first warms
                times[name].append(spent_us)
                if log is not None:
                    reading.append(read_us)
    recorded = []
    runtime.steps.log.start()
    for _ in range(blocks):
        recorded.append(per_step_us(marked, steps))
        runtime.steps.log.start()
    runtime.close()
    times["marked step, recording, host clock"] = recorded
    over = {
        name: interval([a - b for a, b in zip(times[name], times[base], strict=True)])
        | {"against": base}
        for name, base in against.items()
    }
    return {
        "machine": {"cpu": processor(), "cores": os.cpu_count()},
        "software": {"python": platform.python_version(), "torch": torch.__version__},
        "method": {
            "clock": "thread processor time",
            "blocks": blocks,
            "steps_per_block": steps,
            "interval": "95 % by order statistics over blocks, subjects in random order per block",
            "events": "played by objects that do nothing",
        },
        "step_us": {name: interval(values) for name, values in times.items()},
        "over_us": over,
        "read_us_per_record": interval(reading),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--blocks", type=int, default=200)
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()
    report = measured(options.blocks, options.steps)
    RESULT.write_text(json.dumps(report, indent=1) + "\n")
    for name, cost in report["step_us"].items():
        line = f"{name:36s} {cost['median']:7.2f} us [{cost['low']:.2f}, {cost['high']:.2f}]"
        over = report["over_us"].get(name)
        if over:
            line += f"   {over['median']:+6.2f} us over {over['against']}"
        print(line)
    print(f"read {report['read_us_per_record']['median']:.2f} us a record")


if __name__ == "__main__":
    main()

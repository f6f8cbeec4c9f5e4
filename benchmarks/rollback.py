"""How soon a wrong kernel is found and gone: in the process, and through the daemon.

    python benchmarks/rollback.py [--rounds 300] [--seeds 1000] [--trips 30]

Measured on a slot whose kernels do nothing, so that only the rollback itself is timed:

- the flip back after a check that is badly wrong, and a canary's step, by the number of shapes that
  the slot has served;
- what a canary costs a launch: in blocks, subjects interleaved in a new random order;
- launches until a kernel that is wrong in 1 % of them is found at one check in 50, played with the
  runtime's own slot and sampler, a kernel each seed;
- alarm to original through socket, daemon's steps and its database: one process, the daemon looks
  once. A daemon looks every `steer_poll_s`, which comes on top.

Raw numbers are in benchmarks/results/rollback.json; times are wall time.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import platform
import random
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from retuned.runtime.core.active_order import Swapped  # noqa: E402
from retuned.runtime.core.orders import parse_order  # noqa: E402
from retuned.runtime.core.slots import Slot  # noqa: E402
from retuned.runtime.shadow.sampler import Comparison, Sampler  # noqa: E402
from retuned.settings import Settings  # noqa: E402
from retuned.stages.watch.run_length import seconds_to_find  # noqa: E402

RESULT = ROOT / "benchmarks" / "results" / "rollback.json"
DEFINITION = {
    "name": "copy",
    "op_type": "copy",
    "axes": {"M": {"type": "var"}},
    "inputs": {"x": {"shape": ["M"], "dtype": "float32"}},
    "outputs": {"y": {"shape": ["M"], "dtype": "float32"}},
}
RATES_PER_S = (250, 500, 1_000, 3_000)


class Rows:
    """An input of some rows."""

    __slots__ = ("shape",)

    def __init__(self, rows: int) -> None:
        self.shape = (rows,)


class Answering:
    """A variant that answers with what a function says."""

    def __init__(self, answer: Callable[[], float]) -> None:
        self.answer = answer

    def launcher(self, _: tuple[int, ...]) -> Callable[[tuple[Any, ...]], Any]:
        """Return what answers."""
        answer = self.answer
        return lambda _: answer()

    checked_launcher = launcher

    def capturing(self) -> None:
        """Record into no graph."""
        return

    def fingerprint(self, _: tuple[Any, ...]) -> object:
        """Return the same for all inputs: there are none to change."""
        return 0


def by_number(served: Sequence[float], expected: Sequence[float], _: float) -> Comparison:
    """Compare numbers: the answer is its error in units of what is allowed."""
    return Comparison(nonfinite=False, ratio=abs(served[0] - expected[0]))


def swapped(slot: Slot, answer: Callable[[], float], *, fraction: float, every: int) -> Swapped:
    """Put a variant in force."""
    body = {
        "id": "order",
        "kind": "swap",
        "definition": "copy",
        "artifact": "sha256:" + "a" * 64,
        "guard": {"bounds": {}},
        "epoch": 1,
        "shadow_every": every,
        "canary": [{"fraction": fraction}],
    }
    sampler = Sampler(every, random.Random(1))
    order = Swapped(
        slot, parse_order(body), variant=Answering(answer), compare=by_number, sampler=sampler
    )
    slot.commit(order)
    return order


def right() -> float:
    """Err by nothing."""
    return 0.0


def wrong(chance: random.Random) -> float:
    """Err badly in 1 % of launches."""
    return 9.0 * (chance.random() < 0.01)


def summary(values: Sequence[float]) -> dict[str, float]:
    """Return median with its 95 % interval from order statistics, 99th percentile, largest."""
    ordered = sorted(values)
    count = len(ordered)
    half = 0.98 * math.sqrt(count)
    low, high = max(0, int(count / 2 - half)), min(count - 1, math.ceil(count / 2 + half))
    return {
        "median": statistics.median(ordered),
        "low": ordered[low],
        "high": ordered[high],
        "p99": ordered[min(count - 1, int(0.99 * count))],
        "largest": ordered[-1],
        "count": count,
    }


def flips(rounds: int) -> dict[str, Any]:
    """Time the rollback after a bad check, and a canary's step, by the number of served shapes."""
    found: dict[str, Any] = {}
    for shapes in (1, 64, 4_096):
        slot = Slot(DEFINITION, lambda _: 0.0)
        for rows in range(1, shapes + 1):
            slot(Rows(rows))
        trips: list[float] = []
        steps: list[float] = []
        narrows: list[float] = []
        for number in range(rounds + 1):
            order = swapped(slot, right, fraction=0.5, every=50)
            order.ramp(0.1, excluded=())  # the tables of shares are made once in a process
            times = [
                timed_us(partial(order.ramp, 0.9, excluded=())),
                timed_us(partial(order.ramp, 1.0, excluded=[(3,)])),
                timed_us(partial(order.trip, "shadow-mismatch", "")),
            ]
            assert slot(Rows(1)) == 0.0
            if number:
                for values, value in zip((steps, narrows, trips), times, strict=True):
                    values.append(value)
        found[f"{shapes} shapes"] = {
            "back_us": summary(trips),
            "step_us": summary(steps),
            "last_step_with_narrower_guard_us": summary(narrows),
            "raw_back_us": [round(value, 2) for value in trips],
        }
    return found


def timed_us(do: Callable[[], object]) -> float:
    """Return the wall time of a call, microseconds."""
    begin = time.perf_counter_ns()
    do()
    return (time.perf_counter_ns() - begin) / 1e3


def launch_cost(blocks: int, calls: int = 2_000) -> dict[str, Any]:
    """Time launches through a slot without an order, in a canary, and when all run the variant."""
    subjects: dict[str, Slot] = {"no order": Slot(DEFINITION, lambda _: 0.0)}
    for name, fraction in (("canary of 10 %", 0.1), ("canary of 90 %", 0.9), ("all", 1.0)):
        subjects[name] = Slot(DEFINITION, lambda _: 0.0)
        swapped(subjects[name], right, fraction=fraction, every=10**9)
    times: dict[str, list[float]] = {name: [] for name in subjects}
    x, chance = Rows(4), random.Random(1)
    for _ in range(blocks):
        for name in chance.sample(list(subjects), len(subjects)):
            slot = subjects[name]
            begin = time.thread_time_ns()
            for _ in range(calls):
                slot(x)
            times[name].append((time.thread_time_ns() - begin) / calls)
    return {name: summary(values) for name, values in times.items()}


def launches_until_found(seeds: int) -> list[int]:
    """Play kernels that are wrong in 1 % of their launches until each is gone."""
    found = []
    for seed in range(seeds):
        chance = random.Random(seed)
        slot = Slot(DEFINITION, lambda _: 0.0)
        order = swapped(slot, partial(wrong, chance), fraction=1.0, every=50)
        order._sampler._random = random.Random(seed + 10**6)  # the same in every run
        x, launches = Rows(4), 0
        while slot.table.state == "swapped":
            slot(x)
            launches += 1
        found.append(launches)
    return found


def through_the_daemon(trips: int) -> list[float]:
    """Time the daemon's look at a server with an alarm in it, to the original in force, ms."""
    times: list[float] = []

    class Plugin:
        """Repeats the test's own world the requested number of times."""

        def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
            metafunc.fixturenames.append("number")
            metafunc.parametrize("number", range(trips))

        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            for name, value in report.user_properties:
                if name == "steer_ms" and isinstance(value, float):
                    times.append(value)

    test = ROOT / "tests" / "local" / "test_rollback_through_socket.py"
    name = f"{test}::test_from_the_alarm_to_the_original_it_takes_less_than_a_second"
    with tempfile.TemporaryDirectory() as folder:
        options = ["-q", "--no-header", "-p", "no:cacheprovider", "--basetemp", f"{folder}/t"]
        code = pytest.main([*options, "--rootdir", str(ROOT), name], plugins=[Plugin()])
    if code != 0 or len(set(map(id, times))) < trips:
        raise SystemExit(f"the world did not come to its end: {code}, {len(times)} times")
    return times[:trips]


def machine() -> dict[str, Any]:
    """Say what this ran on, without names."""
    info = Path("/proc/cpuinfo").read_text()
    model = re.search(r"model name\s*:\s*(.+)", info)
    return {
        "cpu": model.group(1) if model else platform.machine(),
        "cores": os.cpu_count(),
        "load_1m": os.getloadavg()[0],
        "python": platform.python_version(),
    }


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=1_000)
    parser.add_argument("--trips", type=int, default=30)
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    at_first = machine()
    launches = launches_until_found(options.seeds)
    steer_ms = through_the_daemon(options.trips)
    poll_s = Settings.model_fields["steer_poll_s"].default
    found = {str(rate): summary([n / rate for n in launches]) for rate in RATES_PER_S}
    report = {
        "machine": at_first,
        "method": {
            "interval": "95 % of the median, by order statistics",
            "flips": f"{options.rounds} rounds, wall time of one call",
            "launch_cost": "thread processor time, 200 blocks of 2000 calls, subjects interleaved",
            "found": f"{options.seeds} kernels wrong in 1 % of launches, one check in 50",
            "through_the_daemon": f"{options.trips} servers, one look of the daemon each",
        },
        "flips": flips(options.rounds),
        "launch_cost_ns": launch_cost(200),
        "found_after_s_by_launches_per_s": found,
        "computed_95_percent_s": {
            str(rate): seconds_to_find(0.01, every=50, launches_per_s=rate) for rate in RATES_PER_S
        },
        "daemon_look_to_original_ms": summary(steer_ms),
        "daemon_looks_every_s": poll_s,
        "alarm_to_original_at_most_s": poll_s + max(steer_ms) / 1e3,
        "raw": {"launches_until_found": launches, "daemon_look_to_original_ms": steer_ms},
    }
    RESULT.write_text(json.dumps(report, indent=1) + "\n")
    for line in lines(report):
        sys.stdout.write(line + "\n")


def lines(report: dict[str, Any]) -> Iterator[str]:
    """Say the main numbers."""
    for shapes, row in report["flips"].items():
        back, step = row["back_us"], row["step_us"]
        yield f"{shapes}: back {back['median']:.1f} us (p99 {back['p99']:.1f}), " + (
            f"step {step['median']:.1f} us"
        )
    for name, row in report["launch_cost_ns"].items():
        yield f"launch, {name}: {row['median']:.0f} ns"
    for rate, row in report["found_after_s_by_launches_per_s"].items():
        yield f"wrong in 1 %, {rate} launches/s: found after {row['median']:.1f} s, " + (
            f"99 % within {row['p99']:.1f} s"
        )
    look = report["daemon_look_to_original_ms"]
    yield f"daemon's look to original: {look['median']:.1f} ms, largest {look['largest']:.1f}"
    yield f"alarm to original at most {report['alarm_to_original_at_most_s']:.2f} s"


if __name__ == "__main__":
    main()

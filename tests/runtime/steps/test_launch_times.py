"""Launches of a slot under labels: counted and timed by arm and lengths, and nothing else."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from tests.expect import raises_naming

from retuned.runtime.core.slots import Slot
from retuned.runtime.steps.launch_times import EVERY_S, MOST_KEYS, MOST_SAMPLES, LaunchTimes
from retuned.runtime.steps.log import StepLog

DEFINITION = {
    "name": "scale",
    "op_type": "scale",
    "axes": {"M": {"type": "var"}},
    "inputs": {"x": {"shape": ["M"], "dtype": "float32"}},
    "outputs": {"y": {"shape": ["M"], "dtype": "float32"}},
    "reference": "def run(x):\n    return x\n",
}


class Played:
    """A device whose launches take what `took_ns` says, and a clock that the test moves."""

    def __init__(self) -> None:
        self.now_ns, self.took_ns, self.now_s = 0, 7000, 0.0
        self.idle = self.capturing = self.broken = False

    def mark(self) -> int | None:
        if self.broken:
            raise RuntimeError("the device is gone")
        return None if self.capturing else self.now_ns

    def idle_at(self, mark: int) -> bool:
        return self.idle

    def passed(self, mark: int) -> bool:
        return mark <= self.now_ns

    def between_ns(self, first: int, second: int) -> int:
        return second - first


class Bench:
    def __init__(self) -> None:
        self.device, self.log = Played(), StepLog()
        self.times = LaunchTimes(
            self.log, device=lambda: self.device, now_s=lambda: self.device.now_s
        )
        self.slot = Slot(DEFINITION, self.original)
        self.log.start()
        self.calls = 0

    def original(self, x: Any) -> str:
        self.calls += 1
        self.device.now_ns += self.device.took_ns
        return f"original {x.shape[0]}"

    def launch(self, rows: int, *, times: int = 1, apart_s: float = EVERY_S) -> None:
        for _ in range(times):
            self.device.now_s += apart_s
            assert self.slot(SimpleNamespace(shape=(rows,))) == f"original {rows}"

    def rows(self) -> list[tuple[str, tuple[int, ...], int, list[float]]]:
        return [
            (row["arm"], tuple(row["lengths"]), row["launches"], row["us"])
            for row in self.times.rows()
        ]


@pytest.fixture
def bench() -> Bench:
    made = Bench()
    made.launch(4)
    made.times.follow(made.slot)
    return made


def test_launches_are_timed_by_arm_and_length(bench: Bench) -> None:
    bench.log.arm = "3-0-on"
    bench.launch(4, times=2)
    bench.log.arm = "3-1-off"
    bench.device.took_ns = 9000
    bench.launch(4)
    bench.launch(5)
    assert bench.rows() == [
        ("on", (4,), 2, [7.0, 7.0]),
        ("off", (4,), 1, [9.0]),
        ("off", (5,), 1, [9.0]),
    ]


def test_launches_without_a_label_are_not_counted(bench: Bench) -> None:
    bench.launch(4, times=3)
    assert bench.rows() == []


def test_the_clock_bounds_how_many_launches_are_timed(bench: Bench) -> None:
    bench.log.arm = "on"
    bench.launch(4, times=100, apart_s=EVERY_S / 10)
    ((_, _, launches, times),) = bench.rows()
    assert launches == 100
    assert 9 <= len(times) <= 11


def test_the_newest_times_are_kept(bench: Bench) -> None:
    bench.log.arm = "on"
    for _ in range(MOST_SAMPLES + 5):
        bench.launch(4)
        bench.times.rows()
    ((_, _, launches, times),) = bench.rows()
    assert (launches, len(times)) == (MOST_SAMPLES + 5, MOST_SAMPLES)


def test_a_launch_on_an_idle_stream_is_only_counted(bench: Bench) -> None:
    bench.log.arm, bench.device.idle = "on", True
    bench.launch(4)
    assert bench.rows() == [("on", (4,), 1, [])]
    assert bench.times.rows()[0]["idle"] == 1


@pytest.mark.parametrize("fault", ["capturing", "broken"])
def test_a_device_that_marks_nothing_costs_a_time_and_no_launch(bench: Bench, fault: str) -> None:
    setattr(bench.device, fault, True)
    bench.log.arm = "on"
    bench.launch(4, times=2)
    assert bench.rows() == [("on", (4,), 2, [])]


def test_an_error_of_a_launch_is_the_servers(bench: Bench) -> None:
    def raises(*_: object) -> None:
        raise ValueError("the kernel's")

    bench.slot.original = raises
    bench.times.forget()
    bench.times.follow(bench.slot)
    bench.log.arm = "on"
    with raises_naming(ValueError, "the kernel's"):
        bench.slot(SimpleNamespace(shape=(4,)))
    assert bench.rows() == [("on", (4,), 1, [])]


def test_without_a_recording_no_slot_is_followed(bench: Bench) -> None:
    bench.times.forget()
    bench.log.stop()
    bench.times.follow(bench.slot)
    assert bench.slot.times is None, "nothing would end it"


def test_one_slot_is_followed_at_a_time_and_left_as_it_was(bench: Bench) -> None:
    other = Slot({**DEFINITION, "name": "other"}, bench.original)
    bench.log.arm = "on"
    bench.times.follow(other)
    bench.launch(4)
    assert bench.slot.times is None
    other(SimpleNamespace(shape=(6,)))
    bench.times.leave()
    assert [(arm, key) for arm, key, *_ in bench.rows()] == [("on", (6,))], "it can still be read"
    other(SimpleNamespace(shape=(6,)))
    assert bench.rows()[0][2] == 1
    bench.times.forget()
    assert bench.rows() == []


def test_lengths_beyond_the_bound_are_launched_and_not_seen(bench: Bench) -> None:
    bench.log.arm = "on"
    for rows in range(1, MOST_KEYS + 10):
        bench.launch(rows)
    assert len(bench.rows()) == MOST_KEYS


def test_a_child_follows_nothing(bench: Bench) -> None:
    bench.log.arm = "on"
    bench.launch(4)
    bench.slot.restart()
    bench.times.after_fork()
    bench.launch(4)
    assert bench.rows() == []

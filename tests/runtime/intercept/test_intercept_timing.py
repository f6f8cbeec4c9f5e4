"""A few launches are timed on the device; all others, and the server, notice nothing of it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.runtime.intercept.strangers import launch_affine
from tests.runtime.intercept.test_intercept_counting import described, kernel_of

from retuned.runtime.intercept.hook import Interceptor
from retuned.runtime.intercept.registry import Cell
from retuned.runtime.intercept.timing import MOST_SKIPPED, Stopwatch
from retuned.runtime.schema import Refused
from retuned.runtime.steps.launch_timer import MOST_PENDING, TorchEvents


class PlayedDevice:
    """A stream: launches take 5 us each, and the device comes to a mark when it is told to."""

    def __init__(self) -> None:
        self.marks = 0
        self.at = 0
        self.capturing = False
        self.broken = False
        self.asked = 0

    def mark(self) -> int | None:
        if self.broken:
            raise RuntimeError("the device is gone")
        if self.capturing:
            return None
        self.marks += 1
        return self.marks

    def passed(self, mark: int) -> bool:
        self.asked += 1
        return mark <= self.at

    idle_at = passed

    def between_ns(self, first: int, second: int) -> int:
        return 5000 * (second - first)


class Timed:
    """An interceptor whose stopwatch has a played device and a clock that stands still."""

    def __init__(self, hook: Interceptor) -> None:
        self.device, self.now_s = PlayedDevice(), 0.0
        self.hook = hook
        self.others_capture = False
        self.watch = hook.stopwatch = Stopwatch(
            self.device,
            random_source=random.Random(7),
            clock=lambda: self.now_s,
            quiet=self.quiet,
        )

    @contextmanager
    def quiet(self) -> Iterator[None]:
        if self.others_capture:
            raise Refused("capturing", detail="another thread captures a graph")
        yield

    def round(self) -> None:
        self.now_s += 2.0
        self.hook.poll()

    def record(self) -> dict[str, Any]:
        (record,) = described(self.hook, "affine")
        return record

    def launch(self, times: int) -> None:
        for _ in range(times):
            launch_affine(40)


@pytest.fixture
def timed(hook: Interceptor, interpreted: bool) -> Timed:
    if interpreted:
        pytest.skip("the interpreter has no device; the suite runs on one in its other lane")
    made = Timed(hook)
    made.launch(1)
    return made


def test_one_launch_a_round_is_timed_and_all_are_counted(timed: Timed) -> None:
    for _ in range(3):
        timed.round()
        timed.launch(2 * MOST_SKIPPED)
    timed.device.at = timed.device.marks
    timed.round()
    record = timed.record()
    assert record["count"] == 1 + 6 * MOST_SKIPPED
    assert record["device_time"] == {"timed": 3, "mean_ns": 5000, "least_ns": 5000, "idle": 0}
    assert timed.device.marks == 6


def test_without_rounds_nothing_is_timed_and_the_kernel_goes_its_own_way(timed: Timed) -> None:
    timed.launch(200)
    assert timed.device.marks == 0
    assert kernel_of(timed.hook, "affine").led is None
    assert timed.record()["device_time"] is None


def test_a_round_too_early_arms_nothing(timed: Timed) -> None:
    timed.round()
    timed.launch(MOST_SKIPPED)
    assert timed.device.marks == 2
    timed.now_s += 0.1
    timed.hook.poll()
    timed.launch(MOST_SKIPPED)
    assert timed.device.marks == 2


def test_what_has_not_ended_is_looked_at_again(timed: Timed) -> None:
    timed.round()
    timed.launch(MOST_SKIPPED)
    timed.round()
    assert timed.record()["device_time"] is None
    timed.device.at = timed.device.marks
    timed.round()
    assert timed.record()["device_time"]["timed"] == 1


def test_a_launch_on_an_idle_stream_is_only_counted(timed: Timed) -> None:
    timed.device.at = 10**9
    timed.round()
    timed.launch(MOST_SKIPPED)
    assert timed.record()["device_time"] == {
        "timed": 0,
        "mean_ns": 0,
        "least_ns": 0,
        "idle": 1,
    }


def test_a_launch_that_is_captured_is_not_timed(timed: Timed) -> None:
    timed.device.capturing = True
    timed.round()
    timed.launch(MOST_SKIPPED)
    assert timed.record()["device_time"] is None
    assert timed.watch.dropped == 0
    assert timed.record()["count"] == 1 + MOST_SKIPPED


def test_while_another_thread_captures_no_event_is_asked_after(timed: Timed) -> None:
    timed.round()
    timed.launch(MOST_SKIPPED)
    timed.device.at = timed.device.marks
    asked, timed.others_capture = timed.device.asked, True
    timed.round()
    timed.launch(MOST_SKIPPED)
    assert timed.device.asked == asked
    assert timed.watch.dropped == 1, "the launch that was armed meanwhile"
    timed.others_capture = False
    timed.round()
    assert timed.record()["device_time"]["timed"] == 1
    assert timed.record()["count"] == 1 + 2 * MOST_SKIPPED


def test_a_child_keeps_its_parents_events_and_times_its_own(timed: Timed) -> None:
    parents = timed.watch
    timed.hook.reset()
    assert timed.hook.stopwatch is not parents
    assert parents in timed.hook._left


def test_a_device_that_refuses_costs_a_sample_and_no_launch(timed: Timed) -> None:
    timed.device.broken = True
    timed.round()
    timed.launch(MOST_SKIPPED)
    assert timed.watch.dropped == 1
    assert timed.record()["count"] == 1 + MOST_SKIPPED


def test_samples_that_never_end_are_bounded(timed: Timed) -> None:
    for _ in range(MOST_PENDING + 5):
        begun = timed.watch.begin()
        if begun is not None:
            timed.watch.end(begun, Cell())
    assert timed.watch.dropped == 5


def test_a_kernel_with_a_slot_is_not_timed_here(timed: Timed) -> None:
    kernel = kernel_of(timed.hook, "affine")
    slot = object()
    kernel.slot = slot
    timed.round()
    assert kernel.led is slot
    kernel.slot = None
    assert kernel.led is kernel.probe is not None
    timed.hook.uninstall()
    assert kernel.led is None


def test_without_an_initialised_device_pytorch_marks_nothing() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("a device is here; tests/gpu times on it")
    assert TorchEvents().mark() is None


@pytest.mark.parametrize(("said", "timed"), [("on", True), ("off", False), ("", False)])
def test_timing_is_off_unless_it_is_asked_for(
    said: str, timed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RETUNED_TRITON_TIMING", said)
    assert (Interceptor().stopwatch is not None) is timed

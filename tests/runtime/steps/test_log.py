"""Records: times on the device's timeline, the ring, the lease, captures and errors."""

from __future__ import annotations

import itertools
import threading
from contextlib import AbstractContextManager

import pytest
from tests.expect import raises_code
from tests.runtime.steps.played import Cuda, Event, check_timed_steps, taken

from retuned.runtime.schema import Refused
from retuned.runtime.steps import clock, log
from retuned.runtime.steps.clock import HostClock, StepClock, TorchClock, step_clock
from retuned.runtime.steps.composition import Composition
from retuned.runtime.steps.log import LEASE_S, StepLog, arm_in

WORK = Composition(0, 1, 100)


def on_host(*, ring: int = 64) -> StepLog:
    return StepLog(clock=HostClock, ring=ring)


def on_device(cuda: Cuda, *, ring: int = 64) -> StepLog:
    return StepLog(clock=lambda: TorchClock(cuda), ring=ring)


def run(made: StepLog, count: int = 1, *, work: Composition = WORK) -> None:
    for _ in range(count):
        made.begin(work)
        made.end(0)


def test_times_are_those_of_the_device() -> None:
    cuda = Cuda()
    check_timed_steps(on_device(cuda), cuda.launch, cuda.wait)


def test_a_step_is_read_when_the_device_has_reached_its_end() -> None:
    cuda = Cuda()
    made = on_device(cuda)
    made.start()
    for _ in range(3):
        made.begin(WORK)
        cuda.launch(1.0)
        made.end(0)
    cuda.reached_ms = 1.0
    said = made.take(since=0, limit=10)
    assert ([each[0] for each in said["records"]], said["next"], said["pending"]) == ([0], 1, 2)
    cuda.wait()
    assert [each["index"] for each in taken(made, since=1)] == [1, 2]


def test_events_are_used_again() -> None:
    cuda = Cuda()
    made = on_device(cuda)
    made.start()
    for _ in range(50):
        run(made)
        cuda.wait()
        made.settle()
    assert cuda.recorded == 100
    assert cuda.made < 6


def test_a_host_has_periods_and_no_busy_time() -> None:
    made = on_host()
    made.start()
    run(made, 3)
    records = taken(made)
    assert [each["period_us"] is None for each in records] == [True, False, False]
    assert all(each["busy_us"] is None and each["host_us"] >= 0 for each in records)
    for before, after in itertools.pairwise(records):
        span_us = 1e6 * (after["ended_s"] - before["ended_s"])
        assert after["period_us"] == pytest.approx(span_us, abs=5000)


def test_idling_gives_no_period() -> None:
    made = on_host()
    made.start()
    run(made)
    run(made, work=WORK._replace(after_idle=True))
    run(made)
    assert [each["period_us"] is None for each in taken(made)] == [True, True, False]


def test_a_lost_step_is_counted_and_leaves_no_period() -> None:
    made = on_host()
    made.start()
    run(made)
    made.begin(WORK)
    made.drop()
    run(made, 2)
    said = made.take(since=0, limit=10)
    assert [each[0] for each in said["records"]] == [0, 2, 3]
    assert (said["lost"], said["next"]) == (1, 4)
    assert [each["period_us"] is None for each in taken(made)] == [True, True, False]


def test_the_ring_drops_the_oldest_and_counts_them() -> None:
    made = on_host(ring=8)
    made.start()
    run(made, 20)
    said = made.take(since=3, limit=5)
    assert [each[0] for each in said["records"]] == [12, 13, 14, 15, 16]
    assert (said["lost"], said["next"]) == (9, 17)
    assert made.take(since=17, limit=5)["lost"] == 0
    assert made.take(since=None, limit=5) == {"records": [], "next": 20, "lost": 0, "pending": 0}
    assert made.take(since=500, limit=1)["records"][0][0] == 12  # asked another process before


def test_steps_that_the_device_never_ends_are_bounded() -> None:
    cuda = Cuda()
    made = on_device(cuda, ring=8)
    made.start()
    cuda.launch(1.0)
    run(made, 100)
    assert made.take(since=0, limit=4)["pending"] <= 9


def test_a_recording_ends_by_itself_after_its_lease() -> None:
    now_s, ended = 100.0, []
    made = StepLog(clock=HostClock, now_s=lambda: now_s, when_off=lambda: ended.append(1))
    made.start()
    made.arm = "on"
    run(made)
    now_s += LEASE_S - 1
    made.renew()
    now_s += LEASE_S - 1
    run(made)
    assert made.recording
    now_s += 2
    run(made)
    assert (made.recording, made.arm, ended) == (False, "", [1])
    assert len(taken(made)) == 2
    made.start()
    run(made)
    assert taken(made)[-1]["period_us"] is None  # steps between were not recorded


def test_a_lease_that_is_over_is_not_extended() -> None:
    now_s = 0.0
    made = StepLog(clock=HostClock, now_s=lambda: now_s)
    made.start()
    now_s = LEASE_S + 1
    made.renew()
    assert not made.recording


def test_nothing_is_marked_during_a_capture() -> None:
    cuda = Cuda()
    made = on_device(cuda)
    made.start()
    run(made)
    cuda.capturing = True
    run(made)
    cuda.capturing = False
    run(made, 2)
    cuda.wait()
    periods = [each["period_us"] is None for each in taken(made)]
    assert periods == [True, True, True, False]
    assert [each["busy_us"] is None for each in taken(made)] == [False, True, False, False]


def test_nothing_is_read_or_marked_while_another_thread_captures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused() -> AbstractContextManager[None]:
        raise Refused("capturing", detail="a capture is under way")

    cuda = Cuda()
    made = on_device(cuda)
    made.start()
    run(made)
    cuda.wait()
    with monkeypatch.context() as patched:
        patched.setattr(log, "quiet", refused)
        patched.setattr(clock, "captures_under_way", lambda: True)
        assert taken(made) == []
        run(made)
        assert cuda.recorded == 2
    assert len(taken(made)) == 2


def test_a_lost_device_ends_the_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: Event) -> bool:
        raise RuntimeError("the device is lost")

    cuda = Cuda()
    made = on_device(cuda)
    made.start()
    run(made)
    monkeypatch.setattr(Event, "query", fails)
    assert taken(made) == []
    assert (made.recording, made.fault) == (False, "device-lost")
    assert made.take(since=0, limit=1)["pending"] == 0


def test_records_are_read_while_steps_run() -> None:
    made, found, since = on_host(ring=4096), list[int](), 0
    made.start()
    thread = threading.Thread(target=run, args=(made, 3000))
    thread.start()
    while thread.is_alive() or len(found) < 3000:
        said = made.take(since=since, limit=100)
        assert said["lost"] == 0
        found += [each[0] for each in said["records"]]
        since = said["next"]
    assert found == list(range(3000))


def test_a_child_starts_over() -> None:
    cuda = Cuda()
    made = on_device(cuda)
    made.start()
    run(made, 2)
    made.begin(WORK)
    made.after_fork()
    assert (made.recording, made.under_way) == (False, False)
    assert made.take(since=0, limit=9) == {"records": [], "next": 0, "lost": 0, "pending": 0}


def test_the_clock_is_the_hosts_without_a_gpu() -> None:
    found: StepClock = step_clock()
    assert not found.on_device


@pytest.mark.parametrize("arm", ["", "x" * 33, 1, True, ["on"], "a\nb"])
def test_a_label_is_short_and_printable(arm: object) -> None:
    with raises_code(Refused, "bad-request"):
        arm_in({"arm": arm})
    assert arm_in({"arm": "x" * 32}) == "x" * 32
    assert arm_in({}) is None

"""Records of steps with real events; the logic has its twin in tests/runtime/steps/test_log.py."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
from tests.runtime.steps.played import check_timed_steps, taken

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.gpu

import retuned.runtime  # noqa: E402
from retuned.runtime.core.attach import Runtime, attach  # noqa: E402
from retuned.runtime.steps.clock import TorchClock, step_clock  # noqa: E402
from retuned.runtime.steps.composition import Composition  # noqa: E402
from retuned.runtime.steps.log import StepLog  # noqa: E402


@pytest.fixture(autouse=True)
def device() -> None:
    if not torch.cuda.is_available():
        pytest.skip("PyTorch sees no GPU")
    torch.cuda.init()


@pytest.fixture
def runtime() -> Iterator[Runtime]:
    made = attach(server="test")
    yield made
    made.close()


def cycles_per_ms() -> float:
    """Measure how long the device spins, warm."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(2):
        begin.record()
        torch.cuda._sleep(50_000_000)
        end.record()
        torch.cuda.synchronize()
    return float(50_000_000 / begin.elapsed_time(end))


def test_times_are_those_of_the_device() -> None:
    assert step_clock().on_device
    speed = cycles_per_ms()
    made = StepLog()
    check_timed_steps(made, lambda ms: torch.cuda._sleep(int(ms * speed)), torch.cuda.synchronize)


def test_a_device_that_is_never_idle_has_all_periods_of_long_steps() -> None:
    """The host waits for the device in each step, as where a server only prefills."""
    made, speed = StepLog(), cycles_per_ms()
    made.start()
    work = Composition(8192, 0, 0, may_have_waited=True)
    for _ in range(8):
        made.begin(work)
        torch.cuda._sleep(int(100 * speed))
        made.end(0)
        time.sleep(0.09)
    torch.cuda.synchronize()
    first, *others = taken(made)
    assert first["period_us"] is None
    assert all(80e3 < each["period_us"] < 125e3 for each in others)


def test_the_host_never_waits_for_a_step() -> None:
    made, speed = StepLog(clock=lambda: TorchClock(torch.cuda)), cycles_per_ms()
    made.start()
    begin_s = time.monotonic()
    for _ in range(4):
        made.begin(Composition(0, 1, 0))
        torch.cuda._sleep(int(500 * speed))
        made.end(0)
    assert taken(made) == []
    assert time.monotonic() - begin_s < 1.0
    torch.cuda.synchronize()
    assert len(taken(made)) == 4


def test_a_capture_is_not_ended_by_records(runtime: Runtime) -> None:
    """A step that captures a graph has no times; the control thread reads others meanwhile."""
    x, log, on = torch.ones(64, device="cuda"), runtime.steps.log, True
    log.start()
    with retuned.runtime.step(decode=1):
        x.mul_(1.0)
    runtime._host.graphs  # noqa: B018 - follows PyTorch's graphs from here on

    def read() -> None:
        while on:
            log.settle()
            time.sleep(0)

    thread = threading.Thread(target=read)
    thread.start()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(20):
            with retuned.runtime.step(decode=2):
                x.mul_(1.0)
    with retuned.runtime.step(decode=3):
        graph.replay()
    on = False
    thread.join(10.0)
    torch.cuda.synchronize()
    records = taken(log)
    assert [each["busy_us"] is None for each in records] == [
        each["decode"] == 2 for each in records
    ]
    assert len(records) == 22

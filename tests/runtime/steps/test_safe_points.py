"""Safe points and pauses, over a worker that steps as vLLM's does."""

from __future__ import annotations

import sys
import threading
import time
import types
from collections.abc import Iterator
from typing import Any

import pytest
from tests.expect import raises_code

from retuned.runtime.schema import Refused
from retuned.runtime.steps.hook import MODULE, Steps


class Server:
    """Runs steps on a separate thread until it is stopped."""

    def __init__(self, worker: Any) -> None:
        self.worker, self.steps, self.on = worker, 0, True
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while self.on:
            output = types.SimpleNamespace(
                num_scheduled_tokens={"a": 1, "b": 3}, total_num_scheduled_tokens=4
            )
            self.worker.execute_model(output)
            self.steps += 1
            time.sleep(0)  # another thread may take the lock


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> type:
    class Worker:
        inside = False

        def execute_model(self, scheduler_output: Any) -> int:
            self.inside = True
            time.sleep(0.002)
            self.inside = False
            return int(scheduler_output.total_num_scheduled_tokens)

    monkeypatch.setitem(sys.modules, MODULE, types.SimpleNamespace(Worker=Worker))
    return Worker


@pytest.fixture
def steps(worker: type) -> Iterator[Steps]:
    made = Steps()
    assert made.install(lambda: None) == "on"
    yield made
    made.uninstall()


@pytest.fixture
def server(steps: Steps, worker: type) -> Iterator[Server]:
    made = Server(worker())
    made.thread.start()
    while steps.worker is None:
        time.sleep(0.001)
    yield made
    made.on = False
    made.thread.join(30.0)


def test_work_runs_between_steps_of_a_busy_server(steps: Steps, server: Server) -> None:
    for _ in range(20):
        inside, held_us = steps.at_safe_point(lambda worker: worker.inside)
        assert not inside
        assert held_us < 1e6
    assert steps.report()["tokens"] >= 4


def test_work_runs_on_an_idle_server(steps: Steps, worker: type) -> None:
    made = worker()
    output = types.SimpleNamespace(num_scheduled_tokens={}, total_num_scheduled_tokens=0)
    assert made.execute_model(output) == 0
    assert steps.at_safe_point(lambda found: found is made)[0] is True


def test_an_error_of_the_work_reaches_its_caller_and_not_the_server(
    steps: Steps, server: Server
) -> None:
    def fails(_: object) -> None:
        raise Refused("capture-failed", detail="a fault")

    with raises_code(Refused, "capture-failed"):
        steps.at_safe_point(fails)
    before = server.steps
    while server.steps < before + 3:
        time.sleep(0.001)


def test_a_pause_holds_the_steps_until_it_is_resumed(steps: Steps, server: Server) -> None:
    for number in range(3):
        assert steps.pause(f"p{number}", seconds=2.0)["paused"] is True
        held = server.steps
        time.sleep(0.02)
        assert server.steps <= held + 1
        with raises_code(Refused, "paused-already"):
            steps.pause("other", seconds=1.0)
        assert steps.resume(f"p{number}") == {"resumed": True}
        while server.steps < held + 2:
            time.sleep(0.001)


def test_a_pause_ends_by_itself(steps: Steps, server: Server) -> None:
    steps.pause("p", seconds=0.05)
    held = server.steps
    while server.steps < held + 3:
        time.sleep(0.001)
    assert steps.resume("p") == {"resumed": False}


@pytest.mark.parametrize("seconds", [0.0, 2.5])
def test_a_pause_is_bounded(steps: Steps, server: Server, seconds: float) -> None:
    with raises_code(Refused, "bad-request"):
        steps.pause("p", seconds=seconds)

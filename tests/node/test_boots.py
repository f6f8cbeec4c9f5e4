"""Recording one boot of a server in short looks."""

from __future__ import annotations

import pytest
from tests.expect import raises_code

from retuned.errors import CandidateError
from retuned.node.boots import LOOK_S, record_boot
from retuned.ports import ObservedSteps
from retuned.stages.watch.proof import Arm, BootSettings, BootWindow, StepRecord, check_window

ENVIRONMENT = "sha256:" + 64 * "a"
SETTINGS = BootSettings(leave_out_s=30.0, window_s=25.0)


class Server:
    """Makes a step of 0.1 s after the other; answers looks."""

    def __init__(self) -> None:
        self.now_s, self.looks, self.engine, self.idle = 100.0, list[float](), "vllm 0.33.0", False

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def observe(self, seconds: float) -> ObservedSteps:
        self.looks.append(seconds)
        count = 0 if self.idle else round(seconds / 0.1)
        ends = [self.now_s + 0.1 * (number + 1) for number in range(count)]
        self.now_s += seconds
        return ObservedSteps(engine=self.engine, steps=[step(ended) for ended in ends])


def step(ended_s: float) -> StepRecord:
    return StepRecord(
        index=0,
        arm=Arm.OFF,
        prefill=0,
        decode=3,
        context=800,
        graph=None,
        period_s=0.1,
        busy_s=None,
        host_s=None,
        ended_s=ended_s,
    )


def recorded(server: Server, arm: Arm = Arm.ON) -> BootWindow:
    return record_boot(
        server,
        replica="pod-a",
        boot="pod-a/1",
        environment=ENVIRONMENT,
        arm=arm,
        began_s=5.0,
        settings=SETTINGS,
        sleep=server.sleep,
    )


def test_a_window_follows_what_is_left_out_in_looks_that_a_process_can_keep() -> None:
    server = Server()
    found = recorded(server)
    assert server.looks == [LOOK_S, LOOK_S, 5.0]
    assert server.now_s == pytest.approx(155.0)
    assert (found.arm, found.sums.steps) == (Arm.ON, 250)
    assert found.sums.wall_s == pytest.approx(25.0)
    check_window(found)
    assert recorded(Server(), Arm.OFF).arm is Arm.OFF


def test_a_server_without_traffic_has_an_empty_window() -> None:
    server = Server()
    server.idle = True
    found = recorded(server)
    assert found.sums.steps == 0
    check_window(found)


def test_another_engine_in_the_middle_is_another_boot() -> None:
    server = Server()
    look = server.observe

    def observe(seconds: float) -> ObservedSteps:
        server.engine = f"vllm 0.{len(server.looks)}.0"
        return look(seconds)

    server.observe = observe  # type: ignore[method-assign]
    with raises_code(CandidateError, "server-restarted"):
        recorded(server)

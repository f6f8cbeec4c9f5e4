"""Device time of the launches of a tunable: what its report tells where no live proof runs."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
from tests.expect import raises_naming
from tests.runtime.steps.test_launch_times import Played
from tests.runtime.tunables.test_moe_in_place import Server
from tests.runtime.tunables.test_tables import tunable

from retuned.runtime.tunables import state
from retuned.runtime.tunables.moe import MODULE
from retuned.runtime.tunables.state import Tunable, timed

DUE = [5, 66, 127]
"""Launches of a size class that are timed, counted from 1."""


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Played:
    made = Played()
    monkeypatch.setattr(state, "moments", lambda: made)
    return made


def launch(kernel: Tunable, device: Played, *, times: int = 1, in_capture: bool = False) -> None:
    def run() -> str:
        device.now_ns += device.took_ns
        return "launched"

    for _ in range(times):
        axes = dict.fromkeys(kernel.axes, 100)
        sized = kernel.sized(axes)
        kernel.choose(axes, sized)
        assert timed(sized, run, in_capture=in_capture) == "launched"


def counts(kernel: Tunable) -> tuple[Any, ...]:
    (report,) = kernel.asked()
    return tuple(report[name] for name in ("launches", "timed", "timed_us", "idle"))


def test_some_launches_are_timed(device: Played) -> None:
    kernel = tunable()
    launch(kernel, device, times=DUE[-1])
    assert counts(kernel) == (DUE[-1], 3, 21.0, 0)


def test_a_launch_on_an_idle_stream_is_counted_and_has_no_time(device: Played) -> None:
    kernel = tunable()
    device.idle = True
    launch(kernel, device, times=DUE[1])
    assert counts(kernel) == (DUE[1], 0, 0.0, 2)
    device.idle = False
    launch(kernel, device, times=DUE[2] - DUE[1])
    assert counts(kernel) == (DUE[2], 1, 7.0, 2)


def test_a_device_that_fails_and_a_capture_cost_a_time_and_no_launch(device: Played) -> None:
    kernel = tunable()
    device.broken = True
    launch(kernel, device, times=DUE[0])
    device.broken = False
    launch(kernel, device, times=DUE[1] - DUE[0] - 1)
    launch(kernel, device, in_capture=True)
    assert counts(kernel) == (DUE[1], 0, 0.0, 0)
    launch(kernel, device, times=DUE[2] - DUE[1])
    assert counts(kernel) == (DUE[2], 1, 7.0, 0)


def test_a_launch_that_raises_is_not_timed(device: Played) -> None:
    kernel = tunable()
    launch(kernel, device, times=DUE[0] - 1)

    def fail() -> None:
        raise RuntimeError("the server's own error")

    axes = dict.fromkeys(kernel.axes, 100)
    sized = kernel.sized(axes)
    kernel.choose(axes, sized)
    with raises_naming(RuntimeError, "the server's own error"):
        timed(sized, fail, in_capture=False)
    assert counts(kernel) == (DUE[0], 0, 0.0, 0)


def test_a_fork_leaves_the_times_of_its_parent_behind(device: Played) -> None:
    kernel = tunable()
    launch(kernel, device, times=DUE[0])
    kernel.after_fork()
    assert kernel.asked() == []
    launch(kernel, device)
    assert counts(kernel) == (1, 0, 0.0, 0)


def test_a_layer_of_experts_is_timed_from_its_look_up_to_its_second_launch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = ModuleType(MODULE)
    monkeypatch.setitem(sys.modules, MODULE, module)
    server = Server(module)
    monkeypatch.setattr(state, "moments", lambda: server.device)
    for _ in range(DUE[0]):
        server.layer(100)
    server.device.idle = True
    for _ in range(DUE[1] - DUE[0]):
        server.layer(100)
    server.device.idle = False
    for _ in range(DUE[2] - DUE[1] - 1):
        server.layer(100)
    server.look_up(100)  # due, and its launches never come
    assert counts(server.tunable) == (DUE[2], 1, 9.5, 1)

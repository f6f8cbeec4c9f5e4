"""Steps that a server marks itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
from tests.runtime.steps.played import taken

import retuned.runtime
from retuned.runtime.core.attach import Runtime, attach
from retuned.runtime.steps.hook import Steps


@pytest.fixture
def runtime() -> Iterator[Runtime]:
    made = attach(server="test")
    yield made
    made.close()


@pytest.fixture
def steps(runtime: Runtime) -> Steps:
    return runtime.steps


def test_a_marked_step_is_recorded(steps: Steps) -> None:
    steps.log.start()
    for idle in (False, False, True):
        with retuned.runtime.step(prefill=16, decode=3, context=99, after_idle=idle):
            pass
    records = taken(steps.log)
    assert [each["period_us"] is None for each in records] == [True, False, True]
    found = {name: records[1][name] for name in ("prefill", "decode", "context", "graph")}
    assert found == {"prefill": 16, "decode": 3, "context": 99, "graph": 0}
    assert steps.report()["hook"] == "on"


def test_marked_steps_are_safe_points(steps: Steps) -> None:
    inside, seen, on = False, list[bool](), True

    def serve() -> None:
        nonlocal inside
        while on:
            with retuned.runtime.step(decode=1):
                inside = True
                time.sleep(0.001)
                inside = False
            time.sleep(0)

    thread = threading.Thread(target=serve)
    thread.start()
    while not steps.known:
        time.sleep(0.001)
    for number in range(20):
        steps.in_arm(lambda _: seen.append(inside), arm=f"arm-{number}")
    on = False
    thread.join(10.0)
    assert seen == [False] * 20
    assert steps.log.arm == "arm-19"


def test_a_step_within_a_step_is_not_one(steps: Steps) -> None:
    steps.log.start()
    with retuned.runtime.step(decode=2), retuned.runtime.step(decode=1):
        pass
    assert [each["decode"] for each in taken(steps.log)] == [2]


def test_a_step_beside_another_is_counted_and_does_not_wait(steps: Steps) -> None:
    steps.log.start()
    begun = threading.Event()

    def beside() -> None:
        with retuned.runtime.step(decode=1):
            begun.set()

    with retuned.runtime.step(decode=2):
        thread = threading.Thread(target=beside)
        thread.start()
        assert begun.wait(10.0)
        thread.join(10.0)
    assert ([each["decode"] for each in taken(steps.log)], steps.overlapping) == ([2], 1)


def test_a_step_that_fails_is_lost_and_its_error_is_the_servers(steps: Steps) -> None:
    steps.log.start()
    with pytest.raises(ZeroDivisionError), retuned.runtime.step(decode=1):
        raise ZeroDivisionError
    with retuned.runtime.step(decode=1):
        pass
    assert [each["index"] for each in taken(steps.log)] == [1]


def test_without_a_runtime_a_step_does_nothing(runtime: Runtime) -> None:
    runtime.close()
    with retuned.runtime.step(decode=1):
        pass
    assert not runtime.steps.known

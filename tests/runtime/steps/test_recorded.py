"""Records of vLLM's steps: composition, graphs, whole steps in an arm, and the operation."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from tests.expect import raises_code
from tests.runtime.steps.played import Cuda, Dispatcher, named, scheduled, taken, worker_class

from retuned.runtime.core.host import RuntimeHost
from retuned.runtime.schema import Refused
from retuned.runtime.steps.clock import TorchClock
from retuned.runtime.steps.hook import MODULE, Steps
from retuned.runtime.steps.log import RING, StepLog
from retuned.runtime.steps.service import StepService

ONE = {"a": 1}


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Any:
    made = worker_class()
    monkeypatch.setitem(sys.modules, MODULE, SimpleNamespace(Worker=made))
    return made


@pytest.fixture
def steps(worker: Any) -> Iterator[Steps]:
    made = Steps()
    assert made.install(lambda: None) == "on"
    yield made
    made.uninstall()


def step(worker: Any, output: Any) -> None:
    if worker.execute_model(output) is None:
        assert worker.sample_tokens(None) == "answer"


def test_a_record_has_the_composition_of_its_step(steps: Steps, worker: Any) -> None:
    server = worker()
    steps.log.start()
    tokens = {"a": 1, "b": 1, "c": 7, "d": 20}
    step(server, scheduled(tokens, computed={"a": 100, "b": 50, "c": 3, "d": 9}, new=["d"]))
    (record,) = taken(steps.log)
    composed = {name: record[name] for name in ("prefill", "decode", "context", "graph", "arm")}
    assert composed == {"prefill": 27, "decode": 2, "context": 162, "graph": 0, "arm": ""}


@pytest.mark.parametrize("count", [1, 256, 1000])
def test_no_sequence_is_left_out(steps: Steps, worker: Any, count: int) -> None:
    steps.log.start()
    names = {f"r{n}": 1 for n in range(count)}
    step(worker(), scheduled(names, computed=dict.fromkeys(names, 10)))
    (record,) = taken(steps.log)
    assert (record["decode"], record["context"]) == (count, 10 * count)


def test_a_step_after_idling_has_no_period(steps: Steps, worker: Any) -> None:
    server = worker()
    steps.log.start()
    for output in (scheduled(ONE, new=["a"]), scheduled(ONE)):
        step(server, output)
    time.sleep(0.025)  # no request is there
    step(server, scheduled({"b": 9}, new=["b"]))
    assert [each["period_us"] is None for each in taken(steps.log)] == [True, False, True]


def test_requests_of_one_step_each_have_periods_while_others_wait(worker: Any) -> None:
    cuda, steps = Cuda(), Steps()
    steps.log = StepLog(clock=lambda: TorchClock(cuda))
    steps.install(lambda: None)
    server = worker(lambda _: cuda.launch(50.0))  # the host waits 100 ms for each step
    steps.log.start()
    for gap_ms in (500.0, 0.9, 0.5, 1.2, 0.9, 200.0, 1.6):
        cuda.launch(gap_ms)  # the device has nothing to do
        step(server, scheduled({"a": 900}, new=["a"]))
        cuda.wait()
        steps.log.settle()
    idle = [each["period_us"] is None for each in taken(steps.log)]
    assert idle == [True, False, False, False, False, True, True]
    steps.uninstall()


def test_a_device_that_is_never_idle_has_all_periods(worker: Any) -> None:
    cuda, steps = Cuda(), Steps()
    steps.log = StepLog(clock=lambda: TorchClock(cuda))
    steps.install(lambda: None)
    server = worker(lambda _: cuda.launch(50.0))
    steps.log.start()
    for _ in range(5):
        step(server, scheduled({"a": 8192}, new=["a"]))
        time.sleep(0.03)  # longer than a gap that counts as waiting for requests
    cuda.wait()
    assert [each["period_us"] for each in taken(steps.log)] == [None] + 4 * [100_000.0]
    steps.uninstall()


def test_a_step_without_tokens_is_none(steps: Steps, worker: Any) -> None:
    server = worker()
    steps.log.start()
    for output in (scheduled(ONE), scheduled({}), scheduled(ONE)):
        step(server, output)
    assert [each["period_us"] is None for each in taken(steps.log)] == [True, False]


@pytest.mark.parametrize("second", [False, True])
def test_the_graph_is_that_of_the_whole_step(steps: Steps, worker: Any, second: bool) -> None:
    holder = Dispatcher(second=second)
    server = worker(**{"cudagraph_manager" if second else "cudagraph_dispatcher": holder})
    steps.log.start()
    for count in (5, 8, 65):
        step(server, scheduled({"a": count}))
    assert [each["graph"] for each in taken(steps.log)] == [8, 8, 0]
    steps.log.stop()
    assert "dispatch" not in vars(holder)


def test_a_step_ends_with_its_sampling(worker: Any) -> None:
    cuda, steps = Cuda(), Steps()
    steps.log = StepLog(clock=lambda: TorchClock(cuda))
    steps.install(lambda: None)
    server = worker(lambda call: cuda.launch(3.0 if call == "execute" else 2.0))
    steps.log.start()
    for _ in range(2):
        step(server, scheduled(ONE))
        cuda.launch(1.0)
    cuda.wait()
    assert [each["busy_us"] for each in taken(steps.log)] == [5000.0, 5000.0]
    assert taken(steps.log)[1]["period_us"] == 6000.0
    steps.uninstall()


def test_host_time_is_that_of_the_two_calls(steps: Steps, worker: Any) -> None:
    server = worker()
    steps.log.start()
    server.execute_model(scheduled(ONE))
    time.sleep(0.1)  # the engine, between the calls
    server.sample_tokens(None)
    assert taken(steps.log)[0]["host_us"] < 50_000


def test_a_worker_without_a_second_call_is_recorded_too(worker: Any) -> None:
    del worker.sample_tokens
    steps = Steps()
    steps.install(lambda: None)
    steps.log.start()
    server = worker()
    for _ in range(2):
        server.execute_model(scheduled(ONE))
    assert [each["period_us"] is None for each in taken(steps.log)] == [True, False]
    steps.uninstall()


@pytest.mark.parametrize("call", ["execute", "sample"])
def test_a_step_that_fails_is_lost(steps: Steps, worker: Any, call: str) -> None:
    def fails(now: str) -> None:
        if now == call:
            raise ValueError("out of memory")

    server = worker()
    steps.log.start()
    step(server, scheduled(ONE))
    server.doing = fails
    with pytest.raises(ValueError, match="memory"):
        step(server, scheduled(ONE))
    server.doing = lambda _: None
    step(server, scheduled(ONE))
    assert [each["index"] for each in taken(steps.log)] == [0, 2]
    assert taken(steps.log)[1]["period_us"] is None
    assert steps.at_safe_point(lambda _: "now", wait_s=0.2)[0] == "now"


def test_no_change_is_made_between_the_calls_of_a_step(steps: Steps, worker: Any) -> None:
    server, order = worker(), list[str]()
    server.doing = order.append
    server.execute_model(scheduled(ONE))
    thread = threading.Thread(target=steps.at_safe_point, args=(lambda _: order.append("change"),))
    thread.start()
    time.sleep(0.1)  # several tries of the control thread
    server.sample_tokens(None)
    thread.join(10.0)
    assert order == ["execute", "sample", "change"]


def test_a_second_call_that_never_comes_does_not_block_changes(steps: Steps, worker: Any) -> None:
    worker().execute_model(scheduled(ONE))
    begin_s = time.monotonic()
    assert steps.at_safe_point(lambda _: "made")[0] == "made"
    assert 0.5 < time.monotonic() - begin_s < 5.0


def test_whole_steps_belong_to_an_arm(steps: Steps, worker: Any) -> None:
    """Every step of a busy server sees one state, the one that its label names."""
    server, state, seen = worker(), ["off"], list[tuple[str, str]]()
    first = [""]

    def doing(call: str) -> None:
        if call == "execute":
            first[0] = state[0]
        else:
            seen.append((first[0], state[0]))

    server.doing, on = doing, True
    steps.log.start()
    steps.log.arm = "off"

    def exchange(arm: str, _: object) -> None:
        state[0] = arm

    def serve() -> None:
        while on:
            step(server, scheduled(ONE))
            time.sleep(0)

    thread = threading.Thread(target=serve)
    thread.start()
    while not seen:
        time.sleep(0.001)
    for number in range(40):
        arm = "on" if number % 2 == 0 else "off"
        steps.in_arm(partial(exchange, arm), arm=arm)
    on = False
    thread.join(10.0)
    records = taken(steps.log, limit=RING)
    assert [each["arm"] for each in records] == [a for a, _ in seen]
    assert all(a == b for a, b in seen)
    assert {"on", "off"} == {each["arm"] for each in records}


def test_a_change_that_was_not_made_labels_nothing(steps: Steps, worker: Any) -> None:
    step(worker(), scheduled(ONE))
    steps.in_arm(lambda _: None, arm="on")
    assert steps.log.arm == "on"
    steps.in_arm(lambda _: None, arm=None)
    assert steps.log.arm == "on"
    steps.in_arm(lambda _: False, arm="on")
    assert steps.log.arm == ""


def test_another_scheduler_ends_the_recording_and_no_step(steps: Steps, worker: Any) -> None:
    server = worker()
    steps.log.start()
    output = SimpleNamespace(num_scheduled_tokens=ONE, total_num_scheduled_tokens=1)
    step(server, output)
    assert (steps.log.recording, steps.log.fault) == (False, "scheduler-unknown")
    assert steps.report()["count"] == 1


def test_described_steps_have_the_lengths_of_the_scheduler(steps: Steps, worker: Any) -> None:
    step(worker(), scheduled({"a": 1, "b": 7}, computed={"a": 30}, new=["b"]))
    assert steps.report()["recent"][0] | {"sequences": 2, "tokens": 8} == {
        "sequences": 2,
        "tokens": 8,
        "queries": [1, 7],
        "keys": [31, 7],
    }


# --- the operation --------------------------------------------------------------------------------


def test_the_operation_turns_records_on_and_off(steps: Steps, worker: Any) -> None:
    service, server = StepService(steps, facts=lambda: {"rank": "3"}), worker()
    step(server, scheduled(ONE))
    said = service.answer({"op": "steps"})
    assert (said["hook"], said["recording"], said["records"]) == ("on", False, [])
    service.answer({"record": True})
    for _ in range(3):
        step(server, scheduled(ONE))
    said = service.answer({"since": 0, "limit": 2})
    assert [named(each)["index"] for each in said["records"]] == [0, 1]
    assert (said["next"], said["lost"], said["pending"], said["rank"]) == (2, 0, 0, "3")
    assert service.answer({"record": False})["recording"] is False
    step(server, scheduled(ONE))
    assert service.answer({"since": 2})["next"] == 3


def test_the_largest_answer_is_small(steps: Steps, worker: Any) -> None:
    server, service = worker(), StepService(steps)
    service.answer({"record": True})
    for _ in range(4200):
        step(server, scheduled(ONE, computed={"a": 2**20}))
    said = service.answer({"since": 0})
    assert len(said["records"]) == 4096
    assert len(json.dumps(said)) < 1 << 20


@pytest.mark.parametrize(
    "fields",
    [
        *({"record": 1}, {"record": "yes"}),
        *({"since": -1}, {"since": True}, {"since": 1.5}, {"since": "0"}, {"since": 2**60}),
        *({"limit": 4097}, {"limit": -1}),
    ],
)
def test_a_bad_request_is_refused(steps: Steps, fields: dict[str, Any]) -> None:
    with raises_code(Refused, "bad-request"):
        StepService(steps).answer(fields)
    assert not steps.log.recording


def test_a_host_without_vllm_says_so() -> None:
    said = RuntimeHost("test").answer({"op": "steps", "record": True})
    assert (said["hook"], said["records"]) == ("vllm-missing", [])
    assert set(said) >= {"instance", "rank", "fields", "now_s"}


def test_a_host_without_tables_follows_steps_when_asked(worker: Any) -> None:
    host = RuntimeHost("test")
    own = worker.__dict__["execute_model"]
    assert host.answer({"op": "steps", "record": True})["hook"] == "no-worker"
    server = worker()
    step(server, scheduled(ONE))
    assert host.answer({"op": "steps", "since": 0})["next"] == 1
    host.tunables.close()
    assert worker.__dict__["execute_model"] is own
    assert not host.steps.log.recording


def test_a_forked_child_records_its_own_steps_only(steps: Steps, worker: Any) -> None:
    server = worker()
    steps.log.start()
    step(server, scheduled(ONE))
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        steps.after_fork()
        step(server, scheduled(ONE))
        said = steps.log.take(since=0, limit=9)
        os.write(write, json.dumps([steps.log.recording, said["next"]]).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    assert json.loads(os.read(read, 100)) == [False, 0]
    assert steps.log.recording

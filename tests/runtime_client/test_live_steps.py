"""Steps of a real runtime as a live proof reads them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.expect import raises_code
from tests.runtime.steps.test_launch_times import DEFINITION

import retuned.runtime
from retuned.errors import CandidateError, TemporaryError
from retuned.runtime.core.attach import Runtime
from retuned.runtime.core.slots import Slot
from retuned.runtime_client.live_steps import RESTARTED, ServerSteps, StepLook
from retuned.runtime_client.step_records import parse_launches
from retuned.stages.watch.proof import Arm, kernel_times


@pytest.fixture
def live(runtime: Runtime, tmp_path: Path) -> ServerSteps:
    return ServerSteps(tmp_path / "s")


def step(decode: int = 1) -> None:
    with retuned.runtime.step(decode=decode, context=5):
        pass


def label(runtime: Runtime, name: str) -> None:
    runtime._host.steps.in_arm(lambda _: True, arm=name)


def test_a_server_that_marks_no_step_cannot_be_proven(live: ServerSteps) -> None:
    assert live.unavailable() == "not-switchable"
    step()
    assert live.unavailable() == ""


def test_the_engine_is_known_after_a_look(
    runtime: Runtime, live: ServerSteps, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("retuned.runtime.core.host.engine", lambda: "vllm 0.33.0")
    step()
    assert live.engine() == ""
    assert live.unavailable() == ""
    assert live.engine() == "vllm 0.33.0"


def test_labelled_steps_are_read_once_with_their_arm(runtime: Runtime, live: ServerSteps) -> None:
    step()
    live.begin()
    step()  # without a label
    label(runtime, "3-0-on")
    step(2)
    step(3)
    label(runtime, "3-1-off")
    step(4)
    assert live.unavailable() == "", "it takes no steps from the proof"
    found = live.read()
    assert [(name, each.arm, each.decode) for name, each in found] == [
        ("3-0-on", Arm.ON, 2),
        ("3-0-on", Arm.ON, 3),
        ("3-1-off", Arm.OFF, 4),
    ]
    assert all(each.period_s is not None for _, each in found)
    assert live.read() == []
    live.end()
    step()
    assert live.read() == []


def test_another_runtime_ends_the_proof(
    runtime: Runtime, live: ServerSteps, monkeypatch: pytest.MonkeyPatch
) -> None:
    step()
    live.begin()
    monkeypatch.setattr(runtime._host._execution, "instance", "new")
    with raises_code(CandidateError, RESTARTED):
        live.read()


def test_time_passes(live: ServerSteps) -> None:
    before_s = live.now_s()
    live.wait(0.01)
    assert live.now_s() - before_s >= 0.01


def test_a_server_that_has_not_begun_is_waited_for(
    runtime: Runtime, live: ServerSteps, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime._host.steps, "hook", lambda: "no-worker")
    with pytest.raises(TemporaryError):
        live.unavailable()


def test_steps_beside_each_other_end_the_proof(runtime: Runtime, live: ServerSteps) -> None:
    step()
    live.begin()
    runtime._host.steps.overlapping += 1
    with raises_code(CandidateError, "not-switchable"):
        live.read()


def test_steps_are_observed_for_a_moment_and_nothing_is_switched(
    runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("retuned.runtime.core.host.engine", lambda: "vllm 0.33.0")
    step()

    def serve(seconds: float) -> None:
        assert seconds == 5.0
        step(2)
        step(3)

    seen = StepLook(tmp_path / "s", sleep=serve).observe(5.0)
    assert seen.engine == "vllm 0.33.0"
    assert [each.decode for each in seen.steps] == [2, 3]
    assert not runtime._host.steps.log.recording


def test_a_look_ends_whatever_comes_in_between(runtime: Runtime, tmp_path: Path) -> None:
    step()

    def fails(_: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        StepLook(tmp_path / "s", sleep=fails).observe(5.0)
    assert not runtime._host.steps.log.recording


def test_a_server_that_marks_no_step_is_not_observed(runtime: Runtime, tmp_path: Path) -> None:
    with raises_code(CandidateError, "not-switchable"):
        StepLook(tmp_path / "s", sleep=lambda _: None).observe(5.0)


def test_launches_of_the_proven_slot_are_read_by_arm(runtime: Runtime, live: ServerSteps) -> None:
    slot = Slot(DEFINITION, lambda x: x)
    step()
    live.begin()
    assert live.launches() == ()
    runtime._host.steps.launches.follow(slot)
    for name in ("3-0-on", "3-1-off"):
        label(runtime, name)
        for _ in range(2):
            slot(SimpleNamespace(shape=(4,)))
    found = live.launches()
    assert [(each.arm, each.lengths, each.launches) for each in found] == [
        (Arm.ON, (4,), 2),
        (Arm.OFF, (4,), 2),
    ]
    assert found[0].times_s
    assert 0.0 < found[0].times_s[0] < 1.0


@pytest.mark.parametrize(
    "row",
    [
        {"arm": "both", "lengths": [1], "launches": 1, "us": []},
        {"arm": "on", "lengths": ["1"], "launches": 1, "us": []},
        {"arm": "on", "lengths": [1], "launches": -1, "us": []},
        {"arm": "on", "lengths": [1], "launches": 2**40 + 1, "us": []},
        {"arm": "on", "lengths": [1], "launches": 1, "us": [3.6e9 + 1.0]},
        {"arm": "on", "lengths": [1], "launches": 1, "us": [float("nan")]},
        {"arm": "on", "lengths": [1], "launches": 1, "us": [1.0] * 1000},
        {"arm": "on", "lengths": [1] * 99, "launches": 1, "us": []},
        "on",
    ],
)
def test_launches_that_no_runtime_has_are_refused(row: object) -> None:
    with raises_code(CandidateError, "steps-invalid"):
        parse_launches("1.sock", {"launches": [row]})


def test_the_largest_launches_of_a_runtime_fit_into_a_claim() -> None:
    row = {"arm": "on", "lengths": [2**53] * 16, "launches": 2**40, "us": [3.6e9] * 128}
    seen = parse_launches("1.sock", {"launches": [row] * 128})
    (kernel,) = kernel_times(seen, steps=1)
    assert (kernel.launches, kernel.on_s) == (128 * 2.0**40, 3600.0)

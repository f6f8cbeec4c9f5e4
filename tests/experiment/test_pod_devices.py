"""How devices stood while a pod measured goes with its results, and is read as a stranger's."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.operators import examples
from tests.standalone.local_world import LOST, WINNER

from retuned.experiment.fake import FakeBench
from retuned.experiment.messages import (
    DeviceStates,
    LabTask,
    done_line,
    finding_line,
    read_line,
    stood_of,
)
from retuned.experiment.pod import PodResources, run_pod
from retuned.experiment.pod_results import FINDINGS
from retuned.experiment.pod_task import PodRole, PodSettings
from retuned.node.gpu import FakeDevices
from retuned.ports import Devices, DeviceState
from retuned.stages.drift import GpuObservation
from retuned_operator.schema import JobRole
from retuned_operator.store.results import ResultFolder

BUSY = DeviceState(gpu="nvidia-0", throttled=frozenset({"power"}), processes=(1, 2))


class Moments:
    """Devices of which the second look finds less than the first."""

    def __init__(self, *looks: tuple[DeviceState, ...]) -> None:
        self._looks = list(looks)

    def read(self) -> tuple[DeviceState, ...]:
        return self._looks.pop(0)

    def close(self) -> None:
        """Hold nothing."""


@pytest.fixture(autouse=True)
def _handler_of_sigterm() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def left_by(folder: Path, role: PodRole, devices: Devices | None) -> bytes:
    """Let a pod of a role measure, and return the last line that it leaves."""
    plan = examples.a_plan()
    solution = WINNER.model_copy(update={"definition": plan.definition})
    task = LabTask(plan=plan, root=str(folder), solutions=(solution,))
    (folder / "task.json").write_text(task.model_dump_json())
    means = PodResources(
        read=lambda text, _where: LabTask.model_validate_json(text),
        environment=lambda _task, _role: examples.WORLD,
        open=lambda _task, _role: FakeBench(script={plan.definition: [LOST]}, root=folder / "lab"),
        say=lambda _line: None,
        devices=lambda: devices,
    )
    settings = PodSettings(role=role, results=folder / "results")
    run_pod([str(folder / "task.json")], settings, means=means)
    return (folder / "results" / FINDINGS).read_bytes().splitlines()[-1]


@pytest.mark.parametrize("role", [PodRole.SEARCH, PodRole.VERIFY])
def test_a_pod_that_measures_says_how_devices_stood_before_and_after(
    tmp_path: Path, role: PodRole
) -> None:
    calm = DeviceState(gpu="nvidia-0", throttled=frozenset(), processes=(1, 2, 3))
    line = left_by(tmp_path, role, Moments((BUSY,), (calm,)))
    stood = stood_of(line)
    assert [each.others for each in stood.begin] == [2]
    assert [each.others for each in stood.end] == [None]  # its own are among them by then
    assert stood.words == (
        "as it began, nvidia-0 is throttled (power); nvidia-0 is shared with 2 other process(es)"
    )


@pytest.mark.parametrize(
    ("role", "devices"),
    [
        (PodRole.VERIFY, None),
        (PodRole.VERIFY, FakeDevices()),
        (PodRole.COMPILE, FakeDevices([BUSY])),
    ],
)
def test_a_pod_without_devices_or_that_measures_nothing_says_what_an_older_one_does(
    tmp_path: Path, role: PodRole, devices: Devices | None
) -> None:
    assert json.loads(left_by(tmp_path, role, devices)) == done_line() == {"done": True}


@pytest.mark.parametrize(
    "gpus",
    [
        None,
        [],
        {"begin": "x"},
        {"begin": [{"gpu": "<b>"}]},
        {"begin": [{"gpu": "amd-0"}] * 17},
        {"begin": [{"gpu": "amd-0", "power_w": float("nan")}]},
        {"middle": []},
    ],
)
def test_what_no_pod_writes_of_devices_is_left_out_and_its_results_stay(
    tmp_path: Path, gpus: Any
) -> None:
    last = {"done": True, "gpus": gpus}
    assert read_line(json.dumps(last).encode()) is None
    assert stood_of(json.dumps(last).encode()) == DeviceStates()
    (result,) = results(tmp_path, last)
    assert (len(result.findings), result.beside) == (1, "")


def test_the_operator_reads_what_slowed_a_pod_with_its_result(tmp_path: Path) -> None:
    hot = DeviceStates(
        end=(GpuObservation(gpu="amd-1", core_hz=1e9, core_max_hz=2e9, busy_ratio=1.0),)
    )
    (result,) = results(tmp_path, done_line(hot))
    assert result.beside == "as it ended, amd-1 runs at 50 % of its highest clock"
    assert result.fact(JobRole.VERIFY).beside == result.beside


def results(folder: Path, last: Mapping[str, Any]) -> Any:
    pod = folder / "uid" / "verify-1" / "pod-1"
    pod.mkdir(parents=True)
    lines = (finding_line(LOST), last)
    (pod / FINDINGS).write_text("".join(json.dumps(each) + "\n" for each in lines))
    return ResultFolder(folder).of("uid", "verify-1")

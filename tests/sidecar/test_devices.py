"""What a pod's accelerators do is told with windows and drift, to whoever can read it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import ValidationError
from tests.sidecar.sidecar_world import POD, TARGET, PodWorld

from retuned.api.agent import (
    MAX_GPUS,
    VERSION,
    Ack,
    AgentMessage,
    DriftPost,
    Hello,
    ProfileReport,
    Report,
    Welcome,
    older,
    wire_json,
)
from retuned.errors import Refused
from retuned.node.context import DRIFT, WINDOW
from retuned.node.gpu import FakeDevices
from retuned.ports import DeviceState, TraceBatch
from retuned.sidecar.devices import look
from retuned.sidecar.main import Sidecar
from retuned.stages.drift import DriftAction, DriftReport, Throttle
from retuned.stages.profile import WorkloadProfile
from retuned.stages.trace import LaunchRecord

PROFILE = WorkloadProfile(window_start_ns=0, window_ns=60, observed_ns=60, stats=())
ALARM = DriftReport(
    detected=True, action=DriftAction.ALARM, reasons=(), distance=0.0, window_start_ns=0,
    sentence="the same work takes longer",
)  # fmt: skip
HOT = DeviceState(
    gpu="amd-0",
    core_hz=1.2e9,
    core_max_hz=2.1e9,
    power_w=749.0,
    throttled=frozenset({"thermal"}),
    busy_ratio=1.0,
    processes=(40, 41),
)


@pytest.fixture
def world(tmp_path: Path) -> PodWorld:
    world = PodWorld(tmp_path)
    with_devices(world, HOT)
    return world


def with_devices(world: PodWorld, *states: DeviceState) -> None:
    world.sidecar = Sidecar(replace(world.ctx, devices=FakeDevices(states)))


def found(world: PodWorld) -> None:
    """Let a window and an alarm be found, and be told."""
    world.turn()  # whom it serves
    body = {"profile": PROFILE.model_dump(mode="json"), "devices": ["0", "1"]}
    world.ctx.store.add(WINDOW, "1.0", body, phase="judged")
    world.ctx.store.add(DRIFT, "1.0", ALARM.model_dump(mode="json"), phase="noted")
    world.turn()


def test_an_alarm_and_its_window_are_told_with_how_the_pods_devices_stood(world: PodWorld) -> None:
    found(world)
    (drift,), (window,) = world.said(DriftPost), world.said(ProfileReport)
    (gpu,) = drift.gpus
    assert (gpu.gpu, gpu.throttled, gpu.others) == ("amd-0", (Throttle.THERMAL,), 1)
    assert window.gpus == drift.gpus
    assert window.gpus_traced == 2


def test_the_devices_that_traces_of_a_window_name_are_counted_once_each(world: PodWorld) -> None:
    world.turn()  # whom it serves
    at_ns = int(world.clock.now().timestamp() * 1e9)
    for number, device in enumerate(("0", "1", "1")):
        launch = LaunchRecord(kernel="gemm", start_ns=0, duration_ns=5_000, device=device)
        world.traces.add(
            TraceBatch(
                origin=f"/traces/{number}.json",
                digest=f"sha256:{number:064d}",
                format="test",
                launches=(launch,),
                span_ns=10_000,
                completed_at_ns=at_ns,
            )
        )
    world.turn(200.0)
    world.turn()
    assert [each.gpus_traced for each in world.said(ProfileReport)] == [2]


def test_a_sidecar_shows_its_devices_and_names_no_process_of_them(world: PodWorld) -> None:
    assert look(world.ctx) == 1
    assert world.telemetry.row("retuned_gpu_throttled", gpu="amd-0", reason="thermal") == 1.0
    assert world.telemetry.row("retuned_gpu_power_watts", gpu="amd-0") == 749.0
    assert not world.telemetry.tables["retuned_gpu_processes"]


def test_a_container_that_is_shown_no_device_tells_of_none(tmp_path: Path) -> None:
    world = PodWorld(tmp_path)
    found(world)
    assert world.said(DriftPost)[-1].gpus == ()
    assert "gpus" not in wire_json(world.said(DriftPost)[-1])


def test_of_very_many_devices_as_many_are_told_as_may_be(world: PodWorld) -> None:
    with_devices(world, *(replace(HOT, gpu=f"amd-{n}") for n in range(2 * MAX_GPUS)))
    found(world)
    assert len(world.said(DriftPost)[-1].gpus) == MAX_GPUS


def test_a_number_that_no_device_can_have_is_not_told_and_hides_no_other(world: PodWorld) -> None:
    wrong = replace(HOT, power_w=float("inf"), core_hz=float("nan"), busy_ratio=40.0)
    with_devices(world, replace(wrong, throttled=frozenset({"cosmic"})))
    found(world)
    (gpu,) = world.said(DriftPost)[-1].gpus
    assert (gpu.power_w, gpu.core_hz, gpu.busy_ratio) == (None, None, None)
    assert (gpu.core_max_hz, gpu.throttled) == (2.1e9, (Throttle.OTHER,))


class OlderOperator:
    """Reads what version 1 of the language has, and refuses the rest, as its records do."""

    def __init__(self, world: PodWorld, *, says: int) -> None:
        self._inner, self.says = world.operator, says

    def hello(self, hello: Hello) -> Welcome:
        return self._inner.hello(hello).model_copy(update={"version": self.says})

    def post(self, report: Report, *, traceparent: str = "") -> Ack:
        if '"gpus' in wire_json(report):
            error = Refused("gpus: Extra inputs are not permitted")
            error.code = "body-invalid"
            raise error
        return self._inner.post(report, traceparent=traceparent)

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)


@pytest.mark.parametrize("says", [1, VERSION], ids=["it says so", "it came back since"])
def test_an_older_operator_is_told_all_that_it_can_read(world: PodWorld, says: int) -> None:
    operator = OlderOperator(world, says=says)
    world.sidecar = Sidecar(replace(world.ctx, operator=operator))  # type: ignore[arg-type]
    found(world)
    assert [each.report for each in world.said(DriftPost)] == [ALARM]
    assert [each.profile for each in world.said(ProfileReport)] == [PROFILE]
    assert len(world.ctx.spool) == 0


def test_a_report_without_news_is_the_same_for_every_version() -> None:
    said = AgentMessage(pod=POD, target=TARGET)
    assert older(said, version=1) is said
    report = ProfileReport(pod=POD, target=TARGET, id="w", profile=PROFILE)
    assert wire_json(report) == wire_json(older(report, version=1))
    assert ProfileReport.model_validate_json(wire_json(report), strict=True) == report


@pytest.mark.parametrize(
    "gpu",
    [
        {"gpu": "<script>"},
        {"gpu": "amd-0", "power_w": -1.0},
        {"gpu": "amd-0", "core_hz": 1e300},
        {"gpu": "amd-0", "busy_ratio": 1.5},
        {"gpu": "amd-0", "others": 1 << 40},
        {"gpu": "amd-0", "throttled": ["cosmic"]},
        {"gpu": "amd-0", "processes": [1]},
    ],
)
def test_devices_that_no_sidecar_writes_are_refused(gpu: dict[str, object]) -> None:
    body = {"pod": POD, "target": TARGET, "id": "w", "report": ALARM}
    with pytest.raises(ValidationError):
        DriftPost.model_validate({**body, "gpus": [gpu]})
    with pytest.raises(ValidationError):
        DriftPost.model_validate({**body, "gpus": [{"gpu": f"amd-{n}"} for n in range(17)]})

"""Devices through fake libraries that answer as NVML and pyrsmi are documented to."""

from __future__ import annotations

import ctypes
import importlib
import inspect
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from retuned.node.devices import rows, sentence
from retuned.node.gpu import FakeDevices, find_devices
from retuned.node.gpu_nvml import NvmlDevices
from retuned.node.gpu_rsmi import RsmiDevices
from retuned.ports import Devices, DeviceState
from retuned.telemetry import MetricType, Refusal, admitted


class FakeNvml:
    """The calls of NVML that are used, with its own constants; a lack is an error of its own."""

    NVMLError = pynvml.NVMLError
    NVML_CLOCK_SM = pynvml.NVML_CLOCK_SM
    NVML_CLOCK_MEM = pynvml.NVML_CLOCK_MEM
    NVML_TEMPERATURE_GPU = pynvml.NVML_TEMPERATURE_GPU

    def __init__(self, *, reasons: int = 0, lacks: Sequence[str] = (), away: bool = False) -> None:
        self.reasons, self.lacks, self.away = reasons, set(lacks), away
        self.begun = 0

    def __getattr__(self, name: str) -> Any:
        if name.startswith("nvmlClocks"):
            return getattr(pynvml, name)
        raise AttributeError(name)

    def _or_error(self, name: str, value: Any) -> Any:
        if name in self.lacks:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return value

    def nvmlInit(self) -> None:
        if self.away:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
        self.begun += 1

    def nvmlShutdown(self) -> None:
        self.begun -= 1

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, number: int) -> str:
        return f"handle {number}"

    def nvmlDeviceGetUUID(self, handle: str) -> str:
        return str(self._or_error("names", f"GPU-{handle[-1]}"))

    def nvmlDeviceGetName(self, handle: str) -> str:
        return str(self._or_error("names", "NVIDIA H200"))

    def nvmlDeviceGetClockInfo(self, handle: str, kind: int) -> int:
        return int(self._or_error("clock", 1_400 if kind == self.NVML_CLOCK_SM else 2_619))

    def nvmlDeviceGetMaxClockInfo(self, handle: str, kind: int) -> int:
        return int(self._or_error("clock", 1_980))

    def nvmlDeviceGetPowerUsage(self, handle: str) -> int:
        return int(self._or_error("power", 690_500))

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: str) -> int:
        return int(self._or_error("power", 700_000))

    def nvmlDeviceGetTemperature(self, handle: str, kind: int) -> int:
        return int(self._or_error("temperature", 81))

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: str) -> int:
        return int(self._or_error("events", self.reasons))

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: str) -> int:
        return int(self._or_error("throttles", self.reasons))

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> Any:
        return self._or_error("rates", SimpleNamespace(gpu=97, memory=60))

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> Any:
        return self._or_error("memory", SimpleNamespace(total=80 << 30, used=60 << 30, free=0))

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> Any:
        found = [SimpleNamespace(pid=pid, usedGpuMemory=None) for pid in (7, 8, 9)]
        return self._or_error("processes", found)


def test_every_call_of_the_fake_is_one_of_the_real_library() -> None:
    for name in vars(FakeNvml):
        if name.startswith(("nvml", "NVML")):
            assert hasattr(pynvml, name), name


def test_a_device_is_read_in_base_units() -> None:
    nvml = FakeNvml(reasons=pynvml.nvmlClocksEventReasonSwPowerCap)
    found = NvmlDevices(nvml).read()
    assert [each.gpu for each in found] == ["nvidia-0", "nvidia-1"]
    assert found[0] == DeviceState(
        gpu="nvidia-0",
        uuid="GPU-0",
        model="NVIDIA H200",
        core_hz=1.4e9,
        core_max_hz=1.98e9,
        memory_hz=2.619e9,
        power_w=690.5,
        power_limit_w=700.0,
        temperature_c=81.0,
        throttled=frozenset({"power"}),
        busy_ratio=0.97,
        memory_used_bytes=60 << 30,
        processes=(7, 8, 9),
    )


@pytest.mark.parametrize(
    ("bit", "reason"),
    [
        ("SwThermalSlowdown", {"thermal"}),
        ("HwThermalSlowdown", {"thermal"}),
        ("HwSlowdown", {"hardware"}),
        ("HwPowerBrakeSlowdown", {"power"}),
        ("ApplicationsClocksSetting", {"software"}),
        ("GpuIdle", set()),
    ],
)
def test_bits_of_nvml_become_reasons(bit: str, reason: set[str]) -> None:
    for word in ("Event", "Throttle"):
        mask = getattr(pynvml, f"nvmlClocks{word}Reason{bit}", None)
        mask = mask if mask is not None else getattr(pynvml, f"nvmlClocksThrottleReason{bit}")
        (first, _) = NvmlDevices(FakeNvml(reasons=mask)).read()
        assert first.throttled == frozenset(reason)


def test_an_older_driver_is_asked_by_the_older_name() -> None:
    mask = pynvml.nvmlClocksThrottleReasonSwThermalSlowdown
    (first, _) = NvmlDevices(FakeNvml(reasons=mask, lacks=["events"])).read()
    assert first.throttled == frozenset({"thermal"})


def test_what_a_device_does_not_say_is_not_known_and_hides_nothing_else() -> None:
    lacks = ["clock", "power", "temperature", "events", "throttles", "processes", "names"]
    (first, _) = NvmlDevices(FakeNvml(lacks=lacks)).read()
    assert first == DeviceState(gpu="nvidia-0", busy_ratio=0.97, memory_used_bytes=60 << 30)


def test_without_a_driver_there_are_no_devices_and_a_later_look_asks_again() -> None:
    nvml = FakeNvml(away=True)
    devices = NvmlDevices(nvml)
    assert devices.read() == ()
    nvml.away = False
    assert len(devices.read()) == len(devices.read()) == 2
    assert nvml.begun == 1
    devices.close()
    devices.close()
    assert nvml.begun == 0


class ROCMLError_Unknown(Exception):
    """As pyrsmi names its own."""


class FakeRsmi:
    """The calls of pyrsmi 1.1 that are used; on an error they return -1."""

    ROCMLError_Unknown = ROCMLError_Unknown

    def __init__(self, *, count: int = 1, error: Exception | None = None) -> None:
        self.count, self.error = count, error
        self.wrong = False
        self.power: float = 512.0

    def smi_initialize(self) -> None:
        if self.error is not None:
            raise self.error

    def smi_shutdown(self) -> None:
        self.count = 0

    def smi_get_device_count(self) -> int:
        return self.count

    def smi_get_device_utilization(self, dev: int) -> int:
        return -1 if self.wrong else 40

    def smi_get_device_memory_used(self, dev: int, type: str = "VRAM") -> int:
        return -1 if self.wrong else 5 << 30

    def smi_get_device_average_power(self, dev: int) -> float:
        return -1 if self.wrong else self.power

    def smi_get_device_pci_id(self, dev: int) -> int:
        return -1 if self.wrong else (0x2 << 32) | (0xC1 << 8) | (0x3 << 3) | 0x1


def test_the_fake_has_only_calls_that_pyrsmi_has() -> None:
    library = importlib.import_module("pyrsmi.rocml")
    calls = [name for name in vars(FakeRsmi) if name.startswith("smi_")]
    assert len(calls) == 7
    for name in calls:
        real = inspect.signature(getattr(library, name)).parameters
        own = list(inspect.signature(getattr(FakeRsmi, name)).parameters.values())[1:]
        assert [(each.name, each.default) for each in own] == [
            (each.name, each.default) for each in real.values()
        ], name


def system(folder: Path) -> Path:
    """Write what amdgpu and amdkfd show."""
    device = folder / "bus/pci/devices/0002:c1:03.1"
    sensors = device / "hwmon/hwmon4"
    sensors.mkdir(parents=True)
    (device / "pp_dpm_sclk").write_text("0: 132Mhz \n1: 1890Mhz *\n2: 2100Mhz \n")
    (device / "pp_dpm_mclk").write_text("0: 900Mhz\n1: 1300Mhz *\n")
    (sensors / "power1_cap").write_text("750000000\n")
    (sensors / "temp1_input").write_text("71000\n")
    kfd = folder / "class/kfd/kfd"
    for number, gpu_id, location in ((0, 0, 0), (1, 51545, 0xC119), (2, 33912, 0xC200)):
        node = kfd / f"topology/nodes/{number}"
        node.mkdir(parents=True)
        (node / "gpu_id").write_text(f"{gpu_id}\n")
        about = f"simd_count 304\nlocation_id {location}\ndomain {2 if number else 0}\n"
        (node / "properties").write_text(about)
    for pid, here, there in (
        ("7", 1 << 30, 0),
        ("12", 4096, 1),
        ("13", 0, 1 << 30),
        ("self", 1, 1),
    ):
        (kfd / "proc" / pid).mkdir(parents=True)
        (kfd / "proc" / pid / "vram_51545").write_text(f"{here}\n")
        (kfd / "proc" / pid / "vram_33912").write_text(f"{there}\n")
    return folder


def test_an_amd_device_is_read_from_pyrsmi_and_the_drivers_files(tmp_path: Path) -> None:
    (found,) = RsmiDevices(FakeRsmi(), system=system(tmp_path)).read()
    assert found == DeviceState(
        gpu="amd-0",
        core_hz=1.89e9,
        core_max_hz=2.1e9,
        memory_hz=1.3e9,
        power_w=512.0,
        power_limit_w=750.0,
        temperature_c=71.0,
        throttled=None,
        busy_ratio=0.4,
        memory_used_bytes=5 << 30,
        processes=(7, 12),
    )


def test_what_pyrsmi_answers_with_minus_one_is_not_known(tmp_path: Path) -> None:
    library = FakeRsmi()
    library.wrong = True
    (found,) = RsmiDevices(library, system=tmp_path).read()
    assert found == DeviceState(gpu="amd-0")


@pytest.mark.parametrize("lacks", ["topology/nodes/1/gpu_id", "topology/nodes/1/properties"])
def test_whose_a_device_is_that_the_compute_driver_does_not_name_is_not_known(
    lacks: str, tmp_path: Path
) -> None:
    (system(tmp_path) / "class/kfd/kfd" / lacks).write_text("?")
    (found,) = RsmiDevices(FakeRsmi(), system=tmp_path).read()
    assert found.processes is None


@pytest.mark.parametrize("none", [-1, 0xFFFF, 0xFFFF_FFFF])
@pytest.mark.parametrize(
    ("sensors", "watts"),
    [
        ({"power1_input": "431000000\n", "power1_average": "99000000\n"}, 431.0),
        ({"power1_average": "187000000\n"}, 187.0),
        ({"power1_input": "-1\n"}, None),
        ({}, None),
    ],
)
def test_power_that_pyrsmi_does_not_have_is_read_from_the_drivers_sensors(
    none: float, sensors: dict[str, str], watts: float | None, tmp_path: Path
) -> None:
    device = system(tmp_path) / "bus/pci/devices/0002:c1:03.1/hwmon/hwmon4"
    for name, text in sensors.items():
        (device / name).write_text(text)
    library = FakeRsmi()
    library.power = none
    (found,) = RsmiDevices(library, system=tmp_path).read()
    assert found.power_w == watts
    library.power = 640.0
    (again,) = RsmiDevices(library, system=tmp_path).read()
    assert again.power_w == 640.0


def test_files_of_a_driver_that_say_something_else_are_not_believed(tmp_path: Path) -> None:
    device = system(tmp_path) / "bus/pci/devices/0002:c1:03.1"
    (device / "pp_dpm_sclk").write_bytes(b"\xff\xfe garbage\n" * 10_000)
    (device / "hwmon/hwmon4/power1_cap").write_text("-5")
    (device / "hwmon/hwmon4/temp1_input").write_text("9" * 4_000)
    (found,) = RsmiDevices(FakeRsmi(), system=tmp_path).read()
    assert (found.core_hz, found.core_max_hz) == (None, None)
    assert (found.power_limit_w, found.temperature_c) == (None, None)


@pytest.mark.parametrize("error", [RuntimeError("no driver"), OSError("x"), ROCMLError_Unknown()])
def test_without_an_amd_driver_there_are_no_devices(error: Exception, tmp_path: Path) -> None:
    assert RsmiDevices(FakeRsmi(error=error), system=tmp_path).read() == ()


def test_the_first_library_that_shows_devices_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    away, there = FakeNvml(away=True), FakeRsmi()

    def imported(name: str) -> Any:
        return {"pynvml": away, "pyrsmi.rocml": there}[name]

    monkeypatch.setattr(importlib, "import_module", imported)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: name)
    assert isinstance(find_devices(), RsmiDevices)
    there.count = 0
    assert find_devices() is None


def test_without_nvidias_driver_its_package_is_not_even_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def away(name: str) -> Any:
        raise OSError(f"{name}: cannot open shared object file")

    loaded: list[str] = []

    def imported(name: str) -> Any:
        loaded.append(name)
        return FakeRsmi(count=0)

    monkeypatch.setattr(ctypes, "CDLL", away)
    monkeypatch.setattr(importlib, "import_module", imported)
    assert find_devices() is None
    assert loaded == ["pyrsmi.rocml"]


def test_a_machine_without_the_packages_has_no_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", nothing)
    assert find_devices() is None


@pytest.mark.parametrize("make", [lambda p: FakeDevices([DeviceState(gpu="nvidia-0")]),
                                  lambda p: NvmlDevices(FakeNvml()),
                                  lambda p: RsmiDevices(FakeRsmi(), system=p)])  # fmt: skip
def test_each_is_read_and_let_go_alike(make: Any, tmp_path: Path) -> None:
    devices: Devices = make(tmp_path)
    assert devices.read()
    assert all(each.gpu for each in devices.read())
    devices.close()


def test_all_rows_are_in_the_catalogue(tmp_path: Path) -> None:
    states = [
        *NvmlDevices(FakeNvml(reasons=pynvml.nvmlClocksEventReasonSwPowerCap)).read(),
        *RsmiDevices(FakeRsmi(), system=system(tmp_path)).read(),
    ]
    found = rows(states, servers={7}, lab={8})
    for name, each in ((name, row) for name, table in found.items() for row in table):
        said = admitted(name, each[0], kind=MetricType.GAUGE, table=True)
        assert not isinstance(said, Refusal), said
    assert ({"gpu": "nvidia-0", "whose": "others"}, 1.0) in found["retuned_gpu_processes"]
    assert ({"gpu": "amd-0", "whose": "server"}, 1.0) in found["retuned_gpu_processes"]
    assert ({"gpu": "nvidia-0", "reason": "power"}, 1.0) in found["retuned_gpu_throttled"]
    assert not [row for row in found["retuned_gpu_throttled"] if row[0]["gpu"] == "amd-0"]


def test_what_may_slow_the_same_work_is_said_in_words() -> None:
    slow = DeviceState(
        gpu="nvidia-0",
        core_hz=1.2e9,
        core_max_hz=2.0e9,
        busy_ratio=0.9,
        throttled=frozenset({"thermal", "power"}),
        processes=(1, 2, 3),
    )
    said = sentence([slow], ours={1})
    assert said == (
        "nvidia-0 is throttled (power, thermal); nvidia-0 runs at 60 % of its highest clock; "
        "nvidia-0 is shared with 2 other process(es)"
    )
    idle = DeviceState(gpu="nvidia-1", core_hz=2e8, core_max_hz=2e9, busy_ratio=0.0, processes=(1,))
    assert sentence([idle], ours={1}) == ""

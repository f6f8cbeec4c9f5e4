"""The device's clock, with a device that is made up: what is queued in which order, and when."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from tests.expect import raises_naming

from retuned.errors import MissingDependency
from retuned.lab.harness.device import GpuDevice, HostDevice, open_device
from retuned.lab.languages import gpu

CYCLES_PER_US = 100.0


class FakeGpu:
    """Plays PyTorch and a GPU: work is queued, time passes only on the device."""

    def __init__(self, *, cache_bytes: int = 50 * 2**20, hip: str | None = None) -> None:
        self.queue: list[str] = []
        self.now_us = 0.0
        self.host_us = 0.0
        self.right = True
        self.flushed_bytes = 0
        self.int64, self.uint8 = "int64", "uint8"
        self.version = SimpleNamespace(hip=hip)
        self.cuda = SimpleNamespace(
            init=lambda: None,
            get_device_properties=lambda _: SimpleNamespace(L2_cache_size=cache_bytes),
            Event=lambda enable_timing: FakeEvent(self),
            _sleep=self._sleep,
            synchronize=lambda: None,
        )

    def empty(self, size: int, **_: object) -> Any:
        self.flushed_bytes = size
        return SimpleNamespace(zero_=lambda: self._queue("flush", 100.0))

    def arange(self, count: int, **_: object) -> Any:
        total = count * (count - 1) // 2 + (not self.right)
        return SimpleNamespace(sum=lambda: SimpleNamespace(item=lambda: total))

    def kernel(self, tensors: Sequence[Any], lengths: Sequence[int]) -> None:
        self.host_us += 10.0
        self._queue(f"kernel {tensors[0]}", 3.0)

    def _sleep(self, cycles: int) -> None:
        self._queue("sleep", cycles / CYCLES_PER_US)

    def _queue(self, what: str, cost_us: float) -> None:
        self.queue.append(what)
        self.now_us = max(self.now_us, self.host_us) + cost_us


class FakeEvent:
    def __init__(self, device: FakeGpu) -> None:
        self._device = device
        self.at_us = 0.0

    def record(self) -> None:
        self._device.queue.append("event")
        self.at_us = max(self._device.now_us, self._device.host_us)

    def query(self) -> bool:
        return self._device.host_us >= self.at_us

    def synchronize(self) -> None:
        self._device.host_us = max(self._device.host_us, self.at_us)

    def elapsed_time(self, other: FakeEvent) -> float:
        return (other.at_us - self.at_us) / 1e3


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[FakeGpu, GpuDevice]]:
    def make(**changes: Any) -> tuple[FakeGpu, GpuDevice]:
        fake = FakeGpu(**changes)
        monkeypatch.setitem(sys.modules, "torch", fake)
        return fake, GpuDevice()

    return make


def test_launches_wait_in_the_queue_so_that_only_kernels_are_timed(
    played: Callable[..., tuple[FakeGpu, GpuDevice]],
) -> None:
    fake, device = played()
    fake.queue.clear()
    spent_ns, on_time = device.time(fake.kernel, [["a"], ["b"], ["c"]], [1])
    assert fake.queue == ["flush", "sleep", "event", "kernel a", "kernel b", "kernel c", "event"]
    assert on_time
    assert spent_ns == pytest.approx(9_000)  # and not the 30 us that launching took


def test_a_device_that_overtakes_its_launches_is_noticed(
    played: Callable[..., tuple[FakeGpu, GpuDevice]],
) -> None:
    fake, device = played()

    def slow(tensors: Sequence[Any], lengths: Sequence[int]) -> None:
        fake.host_us += 50_000.0
        fake.kernel(tensors, lengths)

    _, on_time = device.time(slow, [["a"]], [1])
    assert not on_time


@pytest.mark.parametrize(
    ("cache_bytes", "hip", "least"),
    [(50 * 2**20, None, 100 * 2**20), (4 * 2**20, "7.0", 512 * 2**20), (0, None, 64 * 2**20)],
    ids=["twice the cache", "AMD's cache before its memory is not told of", "unknown"],
)
def test_more_than_the_last_level_cache_is_flushed(
    cache_bytes: int,
    hip: str | None,
    least: int,
    played: Callable[..., tuple[FakeGpu, GpuDevice]],
) -> None:
    fake, _ = played(cache_bytes=cache_bytes, hip=hip)
    assert fake.flushed_bytes >= least


def test_a_device_that_does_not_compute_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeGpu()
    fake.right = False
    monkeypatch.setitem(sys.modules, "torch", fake)
    with raises_naming(RuntimeError, "device"):
        GpuDevice()


def test_without_a_gpu_the_clock_is_the_processors() -> None:
    device = open_device("cpu")
    assert isinstance(device, HostDevice)
    seen: list[object] = []
    spent_ns, on_time = device.time(lambda tensors, _: seen.append(tensors), [["a"], ["b"]], [1])
    assert seen == [["a"], ["b"]]
    assert spent_ns > 0
    assert on_time


def test_children_get_the_devices_variables_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "0")
    given = gpu.variables()
    assert given["CUDA_VISIBLE_DEVICES"] == "1"
    assert given["TRITON_DEFAULT_FP_FUSION"] == "0"
    assert "AWS_SECRET_ACCESS_KEY" not in given


@pytest.mark.parametrize(
    ("files", "version"),
    [
        (
            {
                "/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  "
                "580.65.06  Release\n"
            },
            "580.65.06",
        ),
        ({"/sys/module/amdgpu/version": "6.12.12\n"}, "6.12.12"),
        ({}, ""),
    ],
)
def test_the_driver_is_named(
    files: dict[str, str], version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(path: object, *_: object) -> str:
        try:
            return files[str(path)]
        except KeyError:
            raise FileNotFoundError from None

    monkeypatch.setattr("pathlib.Path.read_text", read)
    assert gpu._driver() == version


def test_numerics_settings_belong_to_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for value in ("0", "1"):
        monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", value)
        gpu.gpu_environment.cache_clear()
        try:
            found.append(gpu.gpu_environment().digest)
        except MissingDependency:
            pytest.skip("PyTorch or Triton is not installed")
    gpu.gpu_environment.cache_clear()
    assert found[0] != found[1]

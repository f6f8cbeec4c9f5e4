"""NVIDIA's devices through NVML, by the package nvidia-ml-py."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from retuned.ports import DeviceState

log = logging.getLogger(__name__)

_REASONS = {
    "power": ("SwPowerCap", "HwPowerBrakeSlowdown"),
    "thermal": ("SwThermalSlowdown", "HwThermalSlowdown"),
    "hardware": ("HwSlowdown",),
    "software": ("ApplicationsClocksSetting", "SyncBoost", "DisplayClockSetting"),
}
"""By reason: ends of the names of NVML's bits. An idle device does not count as throttled."""


class NvmlDevices:
    """The `Devices` port over NVML.

    Parameters
    ----------
    library
        The module ``pynvml``.
    """

    def __init__(self, library: Any) -> None:  # noqa: ANN401 - a module without types
        self._nvml = library
        self._ready = False

    def read(self) -> Sequence[DeviceState]:
        """Return the state of every device; empty if the driver does not answer."""
        try:
            if not self._ready:
                self._nvml.nvmlInit()
                self._ready = True
            count = int(self._nvml.nvmlDeviceGetCount())
            handles = [self._nvml.nvmlDeviceGetHandleByIndex(n) for n in range(count)]
        except self._nvml.NVMLError as error:
            log.debug("NVML does not answer: %s", error)
            return ()
        return tuple(self._state(n, handle) for n, handle in enumerate(handles))

    def close(self) -> None:
        """Let the library go."""
        if self._ready:
            self._ready = False
            self._ask(self._nvml.nvmlShutdown)

    def _state(self, number: int, handle: object) -> DeviceState:
        nvml, ask = self._nvml, self._ask
        core, memory = nvml.NVML_CLOCK_SM, nvml.NVML_CLOCK_MEM
        rates = ask(nvml.nvmlDeviceGetUtilizationRates, handle)
        used = ask(nvml.nvmlDeviceGetMemoryInfo, handle)
        running = ask(nvml.nvmlDeviceGetComputeRunningProcesses, handle)
        return DeviceState(
            gpu=f"nvidia-{number}",
            uuid=_text(ask(nvml.nvmlDeviceGetUUID, handle)),
            model=_text(ask(nvml.nvmlDeviceGetName, handle)),
            core_hz=_scaled(ask(nvml.nvmlDeviceGetClockInfo, handle, core), 1e6),
            core_max_hz=_scaled(ask(nvml.nvmlDeviceGetMaxClockInfo, handle, core), 1e6),
            memory_hz=_scaled(ask(nvml.nvmlDeviceGetClockInfo, handle, memory), 1e6),
            power_w=_scaled(ask(nvml.nvmlDeviceGetPowerUsage, handle), 1e-3),
            power_limit_w=_scaled(ask(nvml.nvmlDeviceGetEnforcedPowerLimit, handle), 1e-3),
            temperature_c=_scaled(
                ask(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU), 1.0
            ),
            throttled=self._throttled(handle),
            busy_ratio=None if rates is None else rates.gpu / 100.0,
            memory_used_bytes=None if used is None else int(used.used),
            processes=None if running is None else tuple(int(each.pid) for each in running),
        )

    def _throttled(self, handle: object) -> frozenset[str] | None:
        """Return why clocks are low; the names of the calls changed with version 12.535."""
        for word in ("Event", "Throttle"):
            call = getattr(self._nvml, f"nvmlDeviceGetCurrentClocks{word}Reasons", None)
            bits = None if call is None else self._ask(call, handle)
            if bits is not None:
                return frozenset(
                    reason for reason, ends in _REASONS.items() if bits & self._mask(word, ends)
                )
        return None

    def _mask(self, word: str, ends: Sequence[str]) -> int:
        names = (f"nvmlClocks{kind}Reason{end}" for end in ends for kind in (word, "Throttle"))
        mask = 0
        for name in names:
            mask |= int(getattr(self._nvml, name, 0))
        return mask

    def _ask(self, call: Callable[..., Any], *words: object) -> Any | None:  # noqa: ANN401 - as above
        """Read one value; None if the device does not have it. Other values may still exist."""
        try:
            return call(*words)
        except self._nvml.NVMLError as error:
            log.debug("%s: %s", getattr(call, "__name__", "NVML"), error)
            return None


def _text(value: object) -> str:
    """Return a name; older versions of the package return bytes."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value or "")


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor

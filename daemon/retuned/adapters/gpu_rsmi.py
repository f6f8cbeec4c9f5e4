"""AMD's devices: load, memory and power through pyrsmi, the rest from the driver's own files.

pyrsmi 1.1 gives no clocks, limits or temperatures; amdgpu shows them below ``/sys``, and the
processes that have opened the compute driver below ``/sys/class/kfd``. Why a device is throttled is
in neither in a stable form, and so is not known.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from retuned.ports import DeviceState

log = logging.getLogger(__name__)

_LEVEL = re.compile(r"^\s*\w+:\s*(\d{1,6})\s*Mhz\s*(\*?)", re.IGNORECASE)
_MAX_BYTES = 4096
_MAX_PROCESSES = 4096


class RsmiDevices:
    """The `Devices` port over pyrsmi and sysfs.

    Parameters
    ----------
    library
        The module ``pyrsmi.rocml``.
    system
        Where sysfs is mounted.
    """

    def __init__(self, library: Any, *, system: Path = Path("/sys")) -> None:  # noqa: ANN401 - a module without types
        self._smi = library
        self._system = system
        self._errors: tuple[type[Exception], ...] = (
            OSError,
            RuntimeError,
            *_errors_of(library),
        )
        self._ready = False

    def read(self) -> Sequence[DeviceState]:
        """Return how every device stands; nothing where the driver does not answer."""
        try:
            if not self._ready:
                self._smi.smi_initialize()
                self._ready = True
            count = int(self._smi.smi_get_device_count())
        except self._errors as error:
            log.debug("AMD SMI does not answer: %s", error)
            return ()
        processes = self._processes()
        return tuple(self._state(n, processes) for n in range(max(count, 0)))

    def close(self) -> None:
        """Let the library go."""
        if self._ready:
            self._ready = False
            self._smi.smi_shutdown()

    def _state(self, number: int, processes: tuple[int, ...] | None) -> DeviceState:
        smi, folder = self._smi, self._folder(number)
        busy = _known(smi.smi_get_device_utilization(number))
        used = _known(smi.smi_get_device_memory_used(number))
        core, core_max = _levels(_text(folder / "pp_dpm_sclk"))
        return DeviceState(
            gpu=f"amd-{number}",
            core_hz=core,
            core_max_hz=core_max,
            memory_hz=_levels(_text(folder / "pp_dpm_mclk"))[0],
            power_w=_known(smi.smi_get_device_average_power(number)),
            power_limit_w=_number(_sensor(folder, "power1_cap"), 1e-6),
            temperature_c=_number(_sensor(folder, "temp1_input"), 1e-3),
            busy_ratio=None if busy is None else busy / 100.0,
            memory_used_bytes=None if used is None else int(used),
            processes=processes,
        )

    def _folder(self, number: int) -> Path:
        """Return the device's folder; its place on the bus tells which one it is."""
        place = int(self._smi.smi_get_device_pci_id(number))
        if place < 0:
            return self._system / "nowhere"
        bus, device = (place >> 8) & 0xFF, (place >> 3) & 0x1F
        name = f"{(place >> 32) & 0xFFFF:04x}:{bus:02x}:{device:02x}.{place & 7:x}"
        return self._system / "bus" / "pci" / "devices" / name

    def _processes(self) -> tuple[int, ...] | None:
        """Return who has opened the compute driver, of all devices together; None if unknown."""
        try:
            names = [each.name for each in (self._system / "class/kfd/kfd/proc").iterdir()]
        except OSError:
            return None
        return tuple(sorted(int(name) for name in names[:_MAX_PROCESSES] if name.isdecimal()))


def _levels(text: str) -> tuple[float | None, float | None]:
    r"""Return the clock that is marked and the highest one, hertz.

    Examples
    --------
    >>> _levels("0: 500Mhz\n1: 1700Mhz *\n2: 2100Mhz\n")
    (1700000000.0, 2100000000.0)
    >>> _levels("")
    (None, None)
    """
    found = [match for line in text.splitlines() if (match := _LEVEL.match(line))]
    now = next((float(match[1]) * 1e6 for match in found if match[2]), None)
    return now, max((float(match[1]) * 1e6 for match in found), default=None)


def _sensor(folder: Path, name: str) -> str:
    try:
        return next((_text(each) for each in sorted(folder.glob(f"hwmon/hwmon*/{name}"))), "")
    except OSError:
        return ""


def _text(path: Path) -> str:
    """Return a small file of the driver; empty where it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(_MAX_BYTES).decode("ascii", "replace")
    except OSError:
        return ""


def _number(text: str, factor: float) -> float | None:
    stripped = text.strip()
    return int(stripped) * factor if stripped.isdecimal() and len(stripped) < 20 else None


def _known(value: float) -> float | None:
    """Return a number of pyrsmi; below zero it is an error."""
    return None if value < 0 else value


def _errors_of(library: Any) -> tuple[type[Exception], ...]:  # noqa: ANN401 - as above
    found = [getattr(library, name) for name in dir(library) if name.startswith("ROCMLError")]
    return tuple(each for each in found if isinstance(each, type) and issubclass(each, Exception))

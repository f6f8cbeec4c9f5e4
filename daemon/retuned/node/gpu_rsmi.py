"""AMD's devices: load, memory and power through pyrsmi, the rest from the driver's own files.

pyrsmi 1.1 gives no clocks, limits or temperatures; amdgpu shows them below ``/sys``, and the
processes that have memory on a device below ``/sys/class/kfd``. Why a device is throttled is
in neither in a stable form, so it is unknown. pyrsmi has no call for the current power alone:
``smi_get_device_average_power`` returns it where the driver has it (MI300 has no average), and
-1, or the driver's value for "not there", where neither was found. Then this module reads the
sensors of amdgpu: ``power1_input`` is the current power; older devices have ``power1_average``.
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
_MAX_WATTS = 65_534.0
"""Above it a number is what libamd_smi calls a value that a device does not have: all bits set."""
_PROPERTY = re.compile(r"^(location_id|domain) (\d{1,10})$", re.MULTILINE)
_PARTITION = 0xF << 28
"""Bits of the partition in the location that pyrsmi returns."""
_POWERS = ("power1_input", "power1_average")


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
        """Return the state of every device; empty if the driver does not answer."""
        try:
            if not self._ready:
                self._smi.smi_initialize()
                self._ready = True
            count = int(self._smi.smi_get_device_count())
        except self._errors as error:
            log.debug("AMD SMI does not answer: %s", error)
            return ()
        return tuple(self._state(n) for n in range(max(count, 0)))

    def close(self) -> None:
        """Let the library go."""
        if self._ready:
            self._ready = False
            self._smi.smi_shutdown()

    def _state(self, number: int) -> DeviceState:
        smi = self._smi
        place = int(smi.smi_get_device_pci_id(number))
        folder = self._folder(place)
        busy = _known(smi.smi_get_device_utilization(number))
        used = _known(smi.smi_get_device_memory_used(number))
        core, core_max = _levels(_text(folder / "pp_dpm_sclk"))
        return DeviceState(
            gpu=f"amd-{number}",
            core_hz=core,
            core_max_hz=core_max,
            memory_hz=_levels(_text(folder / "pp_dpm_mclk"))[0],
            power_w=self._power_w(number, folder),
            power_limit_w=_number(_sensor(folder, "power1_cap"), 1e-6),
            temperature_c=_number(_sensor(folder, "temp1_input"), 1e-3),
            busy_ratio=None if busy is None else busy / 100.0,
            memory_used_bytes=None if used is None else int(used),
            processes=None if place < 0 else self._processes(place & ~_PARTITION),
        )

    def _power_w(self, number: int, folder: Path) -> float | None:
        """Return the draw, watts: pyrsmi's word, else the driver's own, newest kind first."""
        said = _known(self._smi.smi_get_device_average_power(number))
        if said is not None and said <= _MAX_WATTS:
            return said
        read = (_number(_sensor(folder, name), 1e-6) for name in _POWERS)
        return next((watts for watts in read if watts is not None), None)

    def _folder(self, place: int) -> Path:
        """Return the device's folder, by its location on the bus."""
        if place < 0:
            return self._system / "nowhere"
        bus, device = (place >> 8) & 0xFF, (place >> 3) & 0x1F
        name = f"{(place >> 32) & 0xFFFF:04x}:{bus:02x}:{device:02x}.{place & 7:x}"
        return self._system / "bus" / "pci" / "devices" / name

    def _processes(self, place: int) -> tuple[int, ...] | None:
        """Return who has memory on a device, as the machine numbers them; None if unknown."""
        kfd = self._system / "class/kfd/kfd"
        try:
            nodes = sorted((kfd / "topology/nodes").iterdir())
            known = (_text(node / "gpu_id").strip() for node in nodes if _place(node) == place)
            gpu_id = next((each for each in known if each.isdecimal()), None)
            names = [each.name for each in (kfd / "proc").iterdir() if each.name.isdecimal()]
        except OSError:
            return None
        if gpu_id is None:
            return None
        held = {name: kfd / "proc" / name / f"vram_{gpu_id}" for name in names[:_MAX_PROCESSES]}
        return tuple(sorted(int(name) for name, path in held.items() if _number(_text(path), 1.0)))


def _place(node: Path) -> int:
    """Return where a node of the topology is on the bus, as pyrsmi writes it; -1 if unknown."""
    said = dict(_PROPERTY.findall(_text(node / "properties")))
    if "location_id" not in said or "domain" not in said:
        return -1
    return (int(said["domain"]) << 32) | int(said["location_id"])


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

"""The devices of this machine: which library shows them, and a fake."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass

from retuned.adapters.gpu_nvml import NvmlDevices
from retuned.adapters.gpu_rsmi import RsmiDevices
from retuned.ports import Devices, DeviceState

log = logging.getLogger(__name__)


def find_devices() -> Devices | None:
    """Return who can say how devices stand; None where no library shows any.

    The packages are extras: ``retuned[nvidia]`` and ``retuned[amd]``.
    """
    for name, make in (("pynvml", NvmlDevices), ("pyrsmi.rocml", RsmiDevices)):
        try:
            found: Devices = make(importlib.import_module(name))
        except (ImportError, OSError) as error:
            log.debug("%s: %s", name, error)
            continue
        if found.read():
            return found
        found.close()
    return None


@dataclass(slots=True)
class FakeDevices:
    """The same port over states that a test sets."""

    states: Sequence[DeviceState] = ()
    """What is read."""
    closed: bool = False
    """Whether it was let go."""

    def read(self) -> Sequence[DeviceState]:
        """Return what was set."""
        return self.states

    def close(self) -> None:
        """Remember it."""
        self.closed = True

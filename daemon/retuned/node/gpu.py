"""The devices of this machine: which library shows them, and a fake."""

from __future__ import annotations

import ctypes
import importlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass

from retuned.node.gpu_nvml import NvmlDevices
from retuned.node.gpu_rsmi import RsmiDevices
from retuned.ports import Devices, DeviceState

log = logging.getLogger(__name__)


def find_devices() -> Devices | None:
    """Return who can say how devices stand; None where no library shows any.

    The packages are extras: ``retuned[nvidia]`` and ``retuned[amd]``.
    """
    for look in (_nvidia, _amd):
        try:
            found = look()
        except (ImportError, OSError) as error:
            log.debug("%s: %s", look.__name__, error)
            continue
        if found.read():
            return found
        found.close()
    return None


def _nvidia() -> Devices:
    # the package takes 17 MiB when it is loaded, which a sidecar without a driver has no use for
    ctypes.CDLL("libnvidia-ml.so.1")
    return NvmlDevices(importlib.import_module("pynvml"))


def _amd() -> Devices:
    return RsmiDevices(importlib.import_module("pyrsmi.rocml"))


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

"""The devices of this machine: which library shows them, and a fake."""

from __future__ import annotations

import ctypes
import importlib
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass

from retuned.node.gpu_nvml import NvmlDevices
from retuned.node.gpu_rsmi import RsmiDevices
from retuned.ports import Devices, DeviceState

log = logging.getLogger(__name__)


def find_devices() -> Devices | None:
    """Return the reader of device states; None if no library finds a device.

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


FREE_BYTES = 1 << 30
"""Most device memory in use on a GPU that counts as free: its driver takes up to half of it."""


def free_device(devices: Devices | None, model: str) -> str | None:
    """Return a GPU of a model on which no process computes; None without one.

    A GPU that this process was not given (``CUDA_VISIBLE_DEVICES``) is not taken.

    Examples
    --------
    >>> states = [DeviceState(gpu="nvidia-1", uuid="GPU-b", model="X", processes=(),
    ...     memory_used_bytes=0)]
    >>> free_device(FakeDevices(states), "X"), free_device(FakeDevices(states), "Y")
    ('GPU-b', None)
    """
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    mine = None if given is None else {each.strip() for each in given.split(",")}
    for each in devices.read() if devices is not None else ():
        number = each.gpu.rpartition("-")[2]
        is_mine = mine is None or bool({each.uuid, number} & mine)
        used = each.memory_used_bytes
        is_idle = each.processes == () and used is not None and used < FREE_BYTES
        if is_mine and is_idle and each.uuid and each.model == model:
            return each.uuid
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

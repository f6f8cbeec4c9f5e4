"""GPU drivers of both vendors behind one interface: load an object, find a kernel, launch, unload.

`libcuda` and `libamdhip64` are called directly, by their documented C interfaces, so that launching
compiled objects needs neither a compiler nor a header. Both use the same numbers for the same
errors. A fault of a kernel breaks a context permanently: its error is *sticky*, and every later
call returns it. A driver object that has received one raises it immediately and launches nothing
more.
"""

from __future__ import annotations

import ctypes
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from retuned.runtime.schema import Refused

Handle = ctypes.c_void_p

_SHARED_WITHOUT_ASKING = 48 << 10
"""Bytes of dynamic shared memory above which NVIDIA's driver needs a function attribute."""
_NO_CONTEXT = 201
_STICKY = frozenset({214, 700, 702, 709, 710, 713, 714, 715, 716, 717, 718, 719})
"""Errors after which a context never works again.

ECC, illegal address, time-out, assertion, trap, misaligned address and similar errors.
"""
_REASONS = {
    1: "out-of-resources",  # an invalid value: of a launch, its geometry
    2: "out-of-memory",
    100: "gpu-missing",
    101: "gpu-missing",
    200: "load-failed",
    209: "wrong-arch",
    218: "load-failed",
    301: "load-failed",
    500: "entry-missing",
    701: "out-of-resources",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Interface:
    libraries: tuple[str, ...]
    prefix: str
    unload: str
    launch: str
    attribute: str
    error_by_pointer: bool
    """Whether the name of an error is written to a pointer; else it is returned."""
    shared_attribute: int
    contexts: bool
    """Whether a thread must set a context; else the driver finds one."""


_INTERFACES = {
    "nvidia": _Interface(
        libraries=("libcuda.so.1", "libcuda.so"),
        prefix="cu",
        unload="cuModuleUnload",
        launch="cuLaunchKernel",
        attribute="cuFuncSetAttribute",
        error_by_pointer=True,
        shared_attribute=8,
        contexts=True,
    ),
    "amd": _Interface(
        libraries=("libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5", "libamdhip64.so"),
        prefix="hip",
        unload="hipModuleUnload",
        launch="hipModuleLaunchKernel",
        attribute="hipFuncSetAttribute",
        error_by_pointer=False,
        shared_attribute=8,
        contexts=False,
    ),
}


class DriverFailed(Refused):
    """The driver returned an error.

    Parameters
    ----------
    code
        Number of the error, the same for both vendors.
    """

    def __init__(self, code: int, *, call: str, name: str) -> None:
        self.code = code
        self.sticky = code in _STICKY
        reason = "device-lost" if self.sticky else _REASONS.get(code, "driver-failed")
        after = "; the process' context is broken, start a new one" if self.sticky else ""
        super().__init__(reason, detail=f"{call} returned {code} ({name}){after}")


class GpuDriver:
    """One vendor's driver, one device.

    Parameters
    ----------
    vendor
        ``nvidia`` or ``amd``.
    device
        Number of the device among the visible ones.
    library
        Path of the driver; None uses the vendor's, preferably the one that this process has loaded.

    Raises
    ------
    Refused
        ``driver-missing``, or as `DriverFailed` if the device fails.
    """

    def __init__(self, vendor: str, *, device: int = 0, library: str | None = None) -> None:
        self._names = _INTERFACES[vendor]
        self.vendor = vendor
        self.device = device
        self._library = _load(self._names, library)
        self._broken: DriverFailed | None = None
        self._context = Handle()
        launch = self._symbol(self._names.launch)
        launch.argtypes = [Handle, *[ctypes.c_uint] * 7, Handle, Handle, Handle]
        launch.restype = ctypes.c_int
        self._launch = launch
        self._call(f"{self._names.prefix}Init", 0)
        if self._names.contexts:
            number = ctypes.c_int()
            self._call("cuDeviceGet", ctypes.byref(number), device)
            # The context that PyTorch uses too; it lives as long as the process.
            self._call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), number)
        self.enter()

    def enter(self) -> None:
        """Make the device current in this thread.

        Raises
        ------
        DriverFailed
            If the driver refuses.
        """
        if self._names.contexts:
            self._call("cuCtxSetCurrent", self._context)
        else:
            self._call("hipSetDevice", self.device)

    def load(self, image: bytes) -> Handle:
        """Load an object.

        Raises
        ------
        DriverFailed
            ``load-failed``, ``wrong-arch`` or ``out-of-memory``.
        """
        self.enter()
        module = Handle()
        call = f"{self._names.prefix}ModuleLoadData"
        self._call(call, ctypes.byref(module), ctypes.c_char_p(image))
        return module

    def kernel(self, module: Handle, name: str, *, shared_bytes: int = 0) -> Handle:
        """Find a kernel, and allow this much dynamic shared memory for it.

        Raises
        ------
        DriverFailed
            ``entry-missing``, or ``out-of-resources`` if the device has less memory.
        """
        found = Handle()
        call = f"{self._names.prefix}ModuleGetFunction"
        self._call(call, ctypes.byref(found), module, name.encode())
        if shared_bytes > _SHARED_WITHOUT_ASKING:
            names = self._names
            self._call(names.attribute, found, names.shared_attribute, shared_bytes)
        return found

    def launch(
        self,
        kernel: Handle,
        *,
        grid: Sequence[int],
        block: Sequence[int],
        shared_bytes: int,
        stream: int,
        arguments: Any,  # noqa: ANN401 - an array of pointers
    ) -> None:
        """Queue one launch on a stream; faults are reported later, at `wait` or another call.

        Raises
        ------
        DriverFailed
            ``out-of-resources``, or ``device-lost`` if an earlier launch broke the context.
        """
        if self._broken is not None:
            raise self._broken
        shape = (*grid, *block, shared_bytes)
        code = self._launch(kernel, *shape, stream, arguments, None)
        if code == _NO_CONTEXT:  # a thread that has not used the device yet
            self.enter()
            code = self._launch(kernel, *shape, stream, arguments, None)
        if code:
            raise self._failed(code, self._names.launch)

    def wait(self) -> None:
        """Wait until all launches have ended.

        Raises
        ------
        DriverFailed
            ``device-lost`` if a kernel faulted.
        """
        self.enter()
        whose = "cuCtxSynchronize" if self._names.contexts else "hipDeviceSynchronize"
        self._call(whose)

    def unload(self, module: Handle) -> None:
        """Free an object's memory; none of its launches may be running.

        Raises
        ------
        DriverFailed
            If the driver refuses; after a fault it always does.
        """
        self.enter()
        self._call(self._names.unload, module)

    def has(self, name: str) -> bool:
        """Whether the driver has a call of this name: older ones lack some."""
        return hasattr(self._library, name)

    def call(self, name: str, *args: Any) -> None:  # noqa: ANN401 - arguments of ctypes
        """Call any other function of the driver; handles and sizes as their ctypes types.

        Raises
        ------
        Refused
            ``driver-missing`` if the driver lacks the call, or as `DriverFailed`.
        """
        self._call(name, *args)

    def discard(self, name: str) -> None:
        """Call a function that returns and clears a pending error; the error is ignored."""
        self._symbol(name)()

    def text(self, name: str, *args: Any) -> str:  # noqa: ANN401 - as call
        """Call a function that returns text and no error; empty if it returns null."""
        function = self._symbol(name)
        function.restype = ctypes.c_char_p
        return (function(*args) or b"").decode("utf-8", "replace")

    def _call(self, name: str, *args: Any) -> None:  # noqa: ANN401 - arguments of ctypes
        if self._broken is not None:
            raise self._broken
        function = self._symbol(name)
        function.restype = ctypes.c_int
        code = function(*args)
        if code:
            raise self._failed(code, name)

    def _failed(self, code: int, call: str) -> DriverFailed:
        error = DriverFailed(code, call=call, name=self._name_of(code))
        if error.sticky:
            self._broken = error
        return error

    def _name_of(self, code: int) -> str:
        if self._names.error_by_pointer:
            text = ctypes.c_char_p()
            self._symbol("cuGetErrorName")(code, ctypes.byref(text))
            found = text.value
        else:
            name_of = self._symbol("hipGetErrorName")
            name_of.restype = ctypes.c_char_p
            found = name_of(code)
        return (found or b"unknown").decode("ascii", "replace")[:80]

    def _symbol(self, name: str) -> Any:  # noqa: ANN401 - a ctypes function
        try:
            return getattr(self._library, name)
        except AttributeError:
            detail = f"the driver has no '{name}': it is too old, or another library"
            raise Refused("driver-missing", detail=detail) from None


_DRIVERS: dict[tuple[str, int, str | None], GpuDriver] = {}
_LOCK = threading.Lock()


def driver_of(vendor: str, *, device: int = 0, library: str | None = None) -> GpuDriver:
    """Return the process' driver of a device.

    Only one, so that all users learn of a broken context.

    Raises
    ------
    Refused
        As `GpuDriver`.
    """
    key = (vendor, device, library)
    with _LOCK:
        found = _DRIVERS.get(key)
        if found is None:
            found = _DRIVERS[key] = GpuDriver(vendor, device=device, library=library)
        return found


def _load(names: _Interface, library: str | None) -> ctypes.CDLL:
    tried = [library] if library else [*_mapped(names), *names.libraries]
    for name in tried:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    detail = f"none of {', '.join(tried)} can be loaded; is the vendor's driver installed?"
    raise Refused("driver-missing", detail=detail)


def _mapped(names: _Interface) -> list[str]:
    """Return this process' own copy: PyTorch for ROCm has one, and two do not work together."""
    stem = re.escape(names.libraries[-1])
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as lines:
            found = re.findall(rf"^\S+ \S+ \S+ \S+ \S+ +(/\S*/{stem}[.\d]*)$", lines.read(), re.M)
    except OSError:
        return []
    return list(dict.fromkeys(found))

"""Calls of both vendors' drivers for graphs, behind one interface, without decisions."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from retuned.runtime.graphs.structures import (
    MAX_ARGUMENTS,
    KernelParams,
    Layout,
    Packed,
    check_layout,
    structure_of,
    unpack,
)
from retuned.runtime.graphs.vendors import NAMES, required_calls
from retuned.runtime.native.gpu_driver import DriverFailed, GpuDriver, Handle
from retuned.runtime.schema import Refused

KERNEL_NODE = 0
MAX_NODES = 100_000
MAX_NAME = 256
"""Characters kept of a kernel's name; the text is untrusted."""

MAX_KNOWN = 16_384
"""Kernels whose layout is cached; the oldest are dropped first."""

_INVALID_VALUE = 1
_LOSSY = 402
"""Error code: an edge has data that the used call cannot return."""
_ACTIVE = 1
_ATTRIBUTES = {2: "cooperative", 4: "cluster", 6: "programmatic"}
"""Launch attributes that a replacement kernel would have to share, by number at both vendors."""


@dataclass(frozen=True, slots=True)
class Captured:
    capture: int
    """Number of the capture, unique in this process."""
    last: tuple[int, ...]
    """Nodes that the next one will wait for."""


class GraphCalls:
    """Graphs of one device.

    Raises
    ------
    Refused
        ``driver-too-old`` if a call is missing.
    """

    def __init__(self, driver: GpuDriver) -> None:
        self.driver = driver
        self.vendor = driver.vendor
        self._names = NAMES[driver.vendor]
        self._known: dict[int, Layout] = {}
        missing = [name for name in required_calls(driver.vendor) if not driver.has(name)]
        if missing:
            raise Refused("driver-too-old", detail=f"the driver has no {', '.join(missing)}")

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make the device current in this thread; the previous one is restored at the end."""
        before: Any
        if self.vendor == "nvidia":
            before = Handle()
            self._call("cuCtxGetCurrent", ctypes.byref(before))
        else:
            before = ctypes.c_int()
            self._call("hipGetDevice", ctypes.byref(before))
        self.driver.enter()
        try:
            yield
        finally:
            back = "cuCtxSetCurrent" if self.vendor == "nvidia" else "hipSetDevice"
            self._call(back, before)

    # --- nodes of a graph -------------------------------------------------------------------------

    def nodes(self, graph: int) -> list[int]:
        """Return the handles of all nodes, in the driver's order.

        Raises
        ------
        Refused
            ``graph-too-large``, or as `DriverFailed`.
        """
        count = ctypes.c_size_t()
        name = f"{self._names.prefix}GraphGetNodes"
        self._call(name, Handle(graph), None, ctypes.byref(count))
        if count.value > MAX_NODES:
            raise Refused("graph-too-large", detail=f"{count.value} nodes, at most {MAX_NODES}")
        return self._handles(name, graph, count)

    def dependencies(self, node: int) -> list[int]:
        """Return the nodes that a node waits for.

        Raises
        ------
        Refused
            ``programmatic-edge`` if it may start before they end.
        """
        return self._neighbours(f"{self._names.prefix}GraphNodeGetDependencies", node)

    def check_edges(self, node: int) -> None:
        """Refuse a node that overlaps with its neighbours by programmatic dependencies.

        Raises
        ------
        Refused
            ``programmatic-edge``.
        """
        self.dependencies(node)
        after = f"{self._names.prefix}GraphNodeGetDependentNodes"
        if self.driver.has(after):
            self._neighbours(after, node)

    def is_kernel(self, node: int) -> bool:
        kind = ctypes.c_int()
        self._call(f"{self._names.prefix}GraphNodeGetType", Handle(node), ctypes.byref(kind))
        return kind.value == KERNEL_NODE

    def raw_params(self, node: int) -> Any:  # noqa: ANN401 - a ctypes structure
        """Return the driver's parameters of a kernel node.

        The driver owns the memory of its pointers.

        Raises
        ------
        DriverFailed
            If the node is not a kernel node.
        """
        found = structure_of(self.vendor)()
        self._call(self._names.params, Handle(node), ctypes.byref(found))
        return found

    def layout_at(self, node: int) -> Layout:
        found = self.raw_params(node)
        return self.layout(found.func or 0, found.kern or 0 if self.vendor == "nvidia" else 0)

    def params(self, node: int, layout: Layout) -> KernelParams:
        """Return a kernel node's launch with copies of its arguments.

        Raises
        ------
        Refused
            ``layout-differs``, or as `DriverFailed`.
        """
        return unpack(self.raw_params(node), layout, vendor=self.vendor)

    def attribute_of(self, node: int) -> str:
        """Return the launch attribute that a replacement kernel would have to share.

        Empty if none.
        """
        call = f"{self._names.prefix}GraphKernelNodeGetAttribute"
        if not self.driver.has(call):
            return ""
        for number, word in _ATTRIBUTES.items():
            value = (ctypes.c_uint * 16)()
            try:
                self._call(call, Handle(node), number, ctypes.byref(value))
            except DriverFailed as error:
                if error.sticky:
                    raise
                continue  # a device or a driver without this attribute
            several = tuple(value[:3]) not in ((0, 0, 0), (1, 1, 1))
            if several if word == "cluster" else value[0]:
                return word
        return ""

    # --- kernels ----------------------------------------------------------------------------------

    def learn(self, function: int, layout: Sequence[tuple[int, int]]) -> None:
        """Store the layout of a kernel's arguments, where the driver cannot return it.

        Raises
        ------
        Refused
            ``layout-unknown`` if the layout is invalid.
        """
        self._known.pop(function, None)
        self._known[function] = check_layout(layout)
        while len(self._known) > MAX_KNOWN:
            del self._known[next(iter(self._known))]

    def forget(self, function: int) -> None:
        """Forget a kernel that is unloaded: its handle may be reused."""
        self._known.pop(function, None)

    def layout(self, function: int, kernel: int = 0) -> Layout:
        """Return the layout of a kernel's arguments.

        Raises
        ------
        Refused
            ``layout-unknown`` if the driver does not return it and it was not stored.
        """
        known = self._known.get(function or kernel)
        if known is not None:
            return known
        call = self._names.layout[0 if function else 1]
        if not call or not self.driver.has(call):
            raise Refused("layout-unknown", detail="this driver has no layouts of arguments")
        found: list[tuple[int, int]] = []
        offset, size = ctypes.c_size_t(), ctypes.c_size_t()
        for place in range(MAX_ARGUMENTS):
            try:
                where = (ctypes.c_size_t(place), ctypes.byref(offset), ctypes.byref(size))
                self._call(call, Handle(function or kernel), *where)
            except DriverFailed as error:
                if error.code != _INVALID_VALUE:
                    raise
                break  # all arguments are read
            found.append((offset.value, size.value))
        return check_layout(found)

    def name(self, function: int, kernel: int = 0) -> str:
        if self.vendor == "amd":
            found = self.driver.text("hipKernelNameRef", Handle(function))
            return found[:MAX_NAME]
        call = "cuFuncGetName" if function else "cuKernelGetName"
        text = ctypes.c_char_p()
        if self.driver.has(call):
            try:
                self._call(call, ctypes.byref(text), Handle(function or kernel))
            except DriverFailed as error:
                if error.sticky:
                    raise
        return (text.value or b"").decode("utf-8", "replace")[:MAX_NAME]

    # --- changes ----------------------------------------------------------------------------------

    def set_exec(self, instance: int, node: int, packed: Packed) -> None:
        """Change a node of an instantiated graph, for later launches of it, not for running ones.

        Raises
        ------
        DriverFailed
            If the driver refuses; the node is unchanged.
        """
        found = ctypes.byref(packed.structure)
        self._call(self._names.set_exec, Handle(instance), Handle(node), found)

    def set_node(self, node: int, packed: Packed) -> None:
        """Change a node of a graph, for later instantiations of it.

        Raises
        ------
        DriverFailed
            If the driver refuses.
        """
        self._call(self._names.set_params, Handle(node), ctypes.byref(packed.structure))

    # --- captures ---------------------------------------------------------------------------------

    def capturing(self, stream: int) -> Captured | None:
        """Return the state of the capture of a stream; None if there is none.

        Raises
        ------
        Refused
            ``programmatic-edge``.
        """
        status, number = ctypes.c_int(), ctypes.c_uint64()
        graph, last, count = Handle(), Handle(), ctypes.c_size_t()
        asked = (status, number, graph, last, count)
        try:
            self._call(self._names.capture, Handle(stream), *map(ctypes.byref, asked))
        except DriverFailed as error:
            raise _edge(error) from error
        if status.value != _ACTIVE:
            return None
        found = (ctypes.c_void_p * count.value).from_address(last.value) if last.value else ()
        return Captured(number.value, tuple(node for node in found if node))

    def _neighbours(self, call: str, node: int) -> list[int]:
        count = ctypes.c_size_t()
        try:
            self._call(call, Handle(node), None, ctypes.byref(count))
            return self._handles(call, node, count)
        except DriverFailed as error:
            raise _edge(error) from error

    def _handles(self, call: str, of: int, count: ctypes.c_size_t) -> list[int]:
        if not count.value:
            return []
        found = (ctypes.c_void_p * count.value)()
        self._call(call, Handle(of), found, ctypes.byref(count))
        return [node for node in found[: count.value] if node]

    def _call(self, name: str, *args: Any) -> None:  # noqa: ANN401 - arguments of ctypes
        try:
            self.driver.call(name, *args)
        except DriverFailed as error:
            if self.vendor == "amd" and not error.sticky and self.driver.has("hipGetLastError"):
                # HIP keeps the last error of a thread, and the server's own checks would find ours
                self.driver.discard("hipGetLastError")
            raise


def _edge(error: DriverFailed) -> Refused:
    if error.code != _LOSSY:
        return error
    detail = "its launch may overlap with its neighbours' by a programmatic dependency"
    return Refused("programmatic-edge", detail=detail)

"""A device that is played in this processor's memory, and a PyTorch whose graphs it captures."""

from __future__ import annotations

import ctypes
import subprocess
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from retuned.runtime.graphs.calls import GraphCalls
from retuned.runtime.native.gpu_driver import GpuDriver

HERE = Path(__file__).resolve().parent
KERNELS = b"""double 8,8,4 double
triple 8,8,4 triple
wide 8,8,8 triple
broken 8,8,4 broken
"""
SIZES = {"double": (8, 8, 4), "triple": (8, 8, 4), "wide": (8, 8, 8), "broken": (8, 8, 4)}
STREAM = 0x5000
CALLS = {
    "nvidia": ("cuStreamBeginCapture_v2", "cuStreamEndCapture", "cuGraphInstantiateWithFlags",
               "cuGraphLaunch", "cuGraphDestroy", "cuGraphExecDestroy"),
    "amd": ("hipStreamBeginCapture", "hipStreamEndCapture", "hipGraphInstantiateWithFlags",
            "hipGraphLaunch", "hipGraphDestroy", "hipGraphExecDestroy"),
}  # fmt: skip


def build_library(folder: Path) -> Path:
    """Compile the played driver."""
    path = folder / "libplayed.so"
    words = ["g++", "-std=c++17", "-shared", "-fPIC", "-w", "-O1", "-o", str(path)]
    done = subprocess.run(
        [*words, str(HERE / "fake_graphs.cpp")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[:3000]
    return path


class Counts:
    """What the played driver has counted."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    def __getattr__(self, name: str) -> int:
        names = ("graphs", "nodes", "kernels", "sets", "raced", "last_error")
        return int(self._library.fake_count(names.index(name)))


class Played:
    """One played device of a vendor."""

    def __init__(self, vendor: str, path: Path) -> None:
        self.vendor = vendor
        self.library = ctypes.CDLL(str(path))
        self.library.fake_heal()
        self.library.fake_pack(0)
        self.counts = Counts(self.library)
        self.driver = GpuDriver(vendor, library=str(path))
        self.calls = GraphCalls(self.driver)
        self.begin, self.end, self.make, self.go, self.drop, self.drop_exec = CALLS[vendor]
        self.module = self.driver.load(KERNELS)
        self.kernels = {name: self.driver.kernel(self.module, name) for name in SIZES}
        if vendor == "amd":
            for name, sizes in SIZES.items():
                self.calls.learn(self.handle(name), natural(sizes))

    def handle(self, name: str) -> int:
        """Handle of a kernel."""
        return int(self.kernels[name].value or 0)

    def launch(self, name: str, x: Any, y: Any, *, grid: int = 4, block: int = 64) -> None:
        """Launch a kernel on the stream: y = by * x."""
        values = (ctypes.c_uint64(x.ctypes.data), ctypes.c_uint64(y.ctypes.data),
                  ctypes.c_int64(len(x)))  # fmt: skip
        table = (ctypes.c_void_p * 3)(*map(ctypes.addressof, values))
        self.driver.launch(
            self.kernels[name],
            grid=(grid, 1, 1),
            block=(block, 1, 1),
            shared_bytes=0,
            stream=STREAM,
            arguments=table,
        )

    def capture(self, work: Callable[[], None]) -> int:
        """Capture work, and return the graph."""
        self.driver.call(self.begin, ctypes.c_void_p(STREAM), 0)
        work()
        graph = ctypes.c_void_p()
        self.driver.call(self.end, ctypes.c_void_p(STREAM), ctypes.byref(graph))
        return int(graph.value or 0)

    def instantiate(self, graph: int) -> int:
        """Return an instance."""
        made = ctypes.c_void_p()
        flags = ctypes.c_uint64(0)
        self.driver.call(self.make, ctypes.byref(made), ctypes.c_void_p(graph), flags)
        return int(made.value or 0)

    def replay(self, instance: int) -> None:
        """Launch an instance."""
        self.driver.call(self.go, ctypes.c_void_p(instance), ctypes.c_void_p(STREAM))

    def capturing(self) -> tuple[int, int] | None:
        """Return device and stream while the stream is captured."""
        return (0, STREAM) if self.calls.capturing(STREAM) is not None else None


def natural(sizes: tuple[int, ...]) -> list[tuple[int, int]]:
    """Lay out arguments, each at a multiple of its size."""
    found, end = [], 0
    for size in sizes:
        start = -(-end // size) * size
        found.append((start, size))
        end = start + size
    return found


def floats(count: int, *, fill: float | None = None) -> Any:
    """Numbers at a multiple of 64 bytes, as devices give memory."""
    raw = np.zeros(4 * count + 64, np.uint8)
    start = -raw.ctypes.data % 64
    found = raw[start : start + 4 * count].view(np.float32)
    found[:] = np.arange(count) if fill is None else fill
    return found


class PlayedTensor:
    """What the runtime asks of a tensor, over numpy."""

    is_cuda = True

    def __init__(self, array: Any) -> None:
        self.array = array
        self.shape = tuple(array.shape)
        self.dtype = "torch.float32"
        self.device = types.SimpleNamespace(type="cuda", index=0)

    def data_ptr(self) -> int:
        return int(self.array.ctypes.data)

    def get_device(self) -> int:
        return 0

    def is_contiguous(self) -> bool:
        return True


def played_torch(device: Played, *, hooks: bool = False) -> Any:
    """Return a PyTorch with graphs; with `hooks` instantiates in Python, as newer ones do."""

    class Base:
        """Plays what PyTorch has in C++."""

        def __init__(self, keep_graph: bool = False) -> None:
            self.keep, self.graph, self.exec, self.lock = keep_graph, 0, 0, threading.Lock()

        def capture_begin(self, *_: Any, **__: Any) -> None:
            device.driver.call(device.begin, ctypes.c_void_p(STREAM), 0)

        def capture_end(self) -> None:
            graph = ctypes.c_void_p()
            device.driver.call(device.end, ctypes.c_void_p(STREAM), ctypes.byref(graph))
            self.graph = int(graph.value or 0)
            if not self.keep:
                self.instantiate()
                self._drop()

        def instantiate(self) -> None:
            if self.exec:
                device.driver.call(device.drop_exec, ctypes.c_void_p(self.exec))
            self.exec = device.instantiate(self.graph)

        def replay(self) -> None:
            if not self.exec:
                self.instantiate()
            device.replay(self.exec)

        def reset(self) -> None:
            if self.exec:
                device.driver.call(device.drop_exec, ctypes.c_void_p(self.exec))
            self._drop()
            self.exec = 0

        def raw_cuda_graph(self) -> int:
            if not self.keep or not self.graph:
                raise RuntimeError("You cannot access the raw cudaGraph_t instance")
            return self.graph

        def raw_cuda_graph_exec(self) -> int:
            if not self.exec:
                raise RuntimeError("You cannot access the raw cudaGraphExec_t instance")
            return self.exec

        def _drop(self) -> None:
            if self.graph:
                device.driver.call(device.drop, ctypes.c_void_p(self.graph))
            self.graph = 0

        def __del__(self) -> None:
            if getattr(self, "graph", 0):
                self._drop()

    class CUDAGraph(Base):
        def __new__(cls, keep_graph: bool = False) -> Any:
            made: Any = super().__new__(cls)
            if hooks:
                made._keep_graph = keep_graph
            return made

        def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
            super().capture_begin(pool, mode=capture_error_mode)

        def capture_end(self) -> None:
            super().capture_end()

        def instantiate(self) -> None:
            super().instantiate()

        def replay(self) -> None:
            super().replay()

        def reset(self) -> None:
            super().reset()

    cuda = types.SimpleNamespace(CUDAGraph=CUDAGraph, current_device=lambda: 0)
    return types.SimpleNamespace(cuda=cuda)

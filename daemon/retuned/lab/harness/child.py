"""Child process that runs candidates: it launches kernels, reads a clock and holds no secret.

Started by path with ``python -I -S``: standard library only, so that it starts in a few hundredths
of a second. It holds no expected output, no seed and no verdict. Commands are JSON lines on
descriptor 0, responses are JSON lines on descriptor 1; tensors are in shared memory. The first line
holds the settings.
"""

from __future__ import annotations

import ctypes
import gc
import json
import mmap
import os
import sys
from time import perf_counter_ns
from typing import Any

_PROT_NONE, _PROT_RW = 0, 3


class Lines:
    """JSON lines over two descriptors, without buffers that outlive a command."""

    def __init__(self) -> None:
        self._pending = b""

    def read(self) -> dict[str, Any] | None:
        """Return the next line, or None when the parent has closed the pipe."""
        while b"\n" not in self._pending:
            chunk = os.read(0, 1 << 16)
            if not chunk:
                return None
            self._pending += chunk
        line, _, self._pending = self._pending.partition(b"\n")
        command: dict[str, Any] = json.loads(line)
        return command

    def write(self, answer: dict[str, Any]) -> None:
        data = json.dumps(answer, separators=(",", ":")).encode() + b"\n"
        while data:
            data = data[os.write(1, data) :]


class _Runner:
    """Loaded kernels over the arena."""

    def __init__(self, fd: int, size: int) -> None:
        from retuned.runtime.native.cpu import CpuKernel

        self._map = mmap.mmap(fd, size)
        self._view = memoryview(self._map)
        self._anchor = ctypes.c_byte.from_buffer(self._map)
        self.base = ctypes.addressof(self._anchor)
        self._libc = ctypes.CDLL(None)
        self._kernels: list[Any] = []

        class GuardedKernel(CpuKernel):
            """Scratch lies in the arena, between red zones."""

            __slots__ = ("scratch_at",)
            scratch_at: list[int]

            def _scratch_of(self, part: int) -> int | None:
                return self.scratch_at[part] if self.scratch_at else None

        self._type = GuardedKernel

    def load(self, library: dict[str, Any]) -> None:
        kernel = self._type(
            library["path"],
            library["entry"],
            tensors=library["tensors"],
            axes=library["axes"],
            parts=library["parts"],
        )
        kernel.scratch_at = []
        self._kernels.append(kernel)

    def run(self, command: dict[str, Any]) -> dict[str, Any]:
        """Launch once; pages in ``fences`` are unreadable during the launch."""
        kernel = self._kernels[command["kernel"]]
        kernel.scratch_at = [self.base + offset for offset in command["scratch"]]
        pointers = [self.base + offset for offset in command["tensors"]]
        for low, size in command["fences"]:
            self._protect(low, size, _PROT_NONE)
        start = perf_counter_ns()
        kernel.launch(pointers, command["lengths"])
        elapsed = perf_counter_ns() - start
        for low, size in command["fences"]:
            self._protect(low, size, _PROT_RW)
        return {"ns": elapsed}

    def time(self, command: dict[str, Any]) -> dict[str, Any]:
        """Time calls in the given order; before each, inputs change and outputs are poisoned.

        Outputs that are updated in place are restored to their inputs instead.
        """
        lengths, view, base = command["lengths"], self._view, self.base
        memset, outputs = ctypes.memset, command["outputs"]
        updated, restore = command["updated"], command["restore"]
        pointers = [
            [[base + offset for offset in tensors] for tensors in sets] for sets in command["sets"]
        ]
        scratch = [[base + offset for offset, _ in workspaces] for workspaces in command["scratch"]]
        times = []
        begin = perf_counter_ns()
        for which, first, repeat, poison, swaps in command["calls"]:
            for left, right, size in swaps:
                kept = bytes(view[left : left + size])
                view[left : left + size] = view[right : right + size]
                view[right : right + size] = kept
            sets = pointers[which]
            count = len(sets)
            for turn in range(min(repeat, count)):
                for offset, size in outputs[(first + turn) % count]:
                    memset(base + offset, poison, size)
                self._put_back(updated[(first + turn) % count])
            for offset, size in command["scratch"][which]:
                memset(base + offset, poison, size)
            kernel = self._kernels[which]
            kernel.scratch_at = scratch[which]
            launch = kernel.launch
            places = [(first + turn) % count for turn in range(repeat)]
            if restore != "before":
                times.append(self._restoring(launch, sets, updated, places, lengths, restore))
                continue
            turns = [sets[place] for place in places]
            start = perf_counter_ns()
            for tensors in turns:
                launch(tensors, lengths)
            times.append(perf_counter_ns() - start)
        return {"times": times, "elapsed": perf_counter_ns() - begin}

    def _put_back(self, pairs: list[list[int]]) -> None:
        for source, target, size in pairs:
            ctypes.memmove(self.base + target, self.base + source, size)

    def _restoring(
        self,
        launch: Any,  # noqa: ANN401 - a CpuKernel's
        sets: list[list[int]],
        updated: list[list[list[int]]],
        places: list[int],
        lengths: list[int],
        restore: str,
    ) -> int:
        """Restore and launch in turn, or only restore; return the total nanoseconds."""
        start = perf_counter_ns()
        for place in places:
            self._put_back(updated[place])
            if restore == "each":
                launch(sets[place], lengths)
        return perf_counter_ns() - start

    def _protect(self, low: int, size: int, rights: int) -> None:
        if self._libc.mprotect(ctypes.c_void_p(self.base + low), ctypes.c_size_t(size), rights):
            raise OSError("mprotect failed")


def main() -> None:
    lines = Lines()
    settings = lines.read()
    if settings is None:
        return
    sys.path.insert(0, settings["root"])
    from retuned.lab.harness import sandbox

    sandbox.enter(parent=settings["parent"], cores=settings["cores"])
    runner = _Runner(settings["fd"], settings["size"])
    for library in settings["libraries"]:
        runner.load(library)
    threads = sum(library["parts"] for library in settings["libraries"])
    walls = sandbox.confine(memory_bytes=settings["memory_bytes"], cpu_s=settings["cpu_s"])
    gc.collect()
    gc.disable()
    answer = {"ready": True, "threads": threads, "confined": walls.system_calls}
    lines.write({**answer, "walls": walls.as_dict()})
    while (command := lines.read()) is not None:
        try:
            answer = runner.time(command) if command["op"] == "time" else runner.run(command)
        except MemoryError:
            answer = {"memory": True}
        lines.write({**answer, "nonce": command["nonce"]})


if __name__ == "__main__":
    main()

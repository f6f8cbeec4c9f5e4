"""GPU child that runs Triton variants: a device mirror of the shared memory, launches, a clock.

It uses the protocol of ``child.py``: JSON lines, settings first. It holds no expected output, no
seed and no verdict. Tensors are views into one block of device memory that mirrors the memory
shared with the parent. ``push`` and ``pull`` copy between them, red zones included, so that all
checks of the parent work unchanged. Without a device the mirror is host memory, kernels are
interpreted, and the clock is the processor's. This is slow but runs the same code.

With ``serve`` it imports PyTorch and Triton once and forks a child per request; importing touches
no device. Devices have no page protection, so ``fences`` are ignored.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from typing import Any

_WARM = ("torch", "triton", "triton.language")
_PR_SET_PDEATHSIG = 1
_MEMORY = 3


class _Runner:
    """Loaded kernels over the mirror."""

    def __init__(self, settings: dict[str, Any]) -> None:
        import mmap

        import torch

        from retuned.lab.harness.device import open_device

        self._torch = torch
        self.device = open_device(settings["device"])
        size = settings["size"]
        self._map = mmap.mmap(settings["fd"], size)
        self._host = torch.frombuffer(self._map, dtype=torch.uint8)
        self._mirror = torch.zeros(size, dtype=torch.uint8, device=self.device.name)
        self._driver: str | None = settings.get("driver")
        self._kernels: list[Any] = []
        self._tensors: list[list[tuple[str, tuple[int, ...]]]] = []

    def load(self, library: dict[str, Any]) -> None:
        from retuned.lab.harness.mirror import LANGUAGE, MirroredKernel, MirroredObject

        entry, launch = library["entry"], library["launch"]
        if launch.get("language") == LANGUAGE:
            with open(library["path"], "rb") as stream:
                image = stream.read()
            self._kernels.append(MirroredObject(image, entry, launch, driver=self._driver))
            return
        with open(library["path"], encoding="utf-8") as file:
            text = file.read()
        self._kernels.append(MirroredKernel(text, entry, launch))

    def push(self, command: dict[str, Any]) -> dict[str, Any]:
        size = command["bytes"]
        self._mirror[:size].copy_(self._host[:size])
        self.device.wait()
        return {}

    def pull(self, command: dict[str, Any]) -> dict[str, Any]:
        size = command["bytes"]
        self._host[:size].copy_(self._mirror[:size])
        self.device.wait()
        return {}

    def prepare(self, command: dict[str, Any]) -> dict[str, Any]:
        kernel = self._kernels[command["kernel"]]
        kernel.prepare(command["lengths"], device=self._mirror.device)
        return {}

    def run(self, command: dict[str, Any]) -> dict[str, Any]:
        kernel, lengths = self._kernels[command["kernel"]], command["lengths"]
        tensors = kernel.views(self._mirror, command["tensors"], command["scratch"], lengths)
        kernel.launch(tensors, lengths)
        self.device.wait()
        return {"ns": 0}

    def time(self, command: dict[str, Any]) -> dict[str, Any]:
        """Time calls in the given order; before each, inputs change and outputs are poisoned.

        Outputs that are updated in place are restored to their inputs instead.
        """
        from time import perf_counter_ns

        mirror, lengths, device = self._mirror, command["lengths"], self.device
        scratch = command["scratch"]
        sides = [
            [kernel.views(mirror, starts, [at for at, _ in scratch[which]], lengths)
             for starts in command["sets"][which]]
            for which, kernel in enumerate(self._kernels)
        ]  # fmt: skip
        outputs = [[mirror[at : at + size] for at, size in spans] for spans in command["outputs"]]
        spaces = [[mirror[at : at + size] for at, size in spans] for spans in scratch]
        updated = [
            [(mirror[to : to + size], mirror[at : at + size]) for at, to, size in pairs]
            for pairs in command["updated"]
        ]
        times, late = [], 0
        begin = perf_counter_ns()
        for which, first, repeat, poison, swaps in command["calls"]:
            for left, right, size in swaps:
                _swap(mirror[left : left + size], mirror[right : right + size])
            sets, count = sides[which], len(sides[which])
            for turn in range(min(repeat, count)):
                for view in outputs[(first + turn) % count]:
                    view.fill_(poison)
                _put_back(updated[(first + turn) % count])
            for view in spaces[which]:
                view.fill_(poison)
            launch, places = (
                self._kernels[which].launch,
                [(first + t) % count for t in range(repeat)],
            )
            if command["restore"] == "before":
                turns: list[Any] = [sets[place] for place in places]
            else:
                launch = _restoring(launch if command["restore"] == "each" else None)
                turns = [(updated[place], sets[place]) for place in places]
            spent_ns, on_time = device.time(launch, turns, lengths)
            times.append(max(1, spent_ns))
            late += not on_time
        return {"times": times, "late": late, "elapsed": perf_counter_ns() - begin}

    def answer(self, command: dict[str, Any]) -> dict[str, Any]:
        """Execute one command; report an error if the kernel, not this program, is at fault."""
        try:
            answer: dict[str, Any] = getattr(self, command["op"])(command)
        except (MemoryError, self._torch.OutOfMemoryError):
            answer = {"memory": True}
        except Exception as error:  # a launch of untrusted code may raise anything
            answer = failure(error)
        return answer


def failure(error: Exception) -> dict[str, Any]:
    """Return the response for a failed compilation or launch; its text is untrusted."""
    from retuned.lab.harness.mirror import refusal
    from retuned.runtime.schema import Refused

    if isinstance(error, Refused):
        return refusal(error)
    return {"refused": "crashed", "detail": f"{type(error).__name__}: {error}"[-400:]}


def _put_back(pairs: Sequence[Sequence[Any]]) -> None:
    for target, source in pairs:
        target.copy_(source)


def _restoring(launch: Callable[..., None] | None) -> Callable[..., None]:
    """Return a function that restores and then launches, both timed."""

    def both(turn: Sequence[Any], lengths: Sequence[int]) -> None:
        pairs, tensors = turn
        _put_back(pairs)
        if launch is not None:
            launch(tensors, lengths)

    return both


def _swap(left: Any, right: Any) -> None:  # noqa: ANN401 - torch.Tensor
    kept = left.clone()
    left.copy_(right)
    right.copy_(kept)


def main() -> None:
    import gc
    import tempfile

    from retuned.lab.harness import sandbox
    from retuned.lab.harness.child import Lines
    from retuned.lab.harness.mirror import refusal
    from retuned.runtime.schema import Refused

    lines = Lines()
    settings = lines.read()
    if settings is None:
        return
    sandbox.enter(parent=settings["parent"], cores=settings["cores"])
    # Before the device's runtime starts threads: rights are dropped per thread.
    files = sandbox.deny_files(_within_reach(settings))
    # Compiled code is stored per candidate: a candidate cannot leave files for another.
    os.environ["TRITON_CACHE_DIR"] = settings["cache"]
    tempfile.tempdir = os.environ["TMPDIR"] = settings["temp"]
    runner = _Runner(settings)
    try:
        for library in settings["libraries"]:
            runner.load(library)
    except Refused as error:
        lines.write(refusal(error))
        return
    kept = sandbox.confine_device(
        memory_bytes=settings["memory_bytes"],
        cpu_s=settings["cpu_s"],
        on_device=not runner.device.is_host,
    )
    gc.collect()
    gc.disable()
    walls = sandbox.Walls(system_calls=kept, files=files).as_dict()
    ready = {"ready": True, "confined": kept, "walls": walls}
    lines.write({**ready, "device": runner.device.name})
    while (command := lines.read()) is not None:
        lines.write({**runner.answer(command), "nonce": command["nonce"]})


def _within_reach(settings: dict[str, Any]) -> Any:  # noqa: ANN401 - landlock.Allowed
    """Return the files that the child may use: packages, device, its own folders, loaded files."""
    from retuned.lab.harness import landlock

    own = [settings["cache"], settings["temp"]]
    for folder in own:
        os.makedirs(folder, exist_ok=True)  # a rule needs an existing path
    return landlock.for_device(
        imports=[settings["root"], sys.prefix, sys.base_prefix, *filter(os.path.isabs, sys.path)],
        read=sorted({os.path.dirname(library["path"]) for library in settings["libraries"]}),
        own=own,
    )


def serve(
    number: int,
    parent: int,
    *,
    warm: Sequence[str] = _WARM,
    program: Callable[[], None] = main,
) -> None:
    """Import the modules that every child needs, then fork one per request; end with the parent.

    `program` runs in each child, with the child's pipes and shared memory in place.
    """
    import ctypes
    import gc
    import importlib

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        return
    for name in warm:
        importlib.import_module(name)
    gc.freeze()
    with socket.socket(fileno=number) as requests:
        requests.send(b"ready")
        while True:
            message, descriptors, _, _ = socket.recv_fds(requests, 1, 3)
            if not message:
                return
            middle = os.fork()
            if middle == 0:
                # The parent adopts orphans of this process: it is the nearest subreaper.
                if os.fork() == 0:
                    _become(descriptors, requests, parent, program)
                os._exit(0)
            os.waitpid(middle, 0)
            for descriptor in descriptors:
                os.close(descriptor)


def _become(
    descriptors: list[int], requests: socket.socket, parent: int, program: Callable[[], None]
) -> None:
    """In the fork: install the pipes and the memory, wait for adoption, and run."""
    status = 1
    try:
        os.setsid()
        requests.send(str(os.getpid()).encode())
        # Above the places they go to, so that none is overwritten before it is moved.
        kept = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, 64) for descriptor in descriptors]
        for place, descriptor in zip((0, 1, _MEMORY), kept, strict=True):
            os.dup2(descriptor, place)
        os.closerange(_MEMORY + 1, 1024)
        while os.getppid() != parent:
            os.sched_yield()
        program()
        status = 0
    finally:
        os._exit(status)


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        sys.path[:0] = sys.argv[4:]
        serve(int(sys.argv[2]), int(sys.argv[3]))

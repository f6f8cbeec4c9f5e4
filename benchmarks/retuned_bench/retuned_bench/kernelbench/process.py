"""The parent's handle on a problem: a confined child that answers in time, or is killed."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import signal
import sys
import tempfile
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import retuned
from retuned.contract import DType
from retuned.errors import MissingDependency
from retuned.lab.harness import landlock
from retuned.lab.harness.processes import Child, ForkServer, is_ready
from retuned.lab.number_formats import NUMPY
from retuned.lab.subject import Array

_PROGRAM = Path(__file__).with_name("child.py")
_ROOTS = (
    str(Path(__file__).resolve().parents[2]),
    str(Path(retuned.__file__).resolve().parents[1]),
)
"""Where this distribution and `retuned` are imported from."""
_LONGEST_LINE = 1 << 18
_MOST_AXES, _MOST_LENGTH = 16, 2**40
_READABLE = (
    sys.base_prefix, sys.prefix, "/usr/lib", "/usr/lib64", "/lib", "/lib64", "/proc/cpuinfo",
    "/proc/meminfo", "/proc/self", "/sys/devices/system", "/etc/ld.so.cache",
)  # fmt: skip


class ProblemRefused(Exception):
    """A problem that is not measured: it fails, or does what no kernel can.

    Parameters
    ----------
    code
        Stable reason, kebab-case.
    detail
        One sentence; untrusted text, with its control characters replaced.
    """

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemLimits:
    """Bounds of a problem's child."""

    start_s: float = 60.0
    """To be ready; a loaded machine starts slowly."""
    call_s: float = 60.0
    """Wall time of one command."""
    compile_s: float = 300.0
    """Wall time of PyTorch's compiler."""
    cpu_s: int = 1800
    """Processor time of the child's whole life."""
    memory_bytes: int = 16 * 2**30
    """Memory beyond what it has when ready."""
    tensor_bytes: int = 2 * 2**30
    """Most bytes of all tensors of one call."""


class ProblemProcess:
    """One child with one problem.

    Parameters
    ----------
    text
        The problem's source; nothing is trusted of it.
    device
        ``cpu`` or ``cuda``.
    cores
        Cores the child may use; empty means all.
    compiles
        Whether it may start compilers: a weaker confinement, see the documentation.
    limits
        Bounds.

    Raises
    ------
    ProblemRefused
        If the text does not run, or is not a problem.
    MissingDependency
        If this machine cannot confine the child; nothing of the text was executed then.
    """

    def __init__(
        self,
        text: str,
        *,
        device: str = "cpu",
        cores: Sequence[int] = (),
        compiles: bool = False,
        limits: ProblemLimits | None = None,
    ) -> None:
        self._limits = limits or ProblemLimits()
        self.device = device
        self.compile_s = self._limits.compile_s
        self._temp = tempfile.mkdtemp(prefix="retuned-compile-") if compiles else ""
        self._close = weakref.finalize(self, _clean, None, self._temp)
        nothing = os.open(os.devnull, os.O_RDONLY)
        try:
            self._child: Child = _server(self._temp).start(nothing)[0]
        finally:
            os.close(nothing)
        self._close.detach()
        self._close = weakref.finalize(self, _clean, self._child, self._temp)
        os.set_blocking(self._child.stdin, False)
        self.threads = len(cores) or len(os.sched_getaffinity(0))
        settings = self._settings(device, cores, threads=self.threads, compiles=compiles)
        try:
            self._send(json.dumps(settings).encode() + b"\n", self._deadline(self._limits.start_s))
            ready, _ = self._receive(self._deadline(self._limits.start_s))
            _require_walls(ready)
            self.call("load", text=text)
        except BaseException:
            self.close()
            raise
        self.landlock = int(ready.get("landlock", 0))

    def call(
        self,
        op: str,
        *,
        arrays: Sequence[Array] = (),
        timeout_s: float | None = None,
        **words: int | str,
    ) -> tuple[Mapping[str, Any], list[Array]]:
        """Send one command; return its answer and arrays.

        Raises
        ------
        ProblemRefused
            If the problem fails, dies, or does not answer in time; it is dead then.
        """
        if self._child.stdin < 0:
            raise ProblemRefused("crashed", "its process has ended")
        deadline = self._deadline(self._limits.call_s if timeout_s is None else timeout_s)
        heads = [
            {"dtype": _name_of(array), "shape": list(array.shape), "bytes": array.nbytes}
            for array in arrays
        ]
        self._send(json.dumps({"op": op, "arrays": heads, **words}).encode() + b"\n", deadline)
        for array in arrays:
            if array.size:
                self._send(np.ascontiguousarray(array).view(np.uint8).data.cast("B"), deadline)
        return self._receive(deadline)

    def close(self) -> None:
        """Kill the child and all that it started."""
        self._close()

    def _deadline(self, seconds: float) -> float:
        return time.monotonic() + seconds

    def _settings(
        self, device: str, cores: Sequence[int], *, threads: int, compiles: bool
    ) -> dict[str, Any]:
        return {
            "parent": os.getpid(),
            "cores": list(cores),
            "threads": threads,
            "device": device,
            "compile": compiles,
            "files": self._files(device, compiles=compiles),
            "memory_bytes": self._limits.memory_bytes,
            "cpu_s": self._limits.cpu_s,
        }

    def _files(self, device: str, *, compiles: bool) -> dict[str, Sequence[str]]:
        """Return what stays within reach; see `landlock.Allowed`."""
        imports = [*_READABLE, *_ROOTS, *_paths()]
        if device == "cpu" and not compiles:
            return {"read": imports}
        own = [self._temp] if compiles else []
        return landlock.for_device(imports=imports, read=(), own=own)._asdict()

    def _receive(self, deadline: float) -> tuple[dict[str, Any], list[Array]]:
        found = bytearray()
        while not found.endswith(b"\n"):
            found += self._read(1, deadline)
            if len(found) > _LONGEST_LINE:
                self.close()
                raise ProblemRefused("bad-answer", "answers without end")
        try:
            answer: dict[str, Any] = json.loads(found)
            heads = [(DType(h["dtype"]), _shape(h["shape"])) for h in answer["arrays"]]
        except (ValueError, KeyError, TypeError, RecursionError):
            self.close()
            raise ProblemRefused("bad-answer", "writes into its own pipe") from None
        if "refused" in answer:
            raise ProblemRefused(_code(answer["refused"]), safe(answer.get("detail", "")))
        size = sum(math.prod(shape) * NUMPY[kind].itemsize for kind, shape in heads)
        if size > self._limits.tensor_bytes:  # said before a byte of them is read
            self.close()
            raise ProblemRefused("too-large", f"tensors of {float(size):.3g} bytes")
        return answer, [self._array(kind, shape, deadline) for kind, shape in heads]

    def _array(self, kind: DType, shape: Sequence[int], deadline: float) -> Array:
        size = math.prod(shape) * NUMPY[kind].itemsize
        data, got = bytearray(size), 0
        while got < size:
            chunk = self._read(min(size - got, 1 << 20), deadline)
            data[got : got + len(chunk)] = chunk
            got += len(chunk)
        return np.frombuffer(data, dtype=NUMPY[kind]).reshape(shape)

    def _read(self, count: int, deadline: float) -> bytes:
        left = deadline - time.monotonic()
        if left <= 0 or not is_ready(self._child.stdout, timeout_s=left):
            self.close()
            raise ProblemRefused("timed-out", "did not answer in time and was killed")
        chunk = os.read(self._child.stdout, count)
        if not chunk:
            raise self._death()
        return chunk

    def _send(self, data: bytes | memoryview, deadline: float) -> None:
        view = memoryview(data)
        while view:
            left = deadline - time.monotonic()
            if left <= 0 or not is_ready(self._child.stdin, timeout_s=left, write=True):
                self.close()
                raise ProblemRefused("timed-out", "took too long to read its inputs")
            try:
                view = view[os.write(self._child.stdin, view[: 1 << 16]) :]
            except BrokenPipeError:
                raise self._death() from None

    def _death(self) -> ProblemRefused:
        code = self._child.wait()
        self.close()
        if code == -signal.SIGXCPU:
            return ProblemRefused("timed-out", "used up its processor time")
        if code == -signal.SIGKILL:
            return ProblemRefused("out-of-memory", "was killed by the system, likely for memory")
        how = f"died of {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
        return ProblemRefused("crashed", f"its process {how}")


def _shape(said: Any) -> list[int]:  # noqa: ANN401 - whatever JSON holds
    """Read a shape of which no number is absurd.

    Raises
    ------
    ValueError
        If it is none.
    """
    good = isinstance(said, list) and len(said) <= _MOST_AXES
    if not good or not all(type(n) is int and 0 <= n <= _MOST_LENGTH for n in said):
        raise ValueError("no shape")
    return list(said)


def safe(text: object) -> str:
    """Replace what is not printable ASCII in an untrusted text, and cut it to 400 characters."""
    return re.sub(r"[^\x20-\x7e]", "?", str(text))[:400]


def _code(word: object) -> str:
    found = str(word)[:40]
    return found if re.fullmatch(r"[a-z][a-z-]*", found) else "bad-answer"


def _name_of(array: Array) -> str:
    return next(str(kind) for kind, dtype in NUMPY.items() if dtype == array.dtype)


def _require_walls(ready: Mapping[str, Any]) -> None:
    open_walls = [str(each) for each in ready.get("open", ["everything"])]
    if not ready.get("confined") or open_walls:
        missing = ", ".join(open_walls) or "its system calls"
        raise MissingDependency(
            f"problems are untrusted programs, and this machine cannot keep them from {missing}: "
            "seccomp (Linux on x86-64 or aarch64) is needed, and Landlock to compile; nothing was "
            "executed"
        )


def _paths() -> list[str]:
    return [path for path in sys.path if Path(path).is_absolute()]


def _server(temp: str) -> ForkServer:
    """Return what forks children: one for all, and one for each that compiles in a folder."""
    if not temp:
        return _common()
    variables = {
        "TMPDIR": temp,
        "TORCHINDUCTOR_CACHE_DIR": f"{temp}/cache",
        "TRITON_CACHE_DIR": f"{temp}/triton",
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "HOME": temp,
        "PATH": "/usr/local/bin:/usr/bin:/bin",
    }
    return ForkServer(_PROGRAM, paths=[*_ROOTS, *_paths()], environment=variables)


@cache
def _common() -> ForkServer:
    return ForkServer(_PROGRAM, paths=[*_ROOTS, *_paths()], environment={"CUDA_CACHE_DISABLE": "1"})


def _clean(child: Child | None, temp: str) -> None:
    if child is not None:
        child.close()
    if temp:
        shutil.rmtree(temp, ignore_errors=True)

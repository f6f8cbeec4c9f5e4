"""The parent's handle on one child: start, command with a deadline, name its death, kill."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import retuned
from retuned.errors import CandidateCrashed, CandidateError, CandidateTimedOut, HarnessError
from retuned.lab.harness.arena import Arena

_CHILD = Path(__file__).with_name("child.py")
_ROOT = Path(retuned.__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """One compiled variant to load."""

    path: Path
    """Shared object that passed the audit."""
    entry: str
    """Symbol."""
    tensors: int
    """Inputs plus outputs."""
    axes: int
    """Axes of the definition."""
    parts: int = 1
    """Shares of a launch, each on its own thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildLimits:
    """Bounds of one child."""

    start_s: float = 20.0
    """To be ready; a loaded machine starts slowly."""
    cpu_s: int = 120
    """Processor time of its whole life."""
    memory_bytes: int = 2**30
    """Address space beyond what it has when ready."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Elapsed:
    """How long a command took, on clocks that a candidate cannot touch."""

    wall_ns: int
    """On the parent's clock: no claim may be longer."""
    busy_ns: int
    """That the child's thread ran, by the kernel's account: no claim may be much shorter. Unlike
    the wall it does not grow when others want the core. The wall where there is no account."""


class Worker:
    """A fresh process with variants loaded; one command at a time.

    Parameters
    ----------
    libraries
        Variants, addressed by position.
    arena
        Shared memory; must outlive the worker.
    cores
        Cores the child may use; empty means no restriction.
    limits
        Bounds.

    Raises
    ------
    CandidateError
        If the child dies or hangs while loading: the candidate's doing, since the harness itself is
        tested.
    """

    def __init__(
        self,
        libraries: Sequence[Library],
        arena: Arena,
        *,
        cores: Sequence[int] = (),
        limits: ChildLimits | None = None,
    ) -> None:
        limits = limits or ChildLimits()
        self._pending = b""
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-B", str(_CHILD)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env={"LC_ALL": "C.UTF-8", "OMP_NUM_THREADS": "1"},
            pass_fds=(arena.fd,),
            start_new_session=True,
            bufsize=0,
        )
        settings = {
            "root": str(_ROOT),
            "parent": os.getpid(),
            "cores": list(cores),
            "fd": arena.fd,
            "size": arena.size_bytes,
            "memory_bytes": limits.memory_bytes,
            "cpu_s": limits.cpu_s,
            "libraries": [_as_json(library) for library in libraries],
        }
        try:
            self._send(settings)
            self.ready = self._receive(limits.start_s)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def command(
        self, body: Mapping[str, Any], *, timeout_s: float
    ) -> tuple[dict[str, Any], Elapsed]:
        """Send one command; return its answer and the time between, on clocks it cannot touch.

        Raises
        ------
        CandidateTimedOut
            If no answer came in time; the child is dead then.
        CandidateCrashed
            If the child died of a signal or gave up for lack of memory.
        HarnessError
            If it ended or answered as no candidate can make it.
        """
        nonce = secrets.token_hex(8)
        busy_before = self._on_cpu_ns()
        begin = time.perf_counter_ns()
        self._send({**body, "nonce": nonce})
        answer = self._receive(timeout_s)
        wall_ns = time.perf_counter_ns() - begin
        busy_after = self._on_cpu_ns()
        if answer.get("nonce") != nonce:
            self.close()
            raise HarnessError("the child answered another command than the one it was sent")
        if answer.get("memory"):
            self.close()
            raise CandidateCrashed("out-of-memory", detail="no memory left within the limit")
        if busy_before is None or busy_after is None:
            return answer, Elapsed(wall_ns=wall_ns, busy_ns=wall_ns)
        return answer, Elapsed(wall_ns=wall_ns, busy_ns=min(wall_ns, busy_after - busy_before))

    def _on_cpu_ns(self) -> int | None:
        """Time the child's main thread has run; None where the kernel keeps no account."""
        try:
            text = Path(f"/proc/{self._process.pid}/schedstat").read_text(encoding="ascii")
            return int(text.split()[0])
        except (OSError, ValueError, IndexError):
            return None

    def close(self) -> None:
        """Kill the child and everything it may have started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    def _send(self, body: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        data = json.dumps(body, separators=(",", ":")).encode() + b"\n"
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._process.stdin.fileno(), view) :]
        except BrokenPipeError:
            raise self._death() from None

    def _receive(self, timeout_s: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._pending:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([descriptor], [], [], left)[0]:
                self.close()
                raise CandidateTimedOut("timed-out", detail=f"no answer within {timeout_s:.3g} s")
            chunk = os.read(descriptor, 1 << 16)
            if not chunk:
                raise self._death()
            self._pending += chunk
        line, _, self._pending = self._pending.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _death(self) -> CandidateError | HarnessError:
        """Turn the way the child ended into an error."""
        self._process.wait()
        code = self._process.returncode
        self.close()
        if code >= 0:
            return HarnessError(f"the child ended by itself with status {code}")
        if -code == signal.SIGXCPU:
            return CandidateTimedOut("timed-out", detail="used up its processor time")
        if -code == signal.SIGKILL:
            return CandidateCrashed(
                "out-of-memory", detail="killed by the system, most likely for memory"
            )
        if -code == signal.SIGSYS:
            return CandidateCrashed("contract-violated", detail="made a forbidden system call")
        return CandidateCrashed("crashed", detail=f"died of {signal.Signals(-code).name}")


def _as_json(library: Library) -> dict[str, Any]:
    return {
        "path": str(library.path.resolve()),
        "entry": library.entry,
        "tensors": library.tensors,
        "axes": library.axes,
        "parts": library.parts,
    }

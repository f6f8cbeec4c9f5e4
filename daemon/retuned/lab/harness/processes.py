"""Child processes: a fresh interpreter each, or forks of one with warm imports.

An interpreter that imports PyTorch takes seconds; a fork of it takes hundredths. The forked process
never ran a candidate and never touched a device, so every child is as clean as a new one.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from retuned.errors import HarnessError

_LIBC = ctypes.CDLL(None)
_PR_SET_CHILD_SUBREAPER = 36
_ENVIRONMENT = {"LC_ALL": "C.UTF-8", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
_IMPORT_S = 180.0
"""Time to import PyTorch from a cold disk."""
_REAP_S = 60.0
"""Time for a killed process to end; a device driver may hold it for some seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildLimits:
    start_s: float = 20.0
    cpu_s: int = 120
    memory_bytes: int = 2**30
    """Memory beyond its use when ready; see `sandbox` for which kind."""


class Child:
    """A process that the parent must reap, with the parent's ends of two pipes."""

    def __init__(self, pid: int, *, stdin: int, stdout: int) -> None:
        self.pid = pid
        self.stdin = stdin
        self.stdout = stdout
        self._status: int | None = None

    def wait(self) -> int:
        """Return the exit status, a signal's number negated.

        Raises
        ------
        HarnessError
            If it does not end because a device driver holds it.
        """
        deadline = time.monotonic() + _REAP_S
        pause = 0.0005
        while self._status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._status = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > deadline:
                raise HarnessError(f"process {self.pid} cannot be ended; is its device lost?")
            else:
                time.sleep(pause)
                pause = min(2 * pause, 0.02)
        return self._status

    def close(self) -> None:
        if self._status is None:  # afterwards the kernel may reuse the number
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            self.wait()
        for name in ("stdin", "stdout"):
            if getattr(self, name) >= 0:
                os.close(getattr(self, name))
                setattr(self, name, -1)


def is_ready(descriptor: int, *, timeout_s: float, write: bool = False) -> bool:
    """Wait until a descriptor can be read or written; a closed other end counts too.

    This uses `poll` because `select` cannot handle high descriptor numbers.
    """
    waiting = select.poll()
    waiting.register(descriptor, select.POLLOUT if write else select.POLLIN)
    return bool(waiting.poll(max(0.0, timeout_s) * 1e3))


Starter = Callable[[int], tuple[Child, int]]
"""Starts a child that has a descriptor of the given memory; returns its number in the child."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildProgram:
    """The program that runs candidates of one language."""

    start: Starter
    warm: Callable[[], None] = lambda: None
    """Starts the preparation that the first child waits for, and returns immediately."""
    limits: ChildLimits = field(default_factory=ChildLimits)
    mirrored: bool = False
    """Whether it copies the shared memory to a device and finishes compiling there.

    Then the parent pushes before a launch, pulls after it, and prepares lengths first.
    """
    fences: bool = True
    """Whether it can make pages unreadable; otherwise only red zones detect accesses."""
    zone_rows: int = 1
    """Red zones hold at least this many rows of their tensor."""
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def memory_check(self) -> str:
        """How accesses outside tensors are detected, for the evidence."""
        return "red zones and fences" if self.fences else "red zones"


def fresh(script: Path) -> Starter:
    """Start a new interpreter per child: standard library only, empty environment."""

    def start(memory: int) -> tuple[Child, int]:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-B", str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env={name: _ENVIRONMENT[name] for name in ("LC_ALL", "OMP_NUM_THREADS")},
            pass_fds=(memory,),
            start_new_session=True,
            bufsize=0,
        )
        assert process.stdin is not None, "a pipe"
        assert process.stdout is not None, "a pipe"
        pipes = os.dup(process.stdin.fileno()), os.dup(process.stdout.fileno())
        process.stdin.close()
        process.stdout.close()
        process.returncode = 0  # reaped by us; Popen must not wait for a reused number
        return Child(process.pid, stdin=pipes[0], stdout=pipes[1]), memory

    return start


def _ended(server: subprocess.Popen[bytes], ours: socket.socket) -> None:
    ours.close()
    server.kill()
    server.wait()


class ForkServer:
    """Forks children of one warmed interpreter, started on first use.

    This process reaps the children: it is their subreaper, and the forking process exits
    immediately. With the argument ``serve`` and a socket's number, `script` imports modules from
    `paths`, then forks.
    """

    def __init__(
        self, script: Path, *, paths: Sequence[str], environment: Mapping[str, str]
    ) -> None:
        self._script = script
        self._paths = [path for path in paths if path and Path(path).is_dir()]
        self._environment = {**_ENVIRONMENT, **environment}
        self._end: Callable[[], object] | None = None
        self._socket: socket.socket | None = None
        self._ready = False

    def start(self, memory: int) -> tuple[Child, int]:
        self.warm()
        assert self._socket is not None
        if not self._ready:
            self._ready = self._receive(_IMPORT_S) == b"ready"
        if not self._ready:
            self.close()
            raise HarnessError(
                "the process that forks children did not start: are torch and triton importable?"
            )
        to_child, from_child = os.pipe(), os.pipe()
        try:
            socket.send_fds(self._socket, [b"f"], [to_child[0], from_child[1], memory])
            number = int(self._receive(_IMPORT_S))
        except (OSError, ValueError, HarnessError) as error:  # nothing: its end was closed
            os.close(to_child[1])
            os.close(from_child[0])
            self.close()  # the next child starts a new one
            raise HarnessError(f"the process that forks children is gone: {error}") from error
        finally:
            os.close(to_child[0])
            os.close(from_child[1])
        return Child(number, stdin=to_child[1], stdout=from_child[0]), 3

    def close(self) -> None:
        """End the server; its children live until they are closed.

        It is also called when the program ends.
        """
        if self._end is not None:
            self._end()
        self._end = self._socket = None

    def warm(self) -> None:
        """Start the imports if needed; `start` waits until they are done."""
        if self._socket is not None:
            return
        if _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
            raise HarnessError(
                "this kernel does not support subreapers; Linux 3.4 or newer is needed"
            )
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            number = str(theirs.fileno())
            words = [number, str(os.getpid()), *self._paths]
            server = subprocess.Popen(
                [sys.executable, "-I", "-S", "-B", str(self._script), "serve", *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env=self._environment,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        self._socket, self._ready = ours, False
        self._end = weakref.finalize(self, _ended, server, ours)

    def _receive(self, timeout_s: float) -> bytes:
        assert self._socket is not None
        if not is_ready(self._socket.fileno(), timeout_s=timeout_s):
            raise HarnessError(
                f"the process that forks children did not respond for {timeout_s:g} s"
            )
        return self._socket.recv(64)

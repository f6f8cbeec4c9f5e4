"""Processes of `tunable_server` that need not import PyTorch: forks of one that has.

To import PyTorch and Triton and to take them down again is most of what such a server costs. Each
fork is a process like any other: its environment, its pipes and its end are its own.

Run as ``python -m tests.standalone.forked_servers SOCKET``, a descriptor, on which each message is
the arguments and the environment of a server as JSON, with its standard input and output; the
answer is its number. Ends with the socket.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO

_MESSAGE_BYTES = 1 << 18


@dataclass
class Forked:
    """A process that is not our child, with what its tests use of `subprocess.Popen`."""

    pid: int
    handle: int
    """Descriptor of the process, whatever gets its number later; negative after `close`."""
    stdin: IO[str]
    stdout: IO[str]

    def poll(self) -> int | None:
        """Return 0 if it has ended, in whatever way, else None."""
        return 0 if self._ended(within_s=0.0) else None

    def wait(self, timeout: float) -> None:
        """Wait until it has ended.

        Raises
        ------
        subprocess.TimeoutExpired
            If it has not after this many seconds.
        """
        if not self._ended(within_s=timeout):
            raise subprocess.TimeoutExpired("tunable_server", timeout)

    def kill(self) -> None:
        """Kill it, if it runs."""
        if self.poll() is None:
            signal.pidfd_send_signal(self.handle, signal.SIGKILL)

    def close(self) -> None:
        """Let go of it; it has ended."""
        self.stdout.close()
        os.close(self.handle)
        self.handle = -1

    def _ended(self, *, within_s: float) -> bool:
        if self.handle < 0:
            return True
        poll = select.poll()  # it takes descriptors of any number
        poll.register(self.handle, select.POLLIN)
        return bool(poll.poll(1000.0 * within_s))


def forked(arguments: Sequence[str], environment: Mapping[str, str]) -> Forked:
    """Start a server with these arguments and this whole environment."""
    into, stdin = os.pipe()
    stdout, out = os.pipe()
    message = json.dumps([list(arguments), dict(environment)]).encode()
    parent = _parent()
    try:
        socket.send_fds(parent, [message], [into, out])
        pid = int(parent.recv(64))
        handle = os.pidfd_open(pid)
    finally:
        os.close(into)
        os.close(out)
    return Forked(pid, handle, stdin=open(stdin, "w"), stdout=open(stdout))


@cache
def _parent() -> socket.socket:
    """Start the process that forks; it ends with this one."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.standalone.forked_servers", str(its.fileno())],
        stdin=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
        pass_fds=[its.fileno()],
    )
    its.close()

    def end() -> None:
        ours.close()
        process.wait(timeout=60)

    atexit.register(end)
    return ours


def fork_all(asked: socket.socket) -> None:
    """Fork a server for each message, until there are no more."""
    import torch
    import triton  # noqa: F401
    from tests.standalone.tunable_server import serve

    assert torch.get_num_threads() == 1, "a fork has no other thread"
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them here
    while True:
        message, descriptors, _, _ = socket.recv_fds(asked, _MESSAGE_BYTES, 2)
        if not message:
            return
        child = os.fork()
        if child == 0:
            asked.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for number, descriptor in enumerate(descriptors):
                os.dup2(descriptor, number)
                os.close(descriptor)
            arguments, environment = json.loads(message)
            os.environ.clear()
            os.environ.update(environment)
            code = 1
            try:
                serve(*map(Path, arguments))
                code = 0
            except BaseException:
                traceback.print_exc()
            atexit._run_exitfuncs()
            os._exit(code)
        for descriptor in descriptors:
            os.close(descriptor)
        asked.send(str(child).encode())


if __name__ == "__main__":
    fork_all(socket.socket(fileno=int(sys.argv[1])))

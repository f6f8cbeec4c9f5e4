"""The first process of a node's namespaces: starts what it is told to, and reaps everybody.

Run by its path, alone: ``unshare ... python init.py LOGS``. Commands come as JSON lines on stdin,
each is answered by one line on stdout::

    {"start": name, "argv": [...], "env": {...}}    -> {"pid": 12}
    {"stop": name, "signal": 15, "within_s": 10}    -> {"status": -15}
    {"status": name}                                -> {"status": null}, null while it runs

A refusal is ``{"error": "..."}``. When stdin ends, this process ends too, and with it the kernel
ends everything in the namespace: nothing that ran on the node outlives whoever started it.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_LINE_BYTES = 1 << 20


class Node:
    """Processes by name; ended ones keep their status until they are started again."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._pids: dict[str, int] = {}
        self._ended: dict[int, int] = {}

    def answer(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Do what one line asks for."""
        if "start" in asked:
            return {"pid": self._start(asked["start"], asked["argv"], asked["env"])}
        if "stop" in asked:
            return {"status": self._stop(asked["stop"], asked["signal"], asked["within_s"])}
        return {"status": self._status(asked["status"])}

    def reap(self) -> None:
        """Take the status of every child that ended; orphans of the namespace are children too."""
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                self._ended[found[0]] = os.waitstatus_to_exitcode(found[1])
        ours = set(self._pids.values())
        self._ended = {pid: status for pid, status in self._ended.items() if pid in ours}

    def _start(self, name: str, argv: list[str], env: dict[str, str]) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        log = str(self._logs / f"{name}.log")
        pid = os.posix_spawn(
            argv[0],
            argv,
            env,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, log, flags, 0o644),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,
            setsigmask=(),
            setsigdef=(signal.SIGCHLD, signal.SIGPIPE),
        )
        self._pids[name] = pid
        return pid

    def _stop(self, name: str, number: int, within_s: float) -> int | None:
        pid = self._pids[name]
        end = time.monotonic() + within_s
        if self._status(name) is None:
            os.kill(pid, number)
        while self._status(name) is None:
            if time.monotonic() > end:
                os.kill(pid, signal.SIGKILL)
                end = float("inf")
            time.sleep(0.02)
        return self._status(name)

    def _status(self, name: str) -> int | None:
        self.reap()
        return self._ended.get(self._pids[name])


def main(logs: Path) -> None:
    """Answer until stdin ends."""
    node = Node(logs)
    woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    pending = b""
    while True:
        ready, _, _ = select.select([0, woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
            node.reap()
        if 0 not in ready:
            continue
        read = os.read(0, _LINE_BYTES)
        if not read:
            return
        *lines, pending = (pending + read).split(b"\n")
        for line in lines:
            try:
                answer = node.answer(json.loads(line))
            except (KeyError, OSError, TypeError, ValueError) as error:
                answer = {"error": f"{type(error).__name__}: {error}"}
            os.write(1, json.dumps(answer).encode() + b"\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

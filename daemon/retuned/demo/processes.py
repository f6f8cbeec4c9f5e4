"""The demo's child processes: server, client and daemon, on two cores where there are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from retuned.errors import RetunedError
from retuned.lab.harness.processes import is_ready


class DemoFailed(RetunedError):
    """A part of the demo did not do its part; the message ends with the tail of its log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cores:
    """Which cores run what."""

    server: tuple[int, ...]
    """The server alone."""
    lab: tuple[int, ...]
    """Lab, daemon and client; the server's as well on a machine with one core."""

    @classmethod
    def choose(cls, *, wide: bool = False) -> Cores:
        """Take of the cores that this process may use: two, or with `wide` all of them.

        On two cores kernels of the server and of the lab see the same machine. Where the kernels
        run on a GPU the processor only has to be fast enough: a fourth of it serves.
        """
        usable = tuple(sorted(os.sched_getaffinity(0)))
        if not wide:
            return cls(server=usable[:1], lab=usable[1:2] or usable[:1])
        part = max(1, len(usable) // 4)
        return cls(server=usable[:part], lab=usable[part:] or usable[:1])


class Child:
    """One child process with its log; killed when the block ends, whatever happened.

    Parameters
    ----------
    name
        For messages, and the log's file name.
    arguments
        After the interpreter, such as ``["-m", "retuned.demo.server"]``.
    log_dir
        Where its stderr goes.
    cores
        Cores it may use.
    """

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        *,
        log_dir: Path,
        cores: Sequence[int],
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self._log = log_dir / f"{name}.log"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, **(env or {})},
            )
        # before the interpreter is up: every thread it starts inherits the cores
        os.sched_setaffinity(self._process.pid, cores)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def check(self) -> None:
        """Raise if the child has ended.

        Raises
        ------
        DemoFailed
            With its exit status and the end of its log.
        """
        status = self._process.poll()
        if status is not None:
            raise DemoFailed(f"the {self.name} ended with status {status}:\n{self.tail()}")

    def tail(self, lines: int = 15) -> str:
        """Return the end of the log."""
        text = self._log.read_text(errors="replace") if self._log.exists() else ""
        return "\n".join(text.splitlines()[-lines:])

    def say(self, line: str) -> None:
        """Write one line to its stdin."""
        self.check()
        assert self._process.stdin is not None, "stdin is a pipe"
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def answer(self, *, timeout_s: float) -> dict[str, Any]:
        """Read one JSON line from its stdout.

        Raises
        ------
        DemoFailed
            If it ends, prints nothing in time, or prints something else.
        """
        assert self._process.stdout is not None, "stdout is a pipe"
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if is_ready(self._process.stdout.fileno(), timeout_s=0.2):
                line = self._process.stdout.readline()
                if line:
                    return _object(self.name, line)
            self.check()
        raise DemoFailed(f"the {self.name} printed nothing for {timeout_s:g} s:\n{self.tail()}")


def _object(name: str, line: str) -> dict[str, Any]:
    try:
        body = json.loads(line)
    except json.JSONDecodeError as error:
        raise DemoFailed(f"the {name} said {line[:200]!r} instead of JSON") from error
    if not isinstance(body, dict):
        raise DemoFailed(f"the {name} said {line[:200]!r} instead of an object")
    return body

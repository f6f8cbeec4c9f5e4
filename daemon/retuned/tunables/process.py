"""Child processes in the server's environment, as their parent sees them.

`Child` has what every child is: requests, answers, limits, restart. How it is started is in two
subclasses: `ChildProcess` starts it on this machine, `HostedChild` by a host in another container
(`retuned.tunables.host`), over a Unix socket.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import selectors
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from retuned.errors import CandidateError, HarnessError
from retuned.tunables.host import child_variables, child_words

START_S = 240.0
"""Longest start: a server's packages take a minute to import on a slow disk."""
_LINE_BYTES = 64 << 20
_DETAIL = 2000
"""Characters of why a child refuses."""
_ATTEMPT_S = 0.1
"""Time between two attempts to reach a host that does not listen yet."""
_SEND_S = 60.0
"""Longest time for a hosted child to take a request."""


class Child(ABC):
    """One child; it ends with the context.

    Parameters
    ----------
    modules
        Of the server, imported at the start.
    memory_bytes
        Most device memory; None for no limit.
    """

    def __init__(self, *, modules: Sequence[str], memory_bytes: int | None) -> None:
        self._first = {"op": "hello", "modules": list(modules), "memory_bytes": memory_bytes}
        self._rest = b""
        self.hello: dict[str, Any] = {}
        """Its first answer."""

    @property
    @abstractmethod
    def alive(self) -> bool:
        """Whether the process runs."""

    @abstractmethod
    def _start(self) -> None:
        """Start the process; its packages may still be loading."""

    @abstractmethod
    def _end(self) -> str:
        """End the process if it runs; return how it ended, as far as that is known."""

    @abstractmethod
    def _send(self, data: bytes) -> None:
        """Write to the process; raises `OSError` or `ValueError` if it does not read."""

    @abstractmethod
    def _source(self) -> int:
        """Return the file descriptor of its answers."""

    def _greet(self) -> None:
        with contextlib.suppress(OSError):  # its end is seen where the answer is read
            self._send(json.dumps(self._first).encode() + b"\n")

    def __enter__(self) -> Self:
        try:
            self.hello = self._answer(START_S)
        except CandidateError as error:
            self.close()
            message = f"the server's Python did not start an experiment: {error}; see {self._log}"
            raise HarnessError(message) from error
        return self

    _log = "child.log"
    """Where its log is."""

    def restart(self) -> None:
        """End the process and start another one, without any case.

        Raises
        ------
        CandidateError
            If the other one does not answer.
        """
        self._end()
        self._rest = b""
        self._start()
        self._greet()
        self.hello = self._answer(START_S)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the process, and remove what it was started with."""
        self._end()

    def ask(self, request: Mapping[str, Any], *, limit_s: float) -> dict[str, Any]:
        """Send a request; return its answer.

        Raises
        ------
        CandidateError
            With the child's reason, ``hangs`` after the limit, or ``crashed``; the process has
            ended in the last two cases.
        """
        try:
            self._send(json.dumps(request).encode() + b"\n")
        except (OSError, ValueError) as error:
            raise self._crashed() from error
        return self._answer(limit_s)

    def _crashed(self) -> CandidateError:
        return CandidateError("crashed", detail=f"the child ended with {self._end()}")

    def _answer(self, limit_s: float) -> dict[str, Any]:
        try:
            answer = json.loads(self._line(limit_s))
        except (ValueError, EOFError, ConnectionError) as error:
            raise self._crashed() from error
        if answer.get("ok") is not True:
            detail = str(answer.get("detail"))[:_DETAIL]
            raise CandidateError(str(answer.get("reason"))[:64], detail=detail)
        return dict(answer)

    def _line(self, limit_s: float) -> bytes:
        deadline_s = time.monotonic() + limit_s
        source = self._source()
        with selectors.DefaultSelector() as selector:
            selector.register(source, selectors.EVENT_READ)
            while b"\n" not in self._rest:
                left_s = deadline_s - time.monotonic()
                if left_s <= 0 or not selector.select(left_s):
                    self._end()
                    raise CandidateError("hangs", detail=f"no answer within {limit_s:.0f} s")
                chunk = os.read(source, 1 << 20)
                if not chunk or len(self._rest) > _LINE_BYTES:
                    raise EOFError
                self._rest += chunk
        line, _, self._rest = self._rest.partition(b"\n")
        return line


class ChildProcess(Child):
    """A child on this machine.

    Parameters
    ----------
    environment
        The server's, as its runtime reports it.
    device
        Value of ``CUDA_VISIBLE_DEVICES``; empty without a GPU.
    folder
        For its log, and for compiled kernels where the server's own cache cannot be written.
    modules, memory_bytes
        See `Child`.
    """

    def __init__(
        self,
        environment: Mapping[str, Any],
        *,
        device: str,
        folder: Path,
        modules: Sequence[str] = (),
        memory_bytes: int | None = None,
    ) -> None:
        super().__init__(modules=modules, memory_bytes=memory_bytes)
        folder.mkdir(parents=True, exist_ok=True)
        self._link = tempfile.TemporaryDirectory(prefix="retuned-child-")
        root = Path(self._link.name)
        (root / "retuned").symlink_to(Path(__file__).resolve().parents[1], target_is_directory=True)
        self._variables = child_variables(
            {**environment, "device": device}, own=os.environ, root=root, work=folder
        )
        self._words = child_words(str(environment["executable"]), _version(environment))
        self._folder, self._file = folder, (folder / "child.log").open("ab")
        self._start()
        self._greet()

    def _start(self) -> None:
        self._process = subprocess.Popen(
            self._words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._file,
            env=self._variables,
            cwd=self._folder,
        )

    def close(self) -> None:
        """End the process, and remove what it was started with."""
        super().close()
        self._file.close()
        self._link.cleanup()

    def _end(self) -> str:
        if self._process.poll() is None:
            self._process.kill()
        code = self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):  # a request that was never read
                    stream.close()
        return str(code)

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def _send(self, data: bytes) -> None:
        assert self._process.stdin is not None, "opened as a pipe"
        self._process.stdin.write(data)
        self._process.stdin.flush()

    def _source(self) -> int:
        assert self._process.stdout is not None, "opened as a pipe"
        return self._process.stdout.fileno()


def _version(environment: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the version of the server's Python; the newest if it is not reported."""
    found = str(dict(environment.get("versions", {})).get("python", ""))
    parts = found.split(".")[:2]
    return tuple(map(int, parts)) if all(map(str.isdecimal, parts)) else (3, 99)


class ServerHost:
    """Client of the host in the server's container. Leaving the context stops the host.

    Parameters
    ----------
    path
        Its socket.
    wait_s
        Longest wait until it listens, seconds.
    """

    def __init__(self, path: Path, *, wait_s: float) -> None:
        self._path, self._wait_s = path, wait_s
        self._own: socket.socket | None = None
        self.children = 1
        """Most children at a time."""

    def __enter__(self) -> Self:
        """Connect.

        Raises
        ------
        HarnessError
            ``host-absent`` if it does not listen in time, ``host-refused`` if it refuses.
        """
        own = self.connected(wait_s=self._wait_s)
        own.settimeout(_SEND_S)
        answer: dict[str, Any] = {}
        with contextlib.suppress(OSError, ValueError):
            own.sendall(b'{"op": "runner"}\n')
            with own.makefile("rb") as lines:
                answer = dict(json.loads(lines.readline(_LINE_BYTES)))
        if answer.get("ok") is not True:
            own.close()
            why = f"{answer.get('reason', 'no answer')}: {answer.get('detail', '')}"
            raise _failed("host-refused", f"the server's container refuses the runner: {why}")
        self._own, self.children = own, max(1, int(answer.get("children", 1)))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._own is not None, "entered before"
        with contextlib.suppress(OSError):  # it has ended
            self._own.sendall(b'{"op": "end"}\n')
        self._own.close()
        self._own = None

    @property
    def gone(self) -> bool:
        """Whether the host has ended since the context was entered."""
        return self._own is not None and _is_closed(self._own)

    def connected(self, *, wait_s: float = 0.0) -> socket.socket:
        """Return a connection; a host that does not listen yet is waited for.

        Raises
        ------
        HarnessError
            ``host-absent``.
        """
        deadline_s = time.monotonic() + wait_s
        while True:
            made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                made.settimeout(_SEND_S)
                made.connect(str(self._path))
                return made
            except (FileNotFoundError, ConnectionRefusedError) as error:
                made.close()
                if time.monotonic() >= deadline_s or self.gone:
                    raise _absent(self._path, error) from error
                time.sleep(_ATTEMPT_S)
            except OSError as error:
                made.close()
                raise _absent(self._path, error) from error


class HostedChild(Child):
    """A child in the server's container.

    Parameters
    ----------
    environment
        The server's, as its runtime reports it; the host uses its own interpreter.
    host
        Starts it.
    device
        Value of ``CUDA_VISIBLE_DEVICES`` there; empty without a GPU.
    modules, memory_bytes
        See `Child`.

    Raises
    ------
    HarnessError
        ``host-absent``; and from every request ``host-gone``, if the host has ended: the candidate
        is not the cause.
    """

    _log = "the log of the container of the server"

    def __init__(
        self,
        environment: Mapping[str, Any],
        *,
        host: ServerHost,
        device: str,
        modules: Sequence[str] = (),
        memory_bytes: int | None = None,
    ) -> None:
        super().__init__(modules=modules, memory_bytes=memory_bytes)
        self._host = host
        given = {name: environment[name] for name in ("path", "variables") if name in environment}
        self._settings = {"op": "start", "device": device, **given}
        self._start()
        self._greet()

    def _start(self) -> None:
        self._connection = self._host.connected()
        with contextlib.suppress(OSError):  # its end is seen where the answer is read
            self._send(json.dumps(self._settings).encode() + b"\n")

    def _end(self) -> str:
        self._connection.close()
        return "its connection"

    @property
    def alive(self) -> bool:
        return self._connection.fileno() >= 0 and not _is_closed(self._connection)

    def _crashed(self) -> CandidateError:
        self._end()
        if self._host.gone:
            raise _failed("host-gone", "the host in the server's container has ended")
        return super()._crashed()

    def _send(self, data: bytes) -> None:
        self._connection.sendall(data)

    def _source(self) -> int:
        found = self._connection.fileno()
        if found < 0:
            raise EOFError
        return found


def _is_closed(connection: socket.socket) -> bool:
    poll = select.poll()
    poll.register(connection, select.POLLRDHUP)
    return bool(poll.poll(0))


def _failed(code: str, message: str) -> HarnessError:
    error = HarnessError(message)
    error.code = code
    return error


def _absent(path: Path, error: OSError) -> HarnessError:
    return _failed("host-absent", f"no host listens at {path} ({error.strerror})")

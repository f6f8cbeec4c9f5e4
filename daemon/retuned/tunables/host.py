"""Program of the server's container in an experiment pod: starts child processes for the runner.

    python -I host.py --socket PATH [--work FOLDER] [--children N] [--wait-s SECONDS]

It runs in the image of the server, with the server's own Python, and needs the standard library
only. Each connection to the socket begins with one line of JSON:

- ``{"op": "runner"}`` is the connection of the experiment; when it closes, the host ends.
- ``{"op": "start", "device", "path", "variables"}`` starts a child: the rest of the connection is
  its stdin and stdout. When the connection closes, the host kills the child. When the child ends,
  the host closes the connection.
- ``{"op": "end"}`` ends the host.

A request that is refused gets one line ``{"ok": false, "reason", "detail"}``. SIGTERM ends the
host. Users in ``RETUNED_ALLOWED_UIDS`` may connect; without that variable no user may.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

ALLOWED_UIDS = "RETUNED_ALLOWED_UIDS"
"""Variable with the users that may connect, by commas."""
OWN_VARIABLES = ("PATH", "HOME", "LANG", "LOGNAME", "TMPDIR", "USER", "LD_LIBRARY_PATH")
"""Variables that a child inherits from the program that starts it."""
SERVER_VARIABLES = (
    "VLLM_",
    "SGLANG_",
    "TRITON_",
    "TORCHINDUCTOR_",
    "CUDA_",
    "HIP_",
    "LD_LIBRARY_PATH",
    "NVIDIA_TF32_OVERRIDE",
    "AMDGCN_USE_BUFFER_OPS",
    "DISABLE_LLVM_OPT",
)
"""Beginnings of the names of the server's variables that a child gets."""
_PLACED = frozenset({"CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"})
"""Variables of the server that name its own devices; a child gets its own."""
_CACHES = (
    ("TRITON_CACHE_DIR", "triton"),
    ("TORCHINDUCTOR_CACHE_DIR", "inductor"),
    ("VLLM_CACHE_ROOT", "vllm"),
)
"""Folders of caches; what the server has compiled is used where a child may write beside it."""
MAX_LINE_BYTES = 1 << 20
CHILD_LOG_BYTES = 256 << 10
"""Of the log of one child."""
LOG_BYTES = 4 << 20
"""Of all logs together."""
_LINE_S = 10.0
"""Longest wait for the first line of a connection."""
_WATCH_S = 1.0
"""How often a child is checked whose descendants keep its pipe open."""
_KILL_S = 5.0
"""Longest wait for a killed child."""
_MAX_WAITING = 16
"""Connections beside those of running children."""


class Declined(Exception):
    """A connection that gets nothing, with a stable reason."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason, self.detail = reason, detail


def child_words(executable: str, version: Sequence[int]) -> list[str]:
    """Return the command of a child; Python 3.10 has no ``-P``."""
    safe = ["-P"] if tuple(version) >= (3, 11) else []
    return [executable, *safe, "-m", "retuned.tunables.child"]


def child_variables(
    asked: Mapping[str, Any], *, own: Mapping[str, str], root: Path, work: Path
) -> dict[str, str]:
    """Return the environment of a child.

    Parameters
    ----------
    asked
        ``variables``, ``path`` and ``device``: of the server, as its runtime reports them.
    own
        Environment of the program that starts the child.
    root
        Folder with the package ``retuned``.
    work
        For compiled kernels where the server's own cache cannot be written.
    """
    given = {str(k): str(v) for k, v in dict(asked.get("variables", {})).items()}
    found = {name: value for name, value in own.items() if name in OWN_VARIABLES}
    found |= {
        name: value
        for name, value in given.items()
        if name.startswith(SERVER_VARIABLES) and name not in _PLACED
    }
    found |= {
        "PYTHONPATH": os.pathsep.join([str(root), *map(str, asked.get("path", ()))]),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": str(asked.get("device", "")),
        "RETUNED_RUNTIME": "off",
        "VLLM_PLUGINS": "",
    }
    for name, folder in _CACHES:
        # what is compiled here is found by the server when it prepares a table
        if not os.access(found.get(name, work), os.W_OK):
            found[name] = str(work / folder)
    return found


@dataclass(frozen=True)
class Settings:
    """What the manifest names."""

    path: Path
    uids: frozenset[int]
    work: Path
    children: int = 2
    """Most children at a time."""
    wait_s: float = 900.0
    """Longest wait for the runner: its image may have to be pulled."""


class Host:
    """Starts children on request until the runner has ended.

    Parameters
    ----------
    settings
        What the manifest names.
    root
        Folder with the package ``retuned``.
    log
        Gets the logs of the children.
    """

    def __init__(self, settings: Settings, *, root: Path, log: BinaryIO) -> None:
        self._settings, self._root, self._log = settings, root, log
        self._lock = threading.Lock()
        self._slots = threading.Semaphore(settings.children)
        self._ended = threading.Event()
        self._connections = 0
        self._count = 0
        self._log_left = LOG_BYTES
        self._runner: socket.socket | None = None
        self._children: set[subprocess.Popen[bytes]] = set()
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)

    def end(self) -> None:
        """Let `run` return; may be called by a handler of a signal."""
        self._ended.set()
        with contextlib.suppress(OSError):  # it is full, and so wakes the loop too
            os.write(self._writer, b"x")

    def run(self) -> int:
        """Serve; return the exit code, 1 if no runner connected."""
        deadline_s = time.monotonic() + self._settings.wait_s
        with _listening(self._settings.path) as listener:
            poll = select.poll()
            poll.register(listener, select.POLLIN)
            poll.register(self._reader, select.POLLIN)
            while not self._ended.is_set():
                left_s = deadline_s - time.monotonic()
                if self._runner is None and left_s <= 0:
                    self.note(f"no runner connected within {self._settings.wait_s:.0f} s")
                    self._finish()
                    return 1
                ready = poll.poll(None if self._runner is not None else max(1, int(1e3 * left_s)))
                if any(each == listener.fileno() for each, _ in ready):
                    self._accept(listener)
                if any(each == self._reader for each, _ in ready):
                    os.read(self._reader, 64)
        self._finish()
        return 0

    def note(self, text: str) -> None:
        """Write a line of the host's own to the log."""
        with contextlib.suppress(OSError):
            self._log.write(f"host: {text}\n".encode())
            self._log.flush()

    def _finish(self) -> None:
        """Show the runner that the host ends, and then kill the children.

        In this order a child that is killed here is never taken for one that crashed.
        """
        self._ended.set()
        with self._lock:
            runner, children = self._runner, list(self._children)
        if runner is not None:
            _shut(runner)
        for each in children:
            _kill(each)

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):  # the other end was closed meanwhile
            connection, _ = listener.accept()
            with self._lock:
                self._connections += 1
                many = self._connections > self._settings.children + _MAX_WAITING
            if many:
                self._closed(connection)
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            _check_peer(connection, self._settings.uids)
            request = _request(connection)
            if request.get("op") == "end":
                self.end()
            elif request.get("op") == "runner":
                self._accompany(connection)
            elif request.get("op") == "start":
                self._child(connection, request)
            else:
                raise Declined("op-unknown", f"{str(request.get('op'))[:40]!r} is unknown")
        except Declined as error:
            self.note(str(error))
            _answer(connection, {"ok": False, "reason": error.reason, "detail": error.detail})
        except OSError as error:
            self.note(f"a connection failed: {error}")
        finally:
            self._closed(connection)

    def _closed(self, connection: socket.socket) -> None:
        _shut(connection)  # descendants of a child may have it open
        connection.close()
        with self._lock:
            self._connections -= 1

    def _accompany(self, connection: socket.socket) -> None:
        """Wait for the runner's end, and end then."""
        with self._lock:
            if self._runner is not None:
                raise Declined("runner-known", "another runner is connected")
            self._runner = connection
        os.write(self._writer, b"x")  # the loop waits for the runner no longer
        _answer(connection, {"ok": True, "children": self._settings.children})
        with contextlib.suppress(Declined):  # it closed the connection
            while _request(connection, limit_s=None).get("op") != "end":
                pass
        self.end()

    def _child(self, connection: socket.socket, asked: Mapping[str, Any]) -> None:
        while not self._slots.acquire(timeout=_WATCH_S / 4):
            if self._ended.is_set() or _is_closed(connection):
                return
        try:
            with tempfile.TemporaryDirectory(
                prefix="child-", dir=self._settings.work, ignore_cleanup_errors=True
            ) as folder:
                self._run_child(connection, asked, folder=folder)
        finally:
            self._slots.release()

    def _run_child(
        self, connection: socket.socket, asked: Mapping[str, Any], *, folder: str
    ) -> None:
        alive, held = os.pipe()
        try:
            number, process = self._started(connection, asked, folder=folder, held=held)
        except (OSError, TypeError, ValueError) as error:
            os.close(alive)
            raise Declined("not-started", str(error)[:400]) from error
        finally:
            os.close(held)
        threading.Thread(target=self._copy_log, args=(process, number), daemon=True).start()
        try:
            self._watch(process, connection, alive)
        finally:
            _kill(process)
            os.close(alive)
            with self._lock:
                self._children.discard(process)
            self.note(f"child {number} ended with {process.returncode}")

    def _started(
        self, connection: socket.socket, asked: Mapping[str, Any], *, folder: str, held: int
    ) -> tuple[int, subprocess.Popen[bytes]]:
        """Start a child, and note it before the host can end; return its number and the child."""
        work = self._settings.work
        with self._lock:
            if self._ended.is_set():
                raise OSError("the host ends")
            self._count += 1
            process = subprocess.Popen(
                child_words(sys.executable, sys.version_info[:2]),
                stdin=connection.fileno(),
                stdout=connection.fileno(),
                stderr=subprocess.PIPE,
                env=child_variables(asked, own=os.environ, root=self._root, work=work),
                cwd=folder,
                start_new_session=True,
                pass_fds=(held,),
            )
            self._children.add(process)
            return self._count, process

    def _watch(
        self, process: subprocess.Popen[bytes], connection: socket.socket, alive: int
    ) -> None:
        """Return when the child has ended, the connection is closed, or the host ends."""
        poll = select.poll()
        poll.register(connection, select.POLLRDHUP)
        poll.register(alive, select.POLLIN)
        while process.poll() is None and not self._ended.is_set():
            ready = [each for each, _ in poll.poll(int(1e3 * _WATCH_S))]
            if connection.fileno() in ready:
                return
            if alive in ready:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_WATCH_S)

    def _copy_log(self, process: subprocess.Popen[bytes], number: int) -> None:
        """Copy a child's log up to a bound, and drop the rest so that the child never waits."""
        assert process.stderr is not None, "opened as a pipe"
        left = CHILD_LOG_BYTES
        with process.stderr as log:
            while chunk := os.read(log.fileno(), 1 << 16):
                with self._lock:
                    fits = chunk[: max(0, min(left, self._log_left))]
                    self._log_left -= len(fits)
                    left -= len(fits)
                    if fits:
                        self._log.write(fits)
                        self._log.flush()
                    if fits and not min(left, self._log_left):
                        self.note(f"the log of child {number} is cut here")


@contextlib.contextmanager
def _listening(path: Path) -> Iterator[socket.socket]:
    """Listen at a path; every user may connect, and is checked then."""
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        path.chmod(0o666)
        listener.listen(_MAX_WAITING)
        try:
            yield listener
        finally:
            with contextlib.suppress(OSError):
                path.unlink()


def _check_peer(connection: socket.socket, uids: frozenset[int]) -> None:
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, uid, _ = struct.unpack("3i", data)
    if uid not in uids:
        raise Declined("uid-refused", f"user {uid} is not in {ALLOWED_UIDS}")


def _request(connection: socket.socket, *, limit_s: float | None = _LINE_S) -> dict[str, Any]:
    """Read one line and nothing after it: that belongs to the child."""
    deadline_s = None if limit_s is None else time.monotonic() + limit_s
    data = b""
    try:
        while not data.endswith(b"\n"):
            left_s = None if deadline_s is None else deadline_s - time.monotonic()
            connection.settimeout(left_s if left_s is None else max(left_s, 1e-3))
            chunk = connection.recv(1 << 16, socket.MSG_PEEK)
            if not chunk:
                raise Declined("closed", "the connection ended before its first line")
            data += connection.recv(chunk.find(b"\n") + 1 or len(chunk))
            if len(data) > MAX_LINE_BYTES:
                raise Declined("line-too-long", f"more than {MAX_LINE_BYTES} bytes")
        found = json.loads(data)
    except TimeoutError:
        raise Declined("no-request", f"no line within {limit_s:.0f} s") from None
    except (ValueError, RecursionError) as error:
        raise Declined("bad-request", f"the line is not JSON: {error}"[:400]) from None
    finally:
        connection.settimeout(None)  # the child has the same open file, and must wait for data
    if not isinstance(found, dict):
        raise Declined("bad-request", "the line is not a JSON object")
    return found


def _answer(connection: socket.socket, body: Mapping[str, Any]) -> None:
    with contextlib.suppress(OSError):  # the other end was closed
        connection.sendall(json.dumps(body).encode() + b"\n")


def _is_closed(connection: socket.socket) -> bool:
    poll = select.poll()
    poll.register(connection, select.POLLRDHUP)
    return bool(poll.poll(0))


def _shut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a child with its descendants."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)  # the group may outlive the child
    with contextlib.suppress(subprocess.TimeoutExpired):  # it waits for the device's driver
        process.wait(_KILL_S)


def _settings(words: Sequence[str] | None) -> Settings:
    parser = argparse.ArgumentParser(description="Start child processes for an experiment.")
    parser.add_argument("--socket", required=True, type=Path)
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--children", type=int, default=2)
    parser.add_argument("--wait-s", type=float, default=900.0)
    given = parser.parse_args(words)
    try:
        uids = frozenset(int(each) for each in os.environ.get(ALLOWED_UIDS, "").split(",") if each)
    except ValueError:
        parser.error(f"{ALLOWED_UIDS} must be numbers of users, by commas")
    if not uids or not 1 <= given.children <= 64 or not given.wait_s > 0:
        parser.error(f"{ALLOWED_UIDS} must name a user, --children 1 to 64, --wait-s a time")
    return Settings(
        path=given.socket,
        uids=uids,
        work=given.work,
        children=given.children,
        wait_s=given.wait_s,
    )


def main(words: Sequence[str] | None = None) -> int:
    """Serve until the runner has ended; return the exit code."""
    settings = _settings(words)
    host = Host(settings, root=Path(__file__).resolve().parents[2], log=sys.stderr.buffer)
    signal.signal(signal.SIGTERM, lambda _number, _frame: host.end())
    return host.run()


if __name__ == "__main__":
    sys.exit(main())

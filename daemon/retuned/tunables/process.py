"""A child process in the server's environment, as its parent sees it."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from retuned.errors import CandidateError, HarnessError

START_S = 240.0
"""Longest start: a server's packages take a minute to import on a slow disk."""
_LINE_BYTES = 64 << 20


class ChildProcess:
    """One child; it ends with the context.

    Parameters
    ----------
    environment
        The server's, as its runtime reports it.
    device
        Value of ``CUDA_VISIBLE_DEVICES``; empty without a GPU.
    folder
        For its log, and for compiled kernels where the server's own cache cannot be written.
    modules
        Of the server, imported at the start.
    memory_bytes
        Most device memory; None for no limit.
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
        folder.mkdir(parents=True, exist_ok=True)
        self._link = tempfile.TemporaryDirectory(prefix="retuned-child-")
        root = Path(self._link.name)
        (root / "retuned").symlink_to(Path(__file__).resolve().parents[1], target_is_directory=True)
        variables = {
            name: value
            for name, value in os.environ.items()
            if name in ("PATH", "HOME", "LANG", "TMPDIR", "LD_LIBRARY_PATH")
        }
        variables |= {str(k): str(v) for k, v in dict(environment.get("variables", {})).items()}
        paths = [str(root), *map(str, environment.get("path", ()))]
        variables |= {
            "PYTHONPATH": os.pathsep.join(paths),
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "CUDA_VISIBLE_DEVICES": device,
            "RETUNED_RUNTIME": "off",
            "VLLM_PLUGINS": "",
        }
        # what is compiled here is found by the server when it prepares a table
        if not os.access(variables.get("TRITON_CACHE_DIR", folder), os.W_OK):
            variables["TRITON_CACHE_DIR"] = str(folder / "triton")
        self._log = (folder / "child.log").open("ab")
        self._words = [str(environment["executable"]), "-P", "-m", "retuned.tunables.child"]
        self._variables, self._folder = variables, folder
        self._first = {"op": "hello", "modules": list(modules), "memory_bytes": memory_bytes}
        self._process = self._started()
        self._rest = b""
        self.hello: dict[str, Any] = {}

    def _started(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            self._words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=self._variables,
            cwd=self._folder,
        )
        assert process.stdin is not None, "opened as a pipe"
        with contextlib.suppress(BrokenPipeError):  # its end is seen where the answer is read
            process.stdin.write(json.dumps(self._first).encode() + b"\n")
            process.stdin.flush()
        return process

    def __enter__(self) -> Self:
        try:
            self.hello = self._answer(START_S)
        except CandidateError as error:
            self.close()
            message = f"the server's Python did not start an experiment: {error}; see child.log"
            raise HarnessError(message) from error
        return self

    def restart(self) -> None:
        """End the process and start another one, without any case.

        Raises
        ------
        CandidateError
            If the other one does not answer.
        """
        self._end()
        self._rest = b""
        self._process = self._started()
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
        self._log.close()
        self._link.cleanup()

    def _end(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):  # a request that was never read
                    stream.close()

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    def ask(self, request: Mapping[str, Any], *, limit_s: float) -> dict[str, Any]:
        """Send a request; return its answer.

        Raises
        ------
        CandidateError
            With the child's reason, ``hangs`` after the limit, or ``crashed``; the process has
            ended in the last two cases.
        """
        assert self._process.stdin is not None, "opened as a pipe"
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except (BrokenPipeError, ValueError) as error:
            raise self._crashed() from error
        return self._answer(limit_s)

    def _crashed(self) -> CandidateError:
        self._process.kill()
        return CandidateError("crashed", detail=f"the child ended with {self._process.wait()}")

    def _answer(self, limit_s: float) -> dict[str, Any]:
        try:
            answer = json.loads(self._line(limit_s))
        except (ValueError, EOFError) as error:
            raise self._crashed() from error
        if answer.get("ok") is not True:
            raise CandidateError(str(answer.get("reason"))[:64], detail=str(answer.get("detail")))
        return dict(answer)

    def _line(self, limit_s: float) -> bytes:
        assert self._process.stdout is not None, "opened as a pipe"
        deadline_s = time.monotonic() + limit_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._rest:
                left_s = deadline_s - time.monotonic()
                if left_s <= 0 or not selector.select(left_s):
                    self._process.kill()
                    self._process.wait()
                    raise CandidateError("hangs", detail=f"no answer within {limit_s:.0f} s")
                chunk = os.read(self._process.stdout.fileno(), 1 << 20)
                if not chunk or len(self._rest) > _LINE_BYTES:
                    raise EOFError
                self._rest += chunk
        line, _, self._rest = self._rest.partition(b"\n")
        return line

"""Processes of the show: a vLLM that Retuned joins by its entry point, and the daemon beside it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx

_NOTABLE = re.compile(
    r"attention backend|MoE backend|MoE config|torch\.compile took|Graph capturing|"
    r"init engine|retuned|ERROR|Traceback|JIT compilation|Error",
    re.IGNORECASE,
)


class Vllm:
    """One vLLM server in a folder: ``server.log``, sockets in ``s/``.

    Parameters
    ----------
    options
        Further options of ``vllm serve``.
    gpu
        Index of the GPU.
    joined
        Whether Retuned joins.
    """

    def __init__(
        self,
        program: Path,
        model: Path,
        folder: Path,
        *,
        options: Sequence[str] = (),
        gpu: str = "0",
        variables: Mapping[str, str] | None = None,
        joined: bool = True,
    ) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        self.folder, self.sockets = folder, folder / "s"
        self.sockets.mkdir(parents=True)
        self.sockets.chmod(0o700)
        self.log = folder / "server.log"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.words = [
            *map(str, (program, "serve", model, "--served-model-name", "m")),
            *("--host", "127.0.0.1", "--port", str(self.port), "--seed", "0"),
            *("--no-enable-prefix-caching", *options),
        ]
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith("RETUNED_")}
        self.environment |= {
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
            "VLLM_USE_FLASHINFER_SAMPLER": "0",
            "VLLM_LOGGING_COLOR": "0",
            "PYTHONUNBUFFERED": "1",
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "CUDA_VISIBLE_DEVICES": gpu,
            "VLLM_CACHE_ROOT": str(folder.parent / "vllm_cache"),
            "PATH": f"{program.parent}:{os.environ['PATH']}",
        }
        if joined:
            self.environment |= {
                "RETUNED_SOCKET_DIR": str(self.sockets),
                "RETUNED_SERVER": "chat",
                "RETUNED_CAPTURE": "on",
            }
        self.environment |= dict(variables or {})
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, limit_s: float = 240.0) -> float:
        """Return the seconds until the server reports health."""
        begin_s = time.monotonic()
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                self.words,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.environment,
                cwd=self.folder,
                start_new_session=True,
            )
        while time.monotonic() - begin_s < limit_s:
            if self._process.poll() is not None:
                raise RuntimeError(f"vLLM ended with {self._process.returncode}:\n{self.tail()}")
            try:
                httpx.get(self.url + "/health", timeout=2.0).raise_for_status()
            except httpx.HTTPError:
                time.sleep(0.5)
            else:
                return round(time.monotonic() - begin_s, 1)
        raise RuntimeError(f"vLLM is not healthy after {limit_s} s:\n{self.tail()}")

    def tail(self, lines: int = 40) -> str:
        """Return the end of the log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def notable(self) -> list[str]:
        """Return lines of the log on kernels, times and errors."""
        text = self.log.read_text(errors="replace").splitlines()
        return [line[:300] for line in text if _NOTABLE.search(line)][:120]

    def stop(self) -> None:
        """End the server and what it started."""
        if self._process is not None:
            _end(self._process)
            self._process = None


class Daemon:
    """``retuned run`` beside a server, with a policy that needs one approval.

    `gpus` are those that it may use, such as ``0,1``; all if empty.
    """

    def __init__(
        self, python: Path, server: Vllm, folder: Path, *, policy: Path, gpus: str = ""
    ) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self.state = folder / "state"
        self.log = folder / "daemon.log"
        self._python = python
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith("RETUNED_")}
        self.environment |= {
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "RETUNED_STATE_DIR": str(self.state),
            "RETUNED_SOCKET_DIR": str(server.sockets),
            "RETUNED_POLICY_FILES": str(policy),
            "RETUNED_TARGET": "chat",
            "RETUNED_WINDOW_S": "5",
            "RETUNED_SETTLE_S": "2",
            "RETUNED_DETECTOR_PRESET": "demo",
            "RETUNED_LAB_LANGUAGE": "triton",
            "RETUNED_CAPTURE_INPUTS": "true",
            "RETUNED_MAX_EXPERIMENT_S": "240",
            "RETUNED_METRICS_PORT": "0",  # two daemons of one host
        }
        if gpus:
            self.environment["CUDA_VISIBLE_DEVICES"] = gpus
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [str(self._python.with_name("retuned")), "run"],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.environment,
                start_new_session=True,
            )

    def check(self) -> None:
        """Raise if it has ended."""
        if self._process is not None and self._process.poll() is not None:
            raise RuntimeError("the daemon has ended:\n" + "\n".join(self.tail(10)))

    def command(self, *words: str, limit_s: float = 60.0) -> tuple[int, str]:
        """Run ``retuned`` with the daemon's settings; return exit status and output."""
        done = subprocess.run(
            [str(self._python.with_name("retuned")), *words],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    def json(self, *words: str) -> Any:  # noqa: ANN401 - JSON
        """Run a command with ``--json``; None if it fails."""
        status, output = self.command(*words, "--json")
        try:
            return json.loads(output) if status == 0 else None
        except ValueError:
            return None

    def tail(self, lines: int = 60) -> list[str]:
        """Return the end of the log."""
        if not self.log.exists():
            return []
        return [x[:400] for x in self.log.read_text(errors="replace").splitlines()[-lines:]]

    def stop(self) -> None:
        """End it."""
        if self._process is not None:
            _end(self._process)
            self._process = None


def _end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        print("SIGTERM had no effect for 20 s", process.args, file=sys.stderr)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # what it left in its session
    process.wait()

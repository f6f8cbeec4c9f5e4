"""A real vLLM on the CPU that Retuned joins by its entry point, and the daemon beside it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from retuned.errors import TemporaryError
from retuned.runtime_client.tunables import RuntimeTunables, TunableProcess

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
POLICY = """
apiVersion: retuned.dev/v1alpha1
kind: KernelTuningPolicy
metadata: {name: lane}
spec:
  priority: 1
  mode: Enforce
  validation: {minSpeedup: 1.02, confidence: 0.99}
  gates: [{name: one, approvals: {required: 1}}]
  liveProof: {mode: required, longBlocks: 0}
  rollout:
    canary: {bake: 0s}
    minInterval: 0s
    postPromotionWatch: 0s
    analysis: {interval: 1s, inconclusiveLimit: 100000}
"""
START_S = 420.0
VARIABLES = {
    "TRITON_INTERPRET": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
}
"""Environment of a server without a GPU and without a network."""
OPTIONS = (
    *("--served-model-name", "m", "--seed", "0"),
    *("--dtype", "float32", "--max-model-len", "512", "--max-num-seqs", "8"),
    *("--enforce-eager", "--no-enable-prefix-caching"),
)
"""Options of ``vllm serve`` beside the model and the address."""


PROMPTS = ("badu lemi", "siva tolo pani", "weda")


def greedy_answer(url: str, prompt: str, *, tokens: int = 16) -> str:
    """Return the answer of a server to one request.

    Raises
    ------
    httpx.HTTPError
        If there is none.
    """
    body = {"model": "m", "prompt": prompt, "max_tokens": tokens, "temperature": 0.0}
    found = httpx.post(f"{url}/v1/completions", json=body, timeout=120.0, trust_env=False)
    found.raise_for_status()
    return str(found.json()["choices"][0]["text"])


def install_plugin(site: Path, name: str, target: str) -> None:
    """Let a folder of packages name a plugin of vLLM, as an installed package does."""
    info = site / f"{name}-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text(f"[vllm.general_plugins]\n{name} = {target}\n")


def environment() -> Path:
    """Return the environment with vLLM; the lane fails where it is not there."""
    words = [str(ROOT / "scripts" / "vllm-cpu"), "--path"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip())
    return Path(done.stdout.strip())


@dataclass
class Lane:
    """One server, its traffic and the daemon."""

    folder: Path
    plugin: Path = HERE / "fake_tunable.py"
    """The plugin of vLLM that brings the tunable."""
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    answered: int = 0

    def __post_init__(self) -> None:
        self.python = environment() / "bin" / "python"
        self.sockets = self.folder / "s"
        self.sockets.mkdir(mode=0o700)
        (self.folder / "policy.yaml").write_text(POLICY)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.url = f"http://127.0.0.1:{free.getsockname()[1]}"
        self.variables = {k: v for k, v in os.environ.items() if not k.startswith("RETUNED_")}

    # --- server ---

    def start(self) -> None:
        """Start the server; returns once it is healthy."""
        model = self.folder / "model"
        subprocess.run([str(self.python), str(HERE / "tiny_model.py"), str(model)], check=True)
        words = [
            *(str(self.python.with_name("vllm")), "serve", str(model), *OPTIONS),
            *("--host", "127.0.0.1", "--port", self.url.rpartition(":")[2]),
        ]
        process = self._started(words, "server.log", self.variables | self._joined())
        begin_s = time.monotonic()
        while time.monotonic() - begin_s < START_S:
            if process.poll() is not None:
                raise RuntimeError(f"vLLM ended with {process.returncode}:\n{self.log()}")
            with contextlib.suppress(httpx.HTTPError):
                httpx.get(self.url + "/health", timeout=5.0).raise_for_status()
                return
            time.sleep(0.5)
        raise RuntimeError(f"vLLM is not healthy after {START_S} s:\n{self.log()}")

    def _started(
        self, words: list[str], log: str, variables: dict[str, str]
    ) -> subprocess.Popen[bytes]:
        with (self.folder / log).open("ab") as out:
            process = subprocess.Popen(
                words,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=variables,
                cwd=self.folder,
                start_new_session=True,
            )
        self.processes.append(process)
        return process

    def _joined(self) -> dict[str, str]:
        """Return variables by which Retuned and the fake tunable join as installed plugins."""
        site = self.folder / "site"
        site.mkdir()
        (site / "retuned").symlink_to(ROOT / "daemon" / "retuned", target_is_directory=True)
        shutil.copy(self.plugin, site)
        plugin = self.plugin.stem
        for name, target in (
            ("retuned", "retuned.runtime.plugins:register"),
            (plugin, f"{plugin}:register"),
        ):
            install_plugin(site, name, target)
        return VARIABLES | {
            "PYTHONPATH": str(site),
            "RETUNED_SOCKET_DIR": str(self.sockets),
            "RETUNED_SERVER": "lane",
        }

    def log(self, name: str = "server.log") -> str:
        """Return the end of a log."""
        return (self.folder / name).read_text(errors="replace")[-4000:]

    def answer(self, prompt: str, *, tokens: int = 16) -> str:
        """Return a greedy answer."""
        return greedy_answer(self.url, prompt, tokens=tokens)

    def digest(self) -> list[str]:
        """Return answers to fixed prompts, one request at a time."""
        return [self.answer(prompt) for prompt in PROMPTS]

    @contextlib.contextmanager
    def traffic(self) -> Iterator[None]:
        """Keep requests coming on two threads."""
        stop = threading.Event()

        def send() -> None:
            while not stop.is_set():
                try:
                    self.answer("nora vipi gele", tokens=32)
                    self.answered += 1
                except httpx.HTTPError as error:
                    self.failed.append(repr(error))

        threads = [threading.Thread(target=send) for _ in range(2)]
        for each in threads:
            each.start()
        try:
            yield
        finally:
            stop.set()
            for each in threads:
                each.join(180.0)

    def tunable(self) -> tuple[TunableProcess, str]:
        """Return the process with the fake tunable, and its id."""
        found = [
            (process, name)
            for process in RuntimeTunables(self.sockets).processes()
            for name, report in process.tunables.items()
            if report.kernel == "_copied"
        ]
        if len(found) != 1:
            raise TemporaryError(f"{len(found)} processes have the tunable", delay_s=1.0)
        return found[0]

    def matched(self) -> int | None:
        """Return the launches under the table's rules; None while the original is in force."""
        process, name = self.tunable()
        table = process.tunables[name].table
        return None if table is None else table.matched

    # --- daemon ---

    def settings(self) -> dict[str, str]:
        """Return variables with the daemon's settings."""
        return self.variables | {
            "RETUNED_STATE_DIR": str(self.folder / "state"),
            "RETUNED_SOCKET_DIR": str(self.sockets),
            "RETUNED_POLICY_FILES": str(self.folder / "policy.yaml"),
            "RETUNED_TARGET": "lane",
            "RETUNED_WINDOW_S": "2",
            "RETUNED_SETTLE_S": "1",
            "RETUNED_OBSERVE_POLL_S": "1",
        }

    def daemon(self) -> subprocess.Popen[bytes]:
        """Start `retuned run`."""
        words = [str(Path(sys.executable).with_name("retuned")), "run"]
        return self._started(words, "daemon.log", self.settings())

    def retuned(self, *words: str) -> tuple[int, str]:
        """Run a command with the daemon's settings."""
        done = subprocess.run(
            [str(Path(sys.executable).with_name("retuned")), *words],
            env=self.settings(),
            capture_output=True,
            text=True,
            timeout=120.0,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    def json(self, *words: str) -> dict[str, Any]:
        """Run a command that prints JSON."""
        status, said = self.retuned(*words, "--json")
        assert status == 0, said
        found: dict[str, Any] = json.loads(said)
        return found

    def close(self) -> None:
        """End everything that was started."""
        for process in reversed(self.processes):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(20.0)
            except subprocess.TimeoutExpired:
                process.kill()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

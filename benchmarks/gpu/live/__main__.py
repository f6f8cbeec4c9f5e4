"""The whole show, on a machine with a GPU and no network.

    OUT=/tmp/out python -m benchmarks.gpu.live [--quick] [--minutes 8] [--modes eager,graphs]
        [--name gpu_live.json]

A mode takes about five minutes. Writes ``$OUT/gpu_live.json`` as it goes, and ``$OUT/traces/``.
Each part stands alone: what fails is in the file with its error, and the parts after it run. What
there was no time for is listed under ``cut``. Exit status 1 if any part failed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT), str(ROOT / "daemon")]
os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(ROOT), str(ROOT / "daemon"), *filter(None, [os.environ.get("PYTHONPATH")])]
)

from benchmarks.gpu.live.looping import KERNELS, Turn  # noqa: E402
from benchmarks.gpu.live.stage import Stage  # noqa: E402
from benchmarks.gpu.live.traces import kernel_times, pick, publish  # noqa: E402

from retuned.demo.processes import Cores  # noqa: E402
from retuned.demo.traffic import Phase  # noqa: E402

_PAUSE_S = 0.5
"""Longer pauses of an idle thread are reported."""
_TRACE_BYTES = 1_000_000
"""Of a window as the profiler wrote it; packed better, four of them are below 3 MB."""


class Show:
    """Results, written as they come.

    Parameters
    ----------
    options
        Of the command line.
    out
        Folder of the results.
    """

    def __init__(self, options: argparse.Namespace, out: Path) -> None:
        self.options = options
        self._out = out
        self._started_s = time.monotonic()
        self.failed: list[str] = []
        self.logs: tuple[str, Path] | None = None
        """Mode and folder of the processes that run now; kept part by part, as the results are."""
        self.result: dict[str, Any] = {
            "method": _METHOD,
            "machine": machine(),
            "options": {k: str(v) for k, v in vars(options).items()},
            "cut": [],
            "pauses": [],
        }
        threading.Thread(target=self._note_pauses, daemon=True).start()

    def _note_pauses(self) -> None:
        """Note when this process stood still: what a server does then is the machine's doing."""
        while True:
            before_s = time.monotonic()
            time.sleep(_PAUSE_S / 10)
            paused_s = time.monotonic() - before_s
            if paused_s > _PAUSE_S:
                at_s = round(before_s - self._started_s, 1)
                self.result["pauses"].append({"at_s": at_s, "seconds": round(paused_s, 2)})

    @property
    def left_s(self) -> float:
        """Seconds of the budget that are left."""
        return float(self.options.minutes) * 60.0 - (time.monotonic() - self._started_s)

    def say(self, line: str) -> None:
        """Print a line with the seconds since the start."""
        print(f"[{time.monotonic() - self._started_s:6.1f} s] {line}", flush=True)

    def part(self, name: str, do: Callable[[], Any], *, least_s: float = 0.0) -> Any:  # noqa: ANN401
        """Do one part; keep what came of it, or why not, and write the file."""
        if self.left_s < least_s:
            self.result["cut"].append(f"{name}: {self.left_s:.0f} s were left of {least_s:.0f}")
            self.say(f"{name}: cut, no time left")
            return None
        started_s = time.monotonic()
        try:
            found = do()
            self.result[name] = found
            self.say(f"{name}: done in {time.monotonic() - started_s:.1f} s")
        except Exception as error:  # a part that fails must not lose the others; it is reported
            self.failed.append(name)
            self.result[name] = {"error": scrubbed(repr(error))[:4000],
                                 "trace": scrubbed(traceback.format_exc())[-3000:]}  # fmt: skip
            self.say(f"{name}: FAILED: {scrubbed(repr(error))[:2000]}")
            found = None
        self.write()
        if self.logs is not None:
            self.keep_logs(*self.logs)
        return found

    def write(self) -> None:
        """Write everything so far."""
        self.result["failed_parts"] = self.failed
        self.result["seconds"] = round(time.monotonic() - self._started_s, 1)
        path = self._out / self.options.name
        path.with_suffix(".part").write_text(json.dumps(self.result, indent=1, default=str) + "\n")
        os.replace(path.with_suffix(".part"), path)

    # --- parts ------------------------------------------------------------------------------------

    def child_json(self, words: list[str], *, limit_s: float) -> Any:  # noqa: ANN401 - JSON
        """Run a program that prints JSON; its environment does not attach Retuned."""
        done = subprocess.run(
            [sys.executable, "-m", *words],
            cwd=ROOT, capture_output=True, text=True, timeout=limit_s, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            raise RuntimeError(f"{words[0]}: exit {done.returncode}: {done.stderr[-1500:]}")
        return json.loads(done.stdout[done.stdout.index("{") :])

    def costs(self) -> Any:  # noqa: ANN401 - JSON
        """Host cost of a launch, in a separate process."""
        quick = self.options.quick
        words = ["benchmarks.gpu.live.costs", "--device", self.options.device]
        words += ["--blocks", "5" if quick else "15", "--calls", "1000" if quick else "1500"]
        if self.options.device == "cpu":
            words[-3:] = ["2", "--calls", "3", "--hidden", "64", "--intermediate", "96"]
        return self.child_json(words, limit_s=150)

    def mode(self, mode: str, folder: Path) -> None:
        """Everything about one way to decode."""
        options = self.options
        self.logs = mode, folder
        cores = Cores.choose(wide=options.device == "cuda")
        stage = Stage(
            folder, mode=mode, device=options.device, model=options.model,
            in_flight=options.in_flight,
        )  # fmt: skip
        with ExitStack() as stack:
            if self.part(f"{mode}: start", lambda: stage.start(stack, cores=cores.server)) is None:
                self.say(_tail(folder / "server.log") + _tail(folder / "control.log"))
                return
            self.part(f"{mode}: same batches", lambda: stage.exact(seed=7))
            # before the first profiler window: CUPTI stays in a process that had one
            straight = options.by_script or options.straight
            if not straight:
                self.part(f"{mode}: attached", lambda: self.attached(stage))
            for phase in () if straight else Phase:
                self.part(f"{mode}: trace of {phase}", partial(self.trace, stage, phase))
            if not options.no_loop:
                turn = Turn(
                    stage, say=self.say, part=self.part, cores=cores.lab, quick=options.quick,
                    left_s=lambda: self.left_s, requests=options.requests,
                    by_script=options.by_script,
                )  # fmt: skip
                turn.run(stack)
            self.part(f"{mode}: decode steps", stage.steps)
            self.part(f"{mode}: answers", lambda: stage.judged(most=150 if options.quick else 600))
        self.keep_logs(mode, folder)  # the daemon's last words come as it stops

    def keep_logs(self, mode: str, folder: Path) -> None:
        """Write the ends of the processes' logs beside the results, to explain failures."""
        names = ("server", "control", "daemon")
        text = "\n".join(f"--- {name}\n{_tail(folder / f'{name}.log', 300)}" for name in names)
        (self._out / f"logs-{mode}.txt").write_text(scrubbed(text) + "\n")

    def trace(self, stage: Stage, phase: Phase) -> Any:  # noqa: ANN401 - JSON
        """Publish one profiler window of a phase."""
        stage.play("server", phase, 2 * self.options.in_flight, seed=3)  # the traffic's own batches
        windows = stage.fresh_windows(phase, count=3, requests=self.options.requests)
        window = pick(windows, most_bytes=_TRACE_BYTES)
        if window is None:
            raise RuntimeError("no profiler window was written in time")
        target = self._out / "traces" / f"llama-{phase}-{stage.mode}.pt.trace.json.gz"
        return publish(window, target) | {"kernels": kernel_times(windows, KERNELS)}

    def attached(self, stage: Stage) -> Any:  # noqa: ANN401 - JSON
        """Tokens a second with Retuned attached and nothing swapped, beside the control."""
        sides = {"control": lambda: "control", "attached": lambda: "server"}
        blocks = 3 if self.options.quick else 8
        return [
            stage.rates(sides, phase, blocks=blocks, requests=self.options.requests)
            for phase in Phase
        ]


_METHOD = (
    "One machine; server, control and daemon are processes, asked over HTTP. The control is the "
    "same program with RETUNED_RUNTIME=off. Rates: the same list of requests on every side in "
    "turn, order turned round from block to block, medians, and the sign test's interval of 95 % "
    "of the ratio to the first side. Answers: see benchmarks/gpu/live/answers.py."
)


def machine() -> dict[str, Any]:
    """Return what this ran on, without names of hosts."""
    found: dict[str, Any] = {"python": sys.version.split()[0], "cores": os.cpu_count()}
    code = (
        "import json, torch, triton, transformers, importlib.metadata as m;"
        "print(json.dumps({'torch': torch.__version__, 'triton': triton.__version__,"
        "'transformers': transformers.__version__, 'liger_kernel': m.version('liger-kernel'),"
        "'gpu': torch.cuda.get_device_name(0) if torch.cuda.is_available() else None}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=180
    )
    if done.returncode == 0:
        found |= json.loads(done.stdout.splitlines()[-1])
    else:
        found["error"] = scrubbed(done.stderr[-800:])
    return found


def scrubbed(text: str) -> str:
    """Return a text without paths of this machine."""
    return re.sub(r"(?:/[\w.+@~-]+)+/([\w.+@~-]+)", r"\1", text)


def _tail(path: Path, lines: int = 15) -> str:
    if not path.exists():
        return ""
    return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="benchmarks.gpu.live", description=__doc__)
    parser.add_argument("--minutes", type=float, default=8.0, help="parts begin within these")
    parser.add_argument("--quick", action="store_true", help="fewer blocks")
    parser.add_argument("--modes", default="eager,graphs")
    parser.add_argument("--no-loop", action="store_true", help="serve, compare and trace only")
    parser.add_argument("--straight", action="store_true", help="no rates, no traces before drift")
    parser.add_argument("--by-script", action="store_true", help="swap without a daemon; no traces")
    parser.add_argument("--skip-costs", action="store_true")
    parser.add_argument("--skip-nodes", action="store_true")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--model", choices=("gpu", "tiny"))
    parser.add_argument("--in-flight", type=int, default=16)
    parser.add_argument("--requests", type=int, help="of one block")
    parser.add_argument("--name", default="gpu_live.json", help="of the file with the results")
    parser.add_argument("--keep", type=Path, help="keep state and logs in this folder")
    options = parser.parse_args(arguments)
    cpu = options.device == "cpu"
    options.model = options.model or ("tiny" if cpu else "gpu")
    options.requests = options.requests or (6 if cpu else 64)
    return options


def main(arguments: list[str], environment: Mapping[str, str]) -> int:
    """Run the parts that were asked for."""
    options = parse(arguments)
    out = Path(environment.get("OUT", "gpu-results")).resolve()
    out.mkdir(parents=True, exist_ok=True)
    show = Show(options, out)
    show.say(json.dumps(show.result["machine"]))
    show.write()
    if not options.skip_costs:
        show.part("launch costs", show.costs)
    if not options.skip_nodes and options.device == "cuda":
        words = ["tests.gpu.test_graphs_gpu"]
        show.part("node swaps", lambda: show.child_json(words, limit_s=150))
    kept = options.keep or Path(tempfile.mkdtemp(prefix="rt-"))
    try:
        for mode in options.modes.split(","):
            show.mode(mode, kept / mode)
    finally:
        show.write()
        if options.keep is None:
            shutil.rmtree(kept, ignore_errors=True)
    show.say(f"failed parts: {', '.join(show.failed) or 'none'}")
    return 1 if show.failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))

"""A plain PyTorch server with its own kernel, whose frozen choice was made bad on purpose.

    OUT=/tmp/out python -m benchmarks.gpu.plain_live --work /tmp/plain

The server runs a Triton product under ``@triton.autotune`` on GPU 0. Its autotuner was asked once,
at a warm-up size; its answer is replaced by one that is at least 20 % slower at the size that
traffic brings. The daemon finds the tunable, searches it on another GPU of the same model, and puts
a table in force after one approval. Blocks of three arms in random order: the bad choice, the
table, and the fastest configuration at the live size. Before, the server is measured under the
daemon's own order, with its shadow checks. ``OUT/plain.json`` has every number.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.gpu.vllm_live.load import interval
from benchmarks.gpu.vllm_live.server import Daemon
from benchmarks.gpu.vllm_live.toggles import Toggles

from retuned.runtime.artifacts.trust import SIGNATURE_FILE
from retuned.store.artifact_folder import MANIFEST

HERE = Path(__file__).resolve().parent
ROWS, WIDTH = 4096, 4096
BLOCK_S, ROUNDS = 1.0, 12
KERNEL = """

import triton
import triton.language as tl

CONFIGS = [
    triton.Config({"BM": m, "BN": n, "BK": k}, num_warps=w, num_stages=s)
    for m, n, k, w, s in (
        (16, 32, 32, 2, 2), (32, 32, 32, 4, 2), (64, 64, 32, 4, 3), (64, 128, 32, 4, 3),
        (128, 64, 32, 4, 3), (128, 128, 32, 8, 3), (128, 128, 64, 8, 3), (128, 256, 64, 8, 3),
    )
]

@triton.autotune(configs=CONFIGS, key=["N", "K"])
@triton.jit
def product(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for first in range(0, K, BK):
        left = tl.load(a + m[:, None] * K + first + k[None, :], mask=m[:, None] < M, other=0.0)
        right = tl.load(b + (first + k)[:, None] * N + n[None, :])
        total = tl.dot(left, right, total)
    tl.store(c + m[:, None] * N + n[None, :], total.to(tl.bfloat16), mask=m[:, None] < M)
"""


def serve(sockets: Path, folder: Path) -> None:
    """Serve requests on a thread; commands come in on stdin, one JSON line each."""
    import torch

    from retuned.runtime import attach

    (folder / "plain_server_kernels.py").write_text(KERNEL)
    sys.path.insert(0, str(folder))
    import plain_server_kernels as kernels  # type: ignore[import-not-found]

    runtime = attach(server="plain", socket_dir=sockets)
    runtime.tune_tables()
    weights = torch.randn(WIDTH, WIDTH, dtype=torch.bfloat16, device="cuda")

    def launch(rows: int) -> torch.Tensor:
        tokens = torch.randn(rows, WIDTH, dtype=torch.bfloat16, device="cuda")
        out = torch.empty(rows, WIDTH, dtype=torch.bfloat16, device="cuda")
        grid = lambda meta: (-(-rows // meta["BM"]), WIDTH // meta["BN"])  # noqa: E731
        kernels.product[grid](tokens, weights, out, rows, WIDTH, WIDTH)
        worst = (out.float() - (tokens @ weights).float()).abs().max() if rows == 64 else None
        assert worst is None or float(worst) < 2.0
        return out

    launch(64)  # the warm-up: the server asks the autotuner once
    key = next(iter(kernels.product.cache))
    asked_once = kernels.product.cache[key]
    served, stop = [0], threading.Event()

    def work() -> None:
        while not stop.is_set():
            for _ in range(8):
                launch(ROWS)
            torch.cuda.synchronize()
            served[0] += 1

    def timed(config: Any) -> float:  # noqa: ANN401 - a triton.Config
        """Time a configuration past the autotuner, microseconds a launch."""
        tokens = torch.randn(ROWS, WIDTH, dtype=torch.bfloat16, device="cuda")
        out = torch.empty_like(tokens)
        words = config.all_kwargs()
        grid = (-(-ROWS // words["BM"]), WIDTH // words["BN"])
        begin_s = 0.0
        for number in range(25):
            if number == 5:
                torch.cuda.synchronize()
                begin_s = time.perf_counter()
            kernels.product.fn[grid](tokens, weights, out, ROWS, WIDTH, WIDTH, **words)
        torch.cuda.synchronize()
        return 1e6 * (time.perf_counter() - begin_s) / 20

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        if request["op"] == "times":
            times = [timed(each) for each in kernels.CONFIGS]
            return {"us": times, "asked_once": kernels.CONFIGS.index(asked_once)}
        if request["op"] == "choose":
            kernels.product.cache[key] = kernels.CONFIGS[request["index"]]
            return {}
        if request["op"] == "start":
            threading.Thread(target=work, daemon=True).start()
            return {}
        first, begin_s = served[0], time.perf_counter()
        time.sleep(request["seconds"])
        return {"requests_per_s": (served[0] - first) / (time.perf_counter() - begin_s)}

    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)
    stop.set()
    runtime.close()


class Plain:
    """The server as its parent sees it."""

    def __init__(self, folder: Path) -> None:
        self.sockets = folder / "s"
        self.sockets.mkdir(parents=True)
        self.sockets.chmod(0o700)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.gpu.plain_live", "--serve", "--work", str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if line != "ready\n":
            raise RuntimeError(f"the server did not start: {line!r}")

    def ask(self, **request: object) -> dict[str, Any]:
        """Send a command; return its answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        found: dict[str, Any] = json.loads(self._process.stdout.readline())
        return found

    def stop(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)


def play(work: Path, results: dict[str, Any], *, until_s: float) -> None:
    """Play the story; results are added as they come."""
    begin_s = time.monotonic()
    timeline = results["timeline"] = []

    def note(what: str, **detail: object) -> None:
        timeline.append({"at_s": round(time.monotonic() - begin_s, 2), "what": what, **detail})
        print(timeline[-1], flush=True)

    server = Plain(work)
    daemon = Daemon(Path(sys.executable), server, work / "daemon", policy=HERE / "plain_live.yaml")  # type: ignore[arg-type]
    toggles = Toggles(server.sockets)
    try:
        times = server.ask(op="times")
        best = min(range(len(times["us"])), key=lambda index: times["us"][index])
        slow = [i for i, us in enumerate(times["us"]) if us >= 1.2 * times["us"][best]]
        bad = min(slow, key=lambda index: times["us"][index])
        results["choices"] = {**times, "best": best, "bad": bad}
        note("choices", **results["choices"])
        server.ask(op="choose", index=bad)
        server.ask(op="start")
        daemon.start()
        approved = False
        while time.monotonic() - begin_s < until_s - 60:
            listed = daemon.json("proposals") or {"proposals": []}
            for each in listed["proposals"]:
                if not approved:
                    status, said = daemon.command("approve", each["id"], "-m", "benchmark")
                    approved = status == 0
                    note("approve", proposal=each, status=status, said=said[-200:])
            tables = [each["table"] for each in toggles.report()["tunables"] if each["table"]]
            if tables and tables[0]["matched"] > 100:
                note("in force", tables=tables)
                break
            time.sleep(1.0)
        for seconds in (0, 5, 10):  # checks become fewer
            time.sleep(5.0 if seconds else 0.0)
            rate = server.ask(op="rate", seconds=5.0)
            note("under the daemon", **rate, after_s=seconds, checks=_checks(toggles))
        results["history"] = daemon.json("history", "--limit", "200")
        results["survey"] = daemon.command("survey", str(server.sockets))[1]
        daemon.stop()
        results["arms"] = arms(server, toggles, daemon, bad=bad, best=best, note=note)
    finally:
        results["daemon_log"] = daemon.tail(80)
        daemon.stop()
        server.stop()


def _checks(toggles: Toggles) -> list[Any]:
    return [each["table"]["checks"] for each in toggles.report()["tunables"] if each["table"]]


def arms(
    server: Plain,
    toggles: Toggles,
    daemon: Daemon,
    *,
    bad: int,
    best: int,
    note: Callable[..., None],
) -> dict[str, Any]:
    """Measure blocks of three arms in random order."""
    (manifest,) = (daemon.state / "lab" / "files").glob(f"*/{MANIFEST}")
    text = manifest.read_text("utf-8")
    signature = (manifest.parent / SIGNATURE_FILE).read_text("utf-8")
    toggles.on(text, signature=signature)  # the daemon's table, under an order that ends here
    chance, rows = random.Random(20261127), []
    for _ in range(ROUNDS):
        row = {}
        for arm in chance.sample(["bad", "table", "best"], 3):
            server.ask(op="choose", index=best if arm == "best" else bad)
            if arm == "table":
                toggles.on(text, signature=signature)
            else:
                toggles.off(json.loads(text)["tunable"])
            time.sleep(0.2)
            row[arm] = server.ask(op="rate", seconds=BLOCK_S)["requests_per_s"]
        rows.append(row)
    middle = {arm: statistics.median(row[arm] for row in rows) for arm in rows[0]}
    won = (middle["table"] - middle["bad"]) / (middle["best"] - middle["bad"])
    found = {
        "table": json.loads(text),
        "rows": rows,
        "median_requests_per_s": middle,
        "table_over_bad": interval([math.log(row["table"] / row["bad"]) for row in rows]),
        "table_over_best": interval([math.log(row["table"] / row["best"]) for row in rows]),
        "won_back": round(won, 4),
        "switching": toggles.summary(),
    }
    note("arms", **{k: v for k, v in found.items() if k != "rows"})
    return found


def main() -> int:
    """Run the server, or the story."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--work", type=Path, default=Path("/tmp/plain"))
    parser.add_argument("--serve", action="store_true")
    parser.add_argument("--until", type=float, default=300.0, help="seconds")
    options = parser.parse_args()
    if options.serve:
        serve(options.work / "s", options.work)
        return 0
    results: dict[str, Any] = {}
    try:
        play(options.work, results, until_s=options.until)
    except Exception:
        results["error"] = traceback.format_exc()
        print(results["error"])
    out = Path(os.environ.get("OUT", ".")) / "plain.json"
    out.write_text(json.dumps(results, indent=1, default=str))
    return int("error" in results)


if __name__ == "__main__":
    raise SystemExit(main())

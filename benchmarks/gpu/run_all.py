"""All that only a GPU can show, in one run; tests and demo each keep a limit.

    OUT=/tmp/out python benchmarks/gpu/run_all.py [--skip-tests] [--skip-demo]

Needs PyTorch and Triton for the GPU, pytest, and Retuned's dependencies on the path; Retuned itself
is taken from the source tree. Runs the tests marked ``gpu``, measures what a launch costs the host,
and runs ``retuned demo`` once. Everything goes into the folder that ``OUT`` names, eight files at
most; what failed is printed, and the exit status is 1 then.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TESTS_S = 170
DEMO_S = 540
_TAIL_LINES = 40
_TRACE_BYTES = 8 << 20


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--skip-tests", action="store_true")
    parser.add_argument("--skip-demo", action="store_true")
    options = parser.parse_args()
    out = Path(os.environ.get("OUT", "gpu-results")).resolve()
    out.mkdir(parents=True, exist_ok=True)
    failed = []
    if not options.skip_tests and not tests(out):
        failed.append("tests")
    try:
        costs = launch_costs()
    except (ImportError, RuntimeError) as error:
        costs = {"error": repr(error)}
        failed.append("launch costs")
    write(out / "launch_costs.json", costs)
    print(json.dumps({key: value for key, value in costs.items() if key != "raw_ns"}, indent=1))
    if not options.skip_demo and not demo(out):
        failed.append("demo")
    print(f"FAILED: {', '.join(failed)}" if failed else "all passed", flush=True)
    return 1 if failed else 0


def environment() -> dict[str, str]:
    """Return this process' variables, with the source tree first on the path."""
    rest = os.environ.get("PYTHONPATH", "")
    parts = [str(ROOT / "daemon"), str(ROOT), *([rest] if rest else [])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(parts), "PYTHONUNBUFFERED": "1"}


def run(words: Sequence[str], *, stdout: Path, stderr: Path, limit_s: float) -> int:
    """Run a child into files; 124 if it had to be ended."""
    with stdout.open("wb") as out, stderr.open("ab") as err:
        child = subprocess.Popen(words, stdout=out, stderr=err, cwd=ROOT, env=environment())
        try:
            return child.wait(limit_s)
        except subprocess.TimeoutExpired:
            child.terminate()
            try:
                child.wait(15)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
            return 124


def tests(out: Path) -> bool:
    """Run the tests marked gpu; print the end of what they said."""
    started_s = time.monotonic()
    words = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider"]
    words += ["-W", "default", "-rs", "--durations=8", "--tb=short"]
    words += ["tests/gpu", "tests/lab/test_gpu_lab.py"]
    log = out / "tests.txt"
    status = run(words, stdout=log, stderr=log, limit_s=TESTS_S)
    print(f"tests: exit {status} after {time.monotonic() - started_s:.0f} s", flush=True)
    print(tail(log), flush=True)
    return status == 0 and " passed" in tail(log, 1)  # all skipped is no success


def demo(out: Path) -> bool:
    """Run the demo on the GPU; keep its answer, its page, the logs, and one profiler window."""
    keep = Path("/tmp/retuned-gpu-demo")
    shutil.rmtree(keep, ignore_errors=True)
    keep.mkdir(mode=0o700)
    started_s = time.monotonic()
    words = [sys.executable, "-m", "retuned.cli", "demo", "--yes", "--json", "--device", "cuda"]
    words += ["--keep", str(keep), "--html", str(out / "demo.html")]
    status = run(words, stdout=out / "demo.json", stderr=out / "demo.txt", limit_s=DEMO_S)
    print(f"demo: exit {status} after {time.monotonic() - started_s:.0f} s", flush=True)
    with (out / "demo_logs.txt").open("w", encoding="utf-8") as logs:
        for path in sorted(keep.glob("*.log")):
            logs.write(f"--- {path.name}\n{tail(path, 300)}\n")
    windows = sorted((keep / "traces").glob("*.gz"), key=lambda path: path.stat().st_mtime)
    small = [path for path in windows if path.stat().st_size <= _TRACE_BYTES]
    if small:
        shutil.copy(small[len(small) // 2], out / "window.pt.trace.json.gz")
        print_window(out / "window.pt.trace.json.gz")
    print(tail(out / "demo.txt", 60), flush=True)
    if status == 0:
        body = json.loads((out / "demo.json").read_text(encoding="utf-8"))
        shown = ("requests", "tokens_per_s", "experiments", "swaps", "rollback", "machine")
        print(json.dumps({key: body.get(key) for key in shown}, indent=1)[:5000], flush=True)
    else:
        print(tail(out / "demo_logs.txt", 120), flush=True)
    return status == 0


def print_window(path: Path) -> None:
    """Say where the time of one profiler window went: to the GPU, or to Python."""
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    spans = [(e["ts"], e["ts"] + e["dur"]) for e in events if e.get("ph") == "X" and "dur" in e]
    kernels = [e for e in events if e.get("cat") == "kernel"]
    busy_us = sum(event["dur"] for event in kernels)
    span_us = max(end for _, end in spans) - min(start for start, _ in spans) if spans else 1.0
    share = busy_us / max(span_us, 1.0)
    print(f"one window: {len(kernels)} kernels, GPU busy {share:.0%} of {span_us / 1e3:.0f} ms")
    totals: dict[str, float] = {}
    for event in kernels:
        totals[event["name"][:60]] = totals.get(event["name"][:60], 0.0) + event["dur"]
    for name, total_us in sorted(totals.items(), key=lambda item: -item[1])[:12]:
        print(f"  {total_us / 1e3:9.2f} ms  {name}", flush=True)


def launch_costs(*, calls: int = 2000, blocks: int = 15) -> dict[str, Any]:
    """Measure what one launch costs the host: stock, prepared, and through slots; ns."""
    sys.path[:0] = [str(ROOT / "daemon")]
    import torch

    from retuned import catalog
    from retuned.contract import Language
    from retuned.demo.kernels import TritonIncumbent
    from retuned.runtime import attach
    from retuned.runtime.triton.launch import TritonKernel

    entry = catalog.get("rmsnorm_h2048", language=Language.TRITON)
    definition, solution = entry.definition, entry.incumbent
    kernel = TritonKernel(
        solution.sources[0].content,
        entry=solution.entry,
        params=solution.params,
        grid=solution.grid,
        tensors=[*definition.inputs, *definition.outputs],
        axes=list(definition.axes),
    )
    device = torch.device("cuda", 0)
    x, weight = torch.randn(4, 2048, device=device), torch.rand(2048, device=device)
    out, lengths = torch.empty_like(x), [4, 2048]
    kernel.launch([x, weight, out], lengths)
    ready = kernel.at(lengths, device=device)
    stock, args = (
        kernel._jit[(4,)],
        kernel.binding.arguments(lengths, tensors=[x, weight, out], scratch=None),
    )
    incumbent = TritonIncumbent(definition, solution, device="cuda")
    runtime = attach(server="bench")
    slot = runtime.slot(definition.model_dump(mode="json"), original=incumbent)
    operator = runtime.register_op(slot)
    stock_options = kernel._options
    subjects: dict[str, Callable[[], object]] = {
        "stock launch": lambda: stock(*args, **stock_options),
        "prepared launch": lambda: ready((x, weight, out)),
        "incumbent": lambda: incumbent(x, weight),
        "incumbent behind a slot": lambda: slot(x, weight),
        "incumbent behind a slot and an operator": lambda: operator(x, weight),
        "torch.empty on the device": lambda: torch.empty((4, 2048), device=device),
    }
    raw: dict[str, list[float]] = {name: [] for name in subjects}
    with torch.inference_mode():
        for _ in range(blocks):
            for name, call in subjects.items():
                torch.cuda.synchronize()
                start_ns = time.perf_counter_ns()
                for _ in range(calls):
                    call()
                raw[name].append((time.perf_counter_ns() - start_ns) / calls)
    runtime.close()
    return {
        "device": torch.cuda.get_device_name(0),
        "torch": torch.__version__,
        "method": f"median of {blocks} interleaved blocks of {calls} calls, wall clock, host",
        "median_ns": {name: round(statistics.median(values)) for name, values in raw.items()},
        "raw_ns": raw,
    }


def tail(path: Path, lines: int = _TAIL_LINES) -> str:
    """Return the end of a file."""
    if not path.exists():
        return ""
    return "\n".join(path.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])


def write(path: Path, body: dict[str, Any]) -> None:
    """Write JSON."""
    path.write_text(json.dumps(body, indent=1), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())

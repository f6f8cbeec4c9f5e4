"""All that only a GPU can show, in one run; tests and demo each keep a limit.

    OUT=/tmp/out python benchmarks/gpu/run_all.py [--skip-tests] [--skip-demo]

Needs PyTorch and Triton for the GPU, pytest, and Retuned's dependencies on the path; Retuned itself
is taken from the source tree. Runs the tests marked ``gpu``, measures what a launch costs the host
and how long steps of the demo's model take, and runs ``retuned demo`` once. Everything goes into
the folder that ``OUT`` names; what failed is printed, and the exit status is 1 then.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TESTS_S = 580
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
    steps = decode_steps()
    write(out / "demo_steps.json", steps)
    print(json.dumps(steps), flush=True)
    print(
        json.dumps(
            {key: value for key, value in costs.items() if not key.startswith("raw")}, indent=1
        )
    )
    if not options.skip_demo and not demo(out):
        failed.append("demo")
    print(f"FAILED: {', '.join(failed)}" if failed else "all passed", flush=True)
    return 1 if failed else 0


def environment() -> dict[str, str]:
    """Return this process' variables, with the source tree first on the path."""
    rest = os.environ.get("PYTHONPATH", "")
    bench = ROOT / "benchmarks" / "retuned_bench"
    parts = [str(ROOT / "daemon"), str(ROOT), str(bench), *([rest] if rest else [])]
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
    return status == 0 and " passed" in tail(log, 1)  # all skipped does not count as success


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
            logs.write(f"--- {path.name}\n{tail(path, 3000)}\n")
    windows = sorted((keep / "traces").glob("*.gz"), key=lambda path: path.stat().st_mtime)
    small = [path for path in windows if path.stat().st_size <= _TRACE_BYTES]
    if small:
        shutil.copy(small[-1], out / "window.pt.trace.json.gz")
        print_window(out / "window.pt.trace.json.gz")
    for path in (keep / "state").glob("state.sqlite3*"):
        (out / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
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
    """Measure what one launch costs the host: stock, prepared, through slots, and swapped; ns."""
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
    with torch.inference_mode():
        unswapped = _interleaved(subjects, calls=calls, blocks=blocks)
        with tempfile.TemporaryDirectory() as folder:
            swap_in(runtime, entry, Path(folder))
            for name in ("incumbent behind a slot", "incumbent behind a slot and an operator"):
                subjects[name.replace("incumbent", "swapped")] = subjects.pop(name)
            swapped = _interleaved(subjects, calls=calls, blocks=blocks)
    (sample,) = runtime._host.answer({"op": "samples"})["samples"]
    runtime.close()
    return {
        "device": torch.cuda.get_device_name(0),
        "torch": torch.__version__,
        "method": f"median of {blocks} interleaved blocks of {calls} calls, wall clock, host; the "
        "swapped variant is the incumbent's own kernel, so that only the way to it differs",
        "swapped_launches": sample["swapped_launches"],
        "median_ns": {name: round(statistics.median(values)) for name, values in unswapped.items()},
        "median_ns_swapped": {
            name: round(statistics.median(values)) for name, values in swapped.items()
        },
        "raw_ns": unswapped,
        "raw_ns_swapped": swapped,
    }


def _interleaved(
    subjects: Mapping[str, Callable[[], object]], *, calls: int, blocks: int
) -> dict[str, list[float]]:
    """Return nanoseconds a call, one number for each block; the blocks of subjects take turns."""
    import torch

    raw: dict[str, list[float]] = {name: [] for name in subjects}
    for _ in range(blocks):
        for name, call in subjects.items():
            torch.cuda.synchronize()
            start_ns = time.perf_counter_ns()
            for _ in range(calls):
                call()
            raw[name].append((time.perf_counter_ns() - start_ns) / calls)
    return raw


def swap_in(runtime: Any, entry: Any, folder: Path) -> None:  # noqa: ANN401 - Runtime, KernelEntry
    """Swap the incumbent's own source into its slot, by the ordinary way."""
    from retuned.lab.languages.triton_contract import manifest_of

    definition, solution = entry.definition, entry.incumbent
    binary = solution.sources[0].content.encode()
    digest = "sha256:" + hashlib.sha256(binary + solution.digest.encode()).hexdigest()
    manifest = {
        "digest": digest,
        "definition": definition.model_dump(mode="json"),
        "language": "triton",
        "entry": solution.entry,
        "params": dict(solution.params),
        "grid": list(solution.grid),
        "binary": "kernel.py",
        "binary_sha256": hashlib.sha256(binary).hexdigest(),
        **manifest_of(solution),
    }
    (folder / "kernel.py").write_bytes(binary)
    write(folder / "artifact.json", manifest)
    order = {
        **{"id": "order", "kind": "swap", "proposal": "proposal", "target": "bench"},
        **{"definition": definition.name, "artifact": digest, "previous": None, "epoch": 1},
        **{"guard": {"bounds": {"M": [1, 512]}}, "shadow_every": 10**6, "shadow_tolerance": 1e-3},
    }
    for op, more in (("prepare", {"artifact_dir": str(folder)}), ("commit", {})):
        answer = runtime._host.answer({"op": op, "order": order, **more})
        if answer.get("refused"):
            raise RuntimeError(f"{op}: {answer}")


def decode_steps(*, sequences: int = 4, steps: int = 60, blocks: int = 8) -> dict[str, Any]:
    """Time steps of the demo's GPU model: decode eager and in graphs, and a prefill of 1,024."""
    import torch

    from retuned.demo.batches import Chunk
    from retuned.demo.decode import gpu_decoding
    from retuned.demo.kernels import slotted_operators
    from retuned.demo.model import DecoderModel
    from retuned.demo.shapes import SHAPES
    from retuned.runtime import attach

    shape, runtime = SHAPES["gpu"], attach(server="bench-steps")
    with tempfile.TemporaryDirectory() as folder:
        operators = slotted_operators(
            shape, runtime, cache_dir=Path(folder), device="cuda"
        ).operators
        model = DecoderModel(
            shape, operators, max_sequences=8, device="cuda", decoding=gpu_decoding()
        )
        caches = [model.new_cache() for _ in range(sequences)]
        prompt = list(range(1000))

        def start() -> list[int]:
            answers = []
            for cache in caches:
                cache.clear()
                answers += model.forward([Chunk(prompt, cache, True)])
            return answers

        captured = model._captured
        times: dict[str, list[float]] = {}
        answers: dict[str, list[tuple[int, ...]]] = {}
        prefill: list[float] = []
        for block in range(blocks):
            for name, graphs in (("graphs", captured), ("eager", None)):
                model._captured = graphs
                tokens = start()
                torch.cuda.synchronize()
                begun_s = time.perf_counter()
                said = []
                for _ in range(steps):
                    chunks = [Chunk([t], c, True) for t, c in zip(tokens, caches, strict=True)]
                    tokens = model.forward(chunks)
                    said.append(tuple(tokens))
                times.setdefault(name, []).append((time.perf_counter() - begun_s) / steps * 1e3)
                answers[name] = said
                begun_s = time.perf_counter()
                start()
                if block:
                    prefill.append((time.perf_counter() - begun_s) / sequences * 1e3)
    runtime.close()
    equal = sum(a == b for a, b in zip(answers["graphs"], answers["eager"], strict=True))
    return {
        "decode_ms": times,
        "prefill_1000_ms": prefill,
        "steps_with_equal_tokens": f"{equal} of {steps}",
        "method": f"{sequences} sequences after prompts of 1,000 tokens, {blocks} interleaved "
        f"blocks of {steps} steps, wall clock; one prompt alone in a step of prefill",
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

"""Host cost of a slot call against the plain call, unswapped and swapped, and of a flip.

    python benchmarks/slots.py [--blocks 200] [--calls 2000] [--core 0]

Everything compared is interleaved: a block times each subject once, in a new random order, so that
a busy neighbour affects all of them. The report has medians over blocks, with an interval of 95 %
by order statistics, and the same for the difference to the subject's plain call within each block.
The clock is the thread's processor time. Raw block times are in benchmarks/results/slots.json.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import platform
import random
import re
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from retuned.runtime import Runtime, attach
from retuned.runtime.native.cpu import CpuKernel
from retuned.runtime.native.memory import repack

RESULT = Path(__file__).parent / "results" / "slots.json"
BUDGET_US = 0.7
N, K = 8, 8
SOURCE = """
#include <cstdint>
extern "C" void copy(void* const* t, const int64_t* axes, void*, int64_t, int64_t) {
  const float* x = (const float*)t[0];
  float* y = (float*)t[3];
  for (int64_t i = 0; i < axes[0] * axes[1]; i++) y[i] = x[i];
}
"""

Tensor = Any


def definition(name: str, *, axes: int = 1, constant: bool = True) -> dict[str, Any]:
    variable = ["M", "S"][:axes]
    shape = [*variable, "K"]
    return {
        "name": name,
        "op_type": f"bench_{name}",
        "axes": {axis: {"type": "var"} for axis in variable}
        | {"N": {"type": "const", "value": N}, "K": {"type": "const", "value": K}},
        "inputs": {
            "x": {"shape": shape, "dtype": "float32"},
            "wq": {"shape": ["N", "K"], "dtype": "int8", "constant": constant},
            "scale": {"shape": ["N"], "dtype": "float32", "constant": constant},
        },
        "outputs": {"y": {"shape": [*variable, "N"], "dtype": "float32"}},
    }


def plain(x: Tensor, wq: Tensor, scale: Tensor) -> Tensor:
    """Do nothing, as no kernel does: what is left is the call."""
    return x


def small(x: Tensor, wq: Tensor, scale: Tensor) -> Tensor:
    """Make a small tensor: an operator may not return its input."""
    return scale.new_empty(1)


def order(digest: str | None, epoch: int, name: str) -> dict[str, Any]:
    return {
        "id": f"{name}-{epoch}",
        "kind": "swap" if digest else "rollback",
        "definition": name,
        "artifact": digest,
        "previous": None,
        "guard": {"bounds": {"M": [1, 8]}},
        "epoch": epoch,
        "shadow_every": 10**9,
        "shadow_tolerance": 1.0,
    }


def deliver(folder: Path, name: str) -> tuple[str, Path]:
    """Compile a kernel that only copies and make its artifact folder."""
    (folder / "copy.cpp").write_text(SOURCE)
    library = folder / "kernel.so"
    subprocess.run(
        ["g++", "-O2", "-shared", "-fPIC", "-o", str(library), str(folder / "copy.cpp")],
        check=True,
    )
    digest = "sha256:" + hashlib.sha256(name.encode()).hexdigest()
    manifest = {
        "digest": digest,
        "definition": definition(name),
        "language": "cpu_cpp",
        "entry": "copy",
        "layouts": {"wq": "panels-8"},
        "scratch_bytes": 0,
        "parts": 1,
        "binary": "kernel.so",
        "binary_sha256": hashlib.sha256(library.read_bytes()).hexdigest(),
    }
    (folder / "artifact.json").write_text(json.dumps(manifest))
    return digest, library


def called_directly(library: Path) -> Callable[..., Any]:
    """Return the kernel as a server without slots calls it: the baseline of the swapped slot."""
    kernel = CpuKernel(library, "copy", tensors=4, axes=3)
    packed: dict[int, Any] = {}

    def launch(x: Tensor, wq: Tensor, scale: Tensor) -> Tensor:
        ready = packed.get(wq.data_ptr())
        if ready is None:
            ready = packed[wq.data_ptr()] = repack(wq, "panels-8")
        y = torch.empty((x.shape[0], N), dtype=torch.float32)
        kernel.launch(
            (x.data_ptr(), ready.data_ptr(), scale.data_ptr(), y.data_ptr()), (x.shape[0], N, K)
        )
        return y

    return launch


class Swapping:
    """A slot swapped to the kernel that its original also calls, by the ordinary way."""

    def __init__(self, runtime: Runtime, folder: Path, *, name: str) -> None:
        self._host = runtime._host
        self._folder = folder
        self.name = name
        self.digest, library = deliver(folder, name)
        self.direct = called_directly(library)
        self.slot = runtime.slot(definition(name), self.direct)

    def swap(self, inputs: tuple[Any, ...]) -> None:
        """Show the slot its weights, prepare and commit."""
        self.slot(*inputs)
        request = {"op": "prepare", "order": order(self.digest, 1, self.name)}
        self._host.answer(request | {"artifact_dir": str(self._folder)})
        self.commit(self.digest, 1)

    def commit(self, digest: str | None, epoch: int) -> int:
        """Carry an order out; return the time of the flip, ns."""
        body = order(digest, epoch, self.name)
        return int(self._host.answer({"op": "commit", "order": body})["flip_ns"])

    def launches(self) -> int:
        """Return how many launches ran the artifact, none of them in trouble.

        Raises
        ------
        RuntimeError
            If the slot did not run what was to be measured.
        """
        samples = self._host.answer({"op": "samples"})["samples"]
        sample = next(s for s in samples if s["definition"] == self.name)
        if sample["tripped"] or sample["errors"] or sample["ineligible_launches"]:
            raise RuntimeError(f"the swapped slot did not run its kernel: {sample}")
        return int(sample["swapped_launches"])


def per_call_ns(function: Callable[..., Any], inputs: tuple[Any, ...], calls: int) -> float:
    first, second, third = inputs
    start = time.thread_time_ns()
    for _ in range(calls):
        function(first, second, third)
    return (time.thread_time_ns() - start) / calls


def interval(values: Sequence[float]) -> dict[str, float]:
    """Median with an interval of 95 % from order statistics."""
    ordered = sorted(values)
    half = 0.98 * math.sqrt(len(ordered))
    middle = len(ordered) / 2
    low = ordered[max(0, math.floor(middle - half))]
    high = ordered[min(len(ordered) - 1, math.ceil(middle + half))]
    return {"median": statistics.median(ordered), "low": low, "high": high}


def measure_blocks(
    subjects: dict[str, Callable[..., Any]],
    inputs: dict[str, tuple[Any, ...]],
    *,
    blocks: int,
    calls: int,
) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in subjects}
    source = random.Random(0)
    with torch.inference_mode():
        for name, function in subjects.items():
            per_call_ns(function, inputs[name], calls)
        for _ in range(blocks):
            for name in source.sample(list(subjects), len(subjects)):
                times[name].append(per_call_ns(subjects[name], inputs[name], calls))
    return times


def measure_flips(swapping: Swapping, inputs: tuple[Any, ...], flips: int) -> dict[str, Any]:
    """Time commits to and fro, with as many known shapes as a busy slot has."""
    for rows in range(1, 513):
        swapping.slot(torch.zeros(rows, K), *inputs[1:])
    times: dict[str, list[float]] = {"swap": [], "rollback": []}
    for epoch in range(2, 2 + flips):
        forward = epoch % 2 == 1
        took_ns = swapping.commit(swapping.digest if forward else None, epoch)
        times["swap" if forward else "rollback"].append(took_ns / 1000)
    return {"known_shapes": 512, "us": {name: interval(v) for name, v in times.items()}}


def processor() -> str:
    found = re.findall(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.M)
    return found[0] if found else platform.processor()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=200)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--flips", type=int, default=400)
    parser.add_argument("--core", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    os.sched_setaffinity(0, {options.core})
    torch.set_num_threads(1)
    runtime = attach(server="benchmark")
    with tempfile.TemporaryDirectory() as name:
        report = run(runtime, Path(name), options)
    runtime.close()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(report, indent=1) + "\n")
    show(report)


def run(runtime: Runtime, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    x, wq, scale = torch.zeros(4, K), torch.ones(N, K, dtype=torch.int8), torch.ones(N)
    flat = (x, wq, scale)
    cube = (torch.zeros(4, 16, K), wq, scale)
    one = runtime.slot(definition("one", constant=False), plain)
    weighted = runtime.slot(definition("weighted"), plain)
    two = runtime.slot(definition("two", axes=2, constant=False), plain)
    swapping = Swapping(runtime, folder, name="swapped")
    swapping.swap(flat)
    bare = torch.library.Library("retuned_bench", "DEF")
    bare.define("bare(Tensor x, Tensor wq, Tensor scale) -> Tensor")
    bare.impl("bare", small, "CPU")
    opaque = runtime.slot(definition("opaque"), small)
    operator = runtime.register_op(opaque)
    subjects: dict[str, Callable[..., Any]] = {
        "plain call": plain,
        "slot, one axis": one,
        "slot, one axis and weights": weighted,
        "slot, two axes": two,
        "kernel called directly": swapping.direct,
        "kernel through a swapped slot": swapping.slot,
        "operator without a slot": torch.ops.retuned_bench.bare.default,
        "operator with a slot": operator,
    }
    inputs = dict.fromkeys(subjects, flat) | {"slot, two axes": cube}
    times = measure_blocks(subjects, inputs, blocks=options.blocks, calls=options.calls)
    expected = (options.blocks + 1) * options.calls
    if swapping.launches() != expected:
        raise RuntimeError(f"{swapping.launches()} swapped launches instead of {expected}")
    against = {
        "slot, one axis": "plain call",
        "slot, one axis and weights": "plain call",
        "slot, two axes": "plain call",
        "kernel through a swapped slot": "kernel called directly",
        "operator with a slot": "operator without a slot",
    }
    over = {
        name: interval([a - b for a, b in zip(times[name], times[base], strict=True)])
        | {"against": base}
        for name, base in against.items()
    }
    return {
        "machine": {"cpu": processor(), "cores": os.cpu_count()},
        "software": {"python": platform.python_version(), "torch": torch.__version__},
        "method": {
            "clock": "thread processor time",
            "blocks": options.blocks,
            "calls_per_block": options.calls,
            "interval": "95 % by order statistics over blocks, subjects in random order per block",
        },
        "budget_us": BUDGET_US,
        "call_ns": {name: interval(values) for name, values in times.items()},
        "over_ns": over,
        "flip": measure_flips(swapping, flat, options.flips),
        "raw_ns": {name: [round(value, 1) for value in values] for name, values in times.items()},
    }


def show(report: dict[str, Any]) -> None:
    for name, cost in report["call_ns"].items():
        line = f"{name:32s} {cost['median']:8.0f} ns [{cost['low']:.0f}, {cost['high']:.0f}]"
        over = report["over_ns"].get(name)
        if over:
            line += f"   {over['median']:+6.0f} ns [{over['low']:+.0f}, {over['high']:+.0f}]"
            line += f" over {over['against']}"
        print(line)
    for name, cost in report["flip"]["us"].items():
        print(f"{name:32s} {cost['median']:8.1f} us [{cost['low']:.1f}, {cost['high']:.1f}]")
    worst = max(v["high"] for n, v in report["over_ns"].items() if n.startswith("slot"))
    verdict = "within" if worst <= 1000 * report["budget_us"] else "OVER"
    print(f"unswapped slots cost at most {worst:.0f} ns: {verdict} {report['budget_us']} us")


if __name__ == "__main__":
    main()

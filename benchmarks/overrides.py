"""Host cost of a launch through an operator that is taken over, and of taking one over.

    python -m benchmarks.overrides [--blocks 200] [--calls 1000] [--core 0] [--out FILE]

Two operators with the schemas of vLLM's, their kernels in C++ as the server's are: one writes to a
separate output (`rms_norm`), one writes over its inputs (`fused_add_rms_norm`). Both normalise one
row of 16 numbers, so that the call itself is measured. Of each:

- `stock`: without an override;
- `passed`: a Python function that only calls the original, the least that an override costs;
- `counted`: a slot behind it, nothing swapped;
- `swapped`: a C++ variant in force, no checks.

PyTorch has one override an operator, so each block installs one, warms up and times it; subjects
come in a new random order, and every block times all of them. Reported is the median over blocks
with an interval of 95 % by order statistics, and the same for the difference to `stock` within
blocks. The clock is the thread's processor time. Taking over and giving back is timed by itself,
once a block. Raw numbers are in benchmarks/results/overrides.json.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from benchmarks.slots import interval, processor
from torch.utils import cpp_extension

from retuned import catalog
from retuned.runtime import attach
from retuned.runtime.plugins.operators_table import VLLM
from retuned.runtime.torch_ops.binding import Binding
from retuned.runtime.torch_ops.override import Override, find

RESULT = Path(__file__).parent / "results" / "overrides.json"
BUDGET_US = 0.7
WIDTH = 16
STOCK = r"""
#include <cmath>
#include <torch/library.h>
#include <ATen/core/Tensor.h>
static void normalise(float* y, const float* x, const float* w, int64_t rows, int64_t width) {
  for (int64_t m = 0; m < rows; m++) {
    float sum = 0;
    for (int64_t h = 0; h < width; h++) sum += x[m * width + h] * x[m * width + h];
    float scale = 1 / std::sqrt(sum / width + 1e-6f);
    for (int64_t h = 0; h < width; h++) y[m * width + h] = x[m * width + h] * scale * w[h];
  }
}
void rms_norm(at::Tensor& out, const at::Tensor& x, const std::optional<at::Tensor>& w, double) {
  normalise(out.mutable_data_ptr<float>(), x.const_data_ptr<float>(), w->const_data_ptr<float>(),
            x.size(0), x.size(1));
}
void added(at::Tensor& x, at::Tensor& r, const std::optional<at::Tensor>& w, double) {
  float *a = x.mutable_data_ptr<float>(), *b = r.mutable_data_ptr<float>();
  for (int64_t i = 0; i < x.numel(); i++) b[i] += a[i];
  normalise(a, b, w->const_data_ptr<float>(), x.size(0), x.size(1));
}
TORCH_LIBRARY(_C, m) {
  m.def("rms_norm(Tensor! result, Tensor input, Tensor? weight, float epsilon) -> ()");
  m.def("fused_add_rms_norm(Tensor! input, Tensor! residual, Tensor? weight, float epsilon)"
        " -> ()");
}
TORCH_LIBRARY_IMPL(_C, CPU, m) {
  m.impl("rms_norm", &rms_norm);
  m.impl("fused_add_rms_norm", &added);
}
"""
VARIANT = r"""
#include <cmath>
#include <cstdint>
static void normalise(float* y, const float* x, const float* w, int64_t rows, int64_t width) {
  for (int64_t m = 0; m < rows; m++) {
    float sum = 0;
    for (int64_t h = 0; h < width; h++) sum += x[m * width + h] * x[m * width + h];
    float scale = 1 / std::sqrt(sum / width + 1e-6f);
    for (int64_t h = 0; h < width; h++) y[m * width + h] = x[m * width + h] * scale * w[h];
  }
}
extern "C" void rmsnorm(void* const* t, const int64_t* a, void*, int64_t, int64_t) {
  normalise((float*)t[2], (float*)t[0], (float*)t[1], a[0], a[1]);
}
extern "C" void add_rmsnorm(void* const* t, const int64_t* a, void*, int64_t, int64_t) {
  float *x = (float*)t[0], *r = (float*)t[1], *sum = (float*)t[4];
  for (int64_t i = 0; i < a[0] * a[1]; i++) sum[i] = x[i] + r[i];
  normalise((float*)t[3], sum, (float*)t[2], a[0], a[1]);
}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One operator with arguments."""

    binding: Binding
    definition: str
    arguments: tuple[Any, ...]
    operator: Any


def compiled(folder: Path, source: str, name: str, *flags: str) -> Path:
    """Compile a shared object."""
    (folder / f"{name}.cpp").write_text(source)
    target = folder / f"{name}.so"
    command = ["g++", "-O2", "-std=c++20", "-shared", "-fPIC", "-o", str(target)]
    subprocess.run([*command, str(folder / f"{name}.cpp"), *flags], check=True)
    return target


def cases(folder: Path) -> list[Case]:
    """Load the operators."""
    includes = [f"-I{path}" for path in cpp_extension.include_paths()]
    libraries = [f"-L{path}" for path in cpp_extension.library_paths()]
    stock = compiled(folder, STOCK, "stock", *includes, *libraries, "-ltorch_cpu", "-lc10")
    torch.ops.load_library(str(stock))
    x, weight = torch.randn(1, WIDTH), torch.ones(WIDTH)
    bound = {binding.operator: binding for binding in VLLM}
    given = {
        "_C::rms_norm": ("rmsnorm_h16", (torch.empty_like(x), x, weight, 1e-6)),
        "_C::fused_add_rms_norm": (
            "add_rmsnorm_h16",
            (x.clone(), torch.zeros_like(x), weight, 1e-6),
        ),
    }
    return [
        Case(binding=bound[name], definition=definition, arguments=args, operator=find(name))
        for name, (definition, args) in given.items()
    ]


def deliver(folder: Path, binary: bytes, definition: str) -> tuple[str, Path]:
    """Make the artifact folder of a variant."""
    about = catalog.get(definition).definition
    digest = "sha256:" + hashlib.sha256(definition.encode()).hexdigest()
    place = folder / definition
    place.mkdir(exist_ok=True)
    (place / "kernel.so").write_bytes(binary)
    manifest = {
        "digest": digest,
        "definition": about.model_dump(mode="json"),
        "language": "cpu_cpp",
        "entry": about.op_type,
        "binary": "kernel.so",
        "binary_sha256": hashlib.sha256(binary).hexdigest(),
    }
    (place / "artifact.json").write_text(json.dumps(manifest))
    return digest, place


@contextmanager
def stock(_: Case) -> Iterator[None]:
    """Leave the operator alone."""
    yield


@contextmanager
def passed(case: Case) -> Iterator[None]:
    """Only pass on."""
    override = Override(
        case.operator, "CPU", lambda original: lambda keyset, *args: original(keyset, *args)
    )
    yield
    override.destroy()


@contextmanager
def counted(case: Case) -> Iterator[None]:
    """Put a slot behind the operator."""
    runtime = attach(server="benchmark")
    if runtime.override(case.binding)[f"{case.binding.operator}/CPU"] != "on":
        raise RuntimeError("the operator cannot be taken over")
    yield
    runtime.close()


def swapping(artifacts: dict[str, tuple[str, Path]]) -> Callable[[Case], Any]:
    """Return what swaps a variant in."""

    @contextmanager
    def swapped(case: Case) -> Iterator[None]:
        runtime = attach(server="benchmark")
        runtime.override(case.binding)
        case.operator(*case.arguments)
        digest, folder = artifacts[case.definition]
        order: dict[str, Any] = {
            "id": "order",
            "kind": "swap",
            "definition": case.definition,
            "artifact": digest,
            "previous": None,
            "guard": {"bounds": {}},
            "epoch": 1,
            "shadow_every": 10**9,
            "shadow_tolerance": 1e-2,
        }
        host = runtime._host
        host.answer({"op": "prepare", "order": order, "artifact_dir": str(folder)})
        host.answer({"op": "commit", "order": order})
        yield
        (sample,) = host.answer({"op": "samples"})["samples"]
        if sample["tripped"] or sample["errors"] or sample["ineligible_launches"]:
            raise RuntimeError(f"the variant did not run: {sample}")
        runtime.close()

    return swapped


def per_call_ns(case: Case, calls: int) -> float:
    operator, args = case.operator, case.arguments
    start = time.thread_time_ns()
    for _ in range(calls):
        operator(*args)
    return (time.thread_time_ns() - start) / calls


def reset(case: Case) -> None:
    """Put operands that are written over back to ordinary numbers: none may become infinite."""
    for value in case.arguments[:2]:
        value.fill_(0.5)


def round_trip_us(case: Case) -> float:
    start = time.perf_counter_ns()
    with passed(case):
        pass
    return (time.perf_counter_ns() - start) / 1e3


def main() -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=200)
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--core", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    os.sched_setaffinity(0, {options.core})
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name, torch.inference_mode():
        report = run(Path(name), blocks=options.blocks, calls=options.calls)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(report, indent=1) + "\n")
    show(report)


def run(folder: Path, *, blocks: int, calls: int) -> dict[str, Any]:
    """Time every subject in every block."""
    binary = compiled(folder, VARIANT, "variant").read_bytes()
    artifacts = {
        definition: deliver(folder, binary, definition)
        for definition in ("rmsnorm_h16", "add_rmsnorm_h16")
    }
    ways = {
        "stock": stock,
        "passed": passed,
        "counted": counted,
        "swapped": swapping(artifacts),
    }
    subjects = [(case, way) for case in cases(folder) for way in ways]
    raw: dict[str, list[float]] = {f"{c.binding.operator} {way}": [] for c, way in subjects}
    trips: list[float] = []
    source = random.Random(0)
    for block in range(blocks + 1):
        for case, way in source.sample(subjects, len(subjects)):
            reset(case)
            with ways[way](case):
                per_call_ns(case, calls // 10 + 5)
                found = per_call_ns(case, calls)
            if block:  # the first warms up
                raw[f"{case.binding.operator} {way}"].append(found)
        trips.append(round_trip_us(subjects[0][0]))
    return {
        "method": (__doc__ or "").strip(),
        "machine": {
            "cpu": processor(),
            "cores": os.cpu_count(),
            "load_1min": round(os.getloadavg()[0], 2),
        },
        "software": {"torch": torch.__version__},
        "budget_us": BUDGET_US,
        "call_ns": {name: interval(values) for name, values in raw.items()},
        "over_stock_ns": {
            name: interval(
                [a - b for a, b in zip(values, raw[f"{name.split()[0]} stock"], strict=True)]
            )
            for name, values in raw.items()
            if not name.endswith("stock")
        },
        "take_over_and_give_back_us": interval(trips[1:]),
        "raw_ns": {name: [round(value, 1) for value in values] for name, values in raw.items()},
        "raw_take_over_us": [round(value, 2) for value in trips[1:]],
    }


def show(report: dict[str, Any]) -> None:
    """Print the medians."""
    for name, cost in report["call_ns"].items():
        line = f"{name:36s} {cost['median']:8.0f} ns [{cost['low']:.0f}, {cost['high']:.0f}]"
        over = report["over_stock_ns"].get(name)
        if over:
            line += f"   {over['median']:+7.0f} ns [{over['low']:+.0f}, {over['high']:+.0f}]"
        print(line)
    trip = report["take_over_and_give_back_us"]
    print(
        f"take over and give back {trip['median']:.1f} us [{trip['low']:.1f}, {trip['high']:.1f}]"
    )


if __name__ == "__main__":
    main()

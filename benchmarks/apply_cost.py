"""Host cost of a call through Retuned's slots and through FlashInfer-Bench's `apply()`, in one run.

    pip download --no-deps -d wheels flashinfer-bench==0.1.2
    pip download --no-deps -d wheels safetensors docstring-parser apache-tvm-ffi
    python -m benchmarks.apply_cost --wheels wheels [--device cuda] [--blocks 200] [--calls 500]

Both are asked the same: call the implementation that was found best for these lengths, and else the
server's own. The implementation is one function, which allocates the output and launches a kernel;
what a dispatcher costs is the difference to calling that function, within each block. On a CPU the
kernel is C++ that copies 32 numbers, on a GPU the RMSNorm of the catalog in Triton with 4 rows.
FlashInfer-Bench gets it as a Python solution with a passing trace; Retuned gets a swapped artifact
of the same source, launched as its runtime launches every artifact.

Of FlashInfer-Bench everything runs as it is in the wheel, but the module `flashinfer` is an empty
one: it is imported to patch its own functions, which nothing here calls.

Everything is interleaved in blocks, in a new random order; medians with intervals of 95 % by order
statistics; the clock is the thread's processor time. On a GPU, the wait for the device is outside.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib
import json
import os
import platform
import random
import sys
import tempfile
import time
import types
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from benchmarks.slots import Swapping, definition, interval, processor

from retuned import catalog
from retuned.contract import Language
from retuned.demo.kernels import TritonIncumbent
from retuned.lab.languages.triton_contract import manifest_of
from retuned.runtime import Runtime, attach

RESULTS = Path(__file__).parent / "results"
SHARED = "retuned_apply_cost"
"""Module by which FlashInfer-Bench's solution finds the implementation."""
SOLUTION = f"""from {SHARED} import implementation


def run(*inputs):
    return implementation(*inputs)
"""
FREE_ROWS = 9
"""A length that neither dispatcher has a winner for: outside the guard, and in no trace."""


class OnGpu:
    """A slot swapped to a Triton kernel that its original also launches."""

    name = "rmsnorm_h2048"

    def __init__(self, runtime: Runtime, folder: Path) -> None:
        entry = catalog.get(self.name, language=Language.TRITON)
        self.body = entry.definition.model_dump(mode="json")
        self.direct = TritonIncumbent(entry.definition, entry.incumbent, device="cuda")
        self.slot = runtime.slot(self.body, original=self.direct)
        self._host = runtime._host
        source = entry.incumbent.sources[0].content.encode()
        self.digest = "sha256:" + hashlib.sha256(source).hexdigest()
        manifest = {
            "digest": self.digest,
            "definition": self.body,
            "language": "triton",
            "entry": entry.incumbent.entry,
            "params": dict(entry.incumbent.params),
            "grid": list(entry.incumbent.grid),
            "binary": "kernel.py",
            "binary_sha256": hashlib.sha256(source).hexdigest(),
            **manifest_of(entry.incumbent),
        }
        (folder / "kernel.py").write_bytes(source)
        (folder / "artifact.json").write_text(json.dumps(manifest))
        self._folder = folder

    def swap(self, inputs: tuple[Any, ...]) -> None:
        """Show the slot its tensors, prepare and commit."""
        self.slot(*inputs)
        order = {
            "id": "one",
            "kind": "swap",
            "definition": self.name,
            "artifact": self.digest,
            "previous": None,
            "guard": {"bounds": {"M": [1, 8]}},
            "epoch": 1,
            "shadow_every": 10**9,
            "shadow_tolerance": 1.0,
        }
        self._host.answer({"op": "prepare", "order": order, "artifact_dir": str(self._folder)})
        self._host.answer({"op": "commit", "order": order})

    def launches(self) -> int:
        """Return how many launches ran the artifact."""
        (sample,) = self._host.answer({"op": "samples"})["samples"]
        if sample["tripped"] or sample["errors"] or sample["ineligible_launches"]:
            raise RuntimeError(f"the swapped slot did not run its kernel: {sample}")
        return int(sample["swapped_launches"])


def import_peer(wheels: Path) -> types.ModuleType:
    """Import FlashInfer-Bench and what it needs straight from downloaded wheels.

    Raises
    ------
    SystemExit
        If a wheel is missing.
    """
    unpacked = Path(tempfile.mkdtemp(prefix="apply-cost-"))
    for wheel in sorted(wheels.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(unpacked)
    sys.path.append(str(unpacked))
    sys.modules.setdefault("flashinfer", types.ModuleType("flashinfer"))
    try:
        with contextlib.redirect_stdout(sys.stderr):
            return importlib.import_module("flashinfer_bench")
    except ImportError as error:
        raise SystemExit(
            f"{wheels}: {error}; see the top of this file for what to download"
        ) from error


def peer_apply(
    peer: types.ModuleType, body: dict[str, Any], *, rows: int, folder: Path
) -> Callable[..., Any]:
    """Enable `apply()` with one definition, one solution and one passing trace; return `apply`."""
    os.environ["FIB_CACHE_PATH"] = str(folder / "cache")
    keep = ("shape", "dtype")
    described = {
        "name": body["name"],
        "op_type": body["op_type"],
        "axes": body["axes"],
        "inputs": {n: {k: v[k] for k in keep} for n, v in body["inputs"].items()},
        "outputs": {n: {k: v[k] for k in keep} for n, v in body["outputs"].items()},
        "reference": "def run(*inputs):\n    return inputs[0]\n",
    }
    solution = {
        "name": "shared",
        "definition": body["name"],
        "author": "benchmark",
        "spec": {
            "language": "python",
            "target_hardware": ["cpu"],
            "entry_point": "main.py::run",
            "destination_passing_style": False,
        },
        "sources": [{"path": "main.py", "content": SOLUTION}],
    }
    axes = {axis: rows for axis, kind in body["axes"].items() if kind["type"] == "var"}
    trace = {
        "definition": body["name"],
        "workload": {
            "axes": axes,
            "inputs": {n: {"type": "random"} for n in body["inputs"]},
            "uuid": "one",
        },
        "solution": "shared",
        "evaluation": {
            "status": "PASSED",
            "environment": {"hardware": "this machine"},
            "timestamp": "2026-01-01T00:00:00",
            "correctness": {},
            "performance": {"latency_ms": 1, "reference_latency_ms": 2, "speedup_factor": 2},
        },
    }
    data = sys.modules["flashinfer_bench.data"]
    traces = data.TraceSet(
        root=None,
        definitions={body["name"]: data.Definition.model_validate(described)},
        solutions={body["name"]: [data.Solution.model_validate(solution)]},
        traces={body["name"]: [data.Trace.model_validate(trace)]},
    )
    runtime_class = sys.modules["flashinfer_bench.apply.runtime"].ApplyRuntime
    configs = sys.modules["flashinfer_bench.apply"]
    with contextlib.redirect_stdout(sys.stderr):
        runtime_class(traces, configs.ApplyConfig()).start()
    return peer.apply  # type: ignore[no-any-return]


class Counted:
    """The implementation, and how often it was called: nothing is timed that did not run it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.calls = 0

    def __call__(self, *inputs: Any) -> Any:  # noqa: ANN401 - whatever the kernel returns
        """Call it."""
        self.calls += 1
        return self.function(*inputs)


def per_call_ns(function: Callable[..., Any], inputs: tuple[Any, ...], calls: int) -> float:
    """Return the thread's processor time of one call, ns."""
    start = time.thread_time_ns()
    for _ in range(calls):
        function(*inputs)
    return (time.thread_time_ns() - start) / calls


def measure(
    subjects: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]],
    *,
    blocks: int,
    calls: int,
    settle: Callable[[], None],
) -> dict[str, list[float]]:
    """Time every subject once a block, in a new random order."""
    times: dict[str, list[float]] = {name: [] for name in subjects}
    source = random.Random(0)
    with torch.inference_mode():
        for block in range(-2, blocks):
            for name in source.sample(list(subjects), len(subjects)):
                took_ns = per_call_ns(*subjects[name], calls)
                settle()
                if block >= 0:
                    times[name].append(took_ns)
    return times


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Set both up, time them, and return the result file."""
    peer = import_peer(options.wheels)
    runtime = attach(server="benchmark")
    with tempfile.TemporaryDirectory() as name, contextlib.closing(runtime):
        folder = Path(name)
        on_gpu = options.device == "cuda"
        ours: Any = OnGpu(runtime, folder) if on_gpu else Swapping(runtime, folder, name="copy")
        body = ours.body if on_gpu else definition(ours.name)
        weights = (
            (torch.rand(2048, device="cuda"),)
            if on_gpu
            else (torch.ones(8, 8, dtype=torch.int8), torch.ones(8))
        )
        width = 2048 if on_gpu else 8
        near, far = (
            (torch.rand(rows, width, device=options.device), *weights) for rows in (4, FREE_ROWS)
        )
        ours.swap(near)
        implementation = Counted(ours.direct)
        shared = types.ModuleType(SHARED)
        shared.implementation = implementation  # type: ignore[attr-defined]
        sys.modules[SHARED] = shared
        apply = peer_apply(peer, body, rows=4, folder=folder)
        routed = apply(body["name"])(ours.direct)
        direct = ours.direct
        subjects = {
            "direct": (direct, near),
            "retuned, swapped": (ours.slot, near),
            "retuned, outside the guard": (ours.slot, far),
            "apply(), hit": (routed, near),
            "apply(), miss": (routed, far),
        }
        before = ours.launches()
        routed(*near)
        if implementation.calls != 1:
            raise RuntimeError("apply() did not choose its solution")
        shared.implementation = direct  # type: ignore[attr-defined]
        settle = torch.cuda.synchronize if on_gpu else (lambda: None)
        times = measure(subjects, blocks=options.blocks, calls=options.calls, settle=settle)
        wanted = (options.blocks + 2) * options.calls
        if ours.launches() - before != wanted:
            raise RuntimeError(f"{ours.launches() - before} swapped launches instead of {wanted}")
    return report(times, options)


def report(times: dict[str, list[float]], options: argparse.Namespace) -> dict[str, Any]:
    """Return the result file."""
    over = {
        name: interval([a - b for a, b in zip(values, times["direct"], strict=True)])
        for name, values in times.items()
        if name != "direct"
    }
    on_gpu = options.device == "cuda"
    software = {"python": platform.python_version(), "torch": torch.__version__}
    return {
        "machine": {
            "cpu": processor(),
            "cores": os.cpu_count(),
            "gpu": torch.cuda.get_device_name() if on_gpu else None,
        },
        "software": software | {"flashinfer-bench": peer_version(options.wheels)},
        "method": __doc__,
        "blocks": options.blocks,
        "calls_per_block": options.calls,
        "call_ns": {name: interval(values) for name, values in times.items()},
        "over_direct_ns": over,
        "raw_ns": {name: [round(value, 1) for value in values] for name, values in times.items()},
    }


def peer_version(wheels: Path) -> str:
    """Return the version in the wheel's name."""
    (wheel,) = wheels.glob("flashinfer_bench-*.whl")
    return wheel.name.split("-")[1]


def main() -> None:
    """Measure, write, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wheels", type=Path, required=True)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--blocks", type=int, default=200)
    parser.add_argument("--calls", type=int, default=500)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = run(options)
    out = options.out or RESULTS / f"apply_cost_{options.device}.json"
    out.write_text(json.dumps(found, indent=1) + "\n")
    for name, cost in found["call_ns"].items():
        extra = found["over_direct_ns"].get(name)
        line = f"{name:28s} {cost['median']:8.0f} ns [{cost['low']:.0f}, {cost['high']:.0f}]"
        if extra:
            line += f"   {extra['median']:+7.0f} ns [{extra['low']:+.0f}, {extra['high']:+.0f}]"
        print(line)


if __name__ == "__main__":
    main()

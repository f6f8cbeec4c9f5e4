"""Every Triton kernel of the catalog on a GPU: all its points, and the best beside its peers.

    OUT=/tmp/out python benchmarks/gpu/catalog_gpu.py --part rows [--limit-s 560] [--jobs 13]
    python benchmarks/gpu/catalog_gpu.py --part rows --dry-run     peers against references, no GPU

For each kernel and each shape: (1) the time of every point of its spaces (of large spaces a random
sample, which the result marks), so that searches can be replayed later; (2) incumbent, PyTorch
compiled with max-autotune, and the best point, once more and interleaved; (3) the best point's
outputs against the float64 reference. See `clocking` for how a time is taken. Writes
``catalog_gpu_PART.json`` into ``$OUT``.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "daemon"), str(ROOT)]

import numpy as np  # noqa: E402
import torch  # noqa: E402
from benchmarks.gpu import clocking  # noqa: E402
from benchmarks.gpu.clocking import (  # noqa: E402
    interleaved_us,
    quick_us,
    ratio_interval,
    record,
)
from benchmarks.gpu.peers import compiled, peers_of  # noqa: E402
from benchmarks.gpu.points import (  # noqa: E402
    Axes,
    Point,
    build,
    call_of,
    inputs_of,
    points_of,
    sets_of,
    to_numpy,
)

from retuned import catalog  # noqa: E402
from retuned.contract import Language, Solution  # noqa: E402
from retuned.lab.languages.triton_contract import load  # noqa: E402
from retuned.lab.oracle import compare, reduced_elements  # noqa: E402
from retuned.runtime.schema import Refused  # noqa: E402
from retuned.runtime.triton.launch import TritonSteps  # noqa: E402

_ROWS: tuple[Axes, ...] = ({"M": 1}, {"M": 32}, {"M": 256}, {"M": 2048})
_MATRIX: tuple[Axes, ...] = ({"M": 1}, {"M": 16}, {"M": 64}, {"M": 256}, {"M": 2048})
_PAGED: tuple[Axes, ...] = (
    {"B": 1, "C": 2048, "W": 128},
    {"B": 16, "C": 2048, "W": 128},
    {"B": 64, "C": 8192, "W": 128},
)
PARTS: Mapping[str, Mapping[str, tuple[Axes, ...]]] = {
    "rows": {
        "rmsnorm_bf16_h4096": _ROWS,
        "add_rmsnorm_bf16_h4096": _ROWS,
        "layernorm_bf16_h4096": _ROWS,
        "silu_mul_bf16_i14336": _ROWS,
        "gelu_mul_bf16_i14336": _ROWS,
        "rope_bf16_q32_k8_d128": tuple({**axes, "P": 8192} for axes in _ROWS),
        "softmax_bf16_n32768": _ROWS[:3],
        "topk_gating_e128_k8": _ROWS,
        "quant_fp8_h7168": _ROWS,
        "quant_int8_h7168": _ROWS,
        "paged_attention_bf16_h32_g8_d128_p16": _PAGED,
    },
    "matrix": {
        "moe_gemm_bf16_e128_t8_n768_k2048": _MATRIX[:4],
        "linear_w8_bf16_n6144_k4096": _MATRIX,
        "gemm_fp8_n6144_k4096": _MATRIX,
        "gemm_bf16_n6144_k4096": _MATRIX,
    },
}
MOST_POINTS = 420
"""Of a space that has more, a sample by chance; the incumbent and first guesses are in it."""
BLOCKS = 21
_PEAKS = {"bf16_tflops": 989.0, "fp8_tflops": 1979.0, "gbytes_per_s": 3350.0}
"""H100 SXM's data sheet: matrix units without sparsity, and memory."""


@dataclass
class Kernel:
    """One kernel on its way through the benchmark."""

    name: str
    entry: catalog.KernelEntry
    shapes: tuple[Axes, ...]
    points: list[Point]
    whole_space: int
    builds: list[Future[list[str]]]
    inputs: list[Future[dict[str, Any]]]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--part", choices=sorted(PARTS), default="rows")
    parser.add_argument("--limit-s", type=float, default=560.0)
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) - 3))
    parser.add_argument("--points", type=int, default=MOST_POINTS)
    parser.add_argument("--only", nargs="*", help="names of kernels, of those of the part")
    parser.add_argument("--dry-run", action="store_true")
    chosen = parser.parse_args()
    wanted = {
        name: shapes
        for name, shapes in PARTS[chosen.part].items()
        if not chosen.only or name in chosen.only
    }
    if chosen.dry_run:
        return dry_run(wanted)
    out = Path(os.environ.get("OUT", "gpu-results")).resolve()
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"catalog_gpu_{chosen.part}.json"

    def keep(body: Mapping[str, Any]) -> None:
        path.write_text(json.dumps(body) + "\n", encoding="utf-8")

    measure(wanted, limit_s=chosen.limit_s, jobs=chosen.jobs, most=chosen.points, keep=keep)
    return 0


def measure(
    wanted: Mapping[str, Sequence[Axes]],
    *,
    limit_s: float,
    jobs: int,
    most: int,
    keep: Callable[[Mapping[str, Any]], None],
) -> None:
    """Compile in processes, time in this one, kernel by kernel while there is time."""
    end_s = time.monotonic() + limit_s
    os.environ.setdefault("TRITON_CACHE_DIR", "/tmp/retuned-catalog-gpu")
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "4")
    torch._dynamo.config.recompile_limit = 64
    spawn = multiprocessing.get_context("spawn")
    head = {"machine": machine(), "method": (__doc__ or "") + (clocking.__doc__ or "")}
    kernels: list[dict[str, Any]] = []
    with ProcessPoolExecutor(jobs, mp_context=spawn) as pool, ThreadPoolExecutor(2) as threads:
        planned = [
            _plan(name, list(shapes), pool=pool, threads=threads, most=most)
            for name, shapes in wanted.items()
        ]
        stream = torch.cuda.Stream()
        peers = {}
        for kernel in planned:  # while the pool compiles, PyTorch's tuner has the device alone
            if time.monotonic() < end_s - 120.0:
                peers[kernel.name] = _peers(kernel, end_s=end_s - 120.0)
        for kernel in planned:
            if time.monotonic() > end_s - 20.0:
                break
            kernels.append(_kernel(kernel, peers.get(kernel.name, {}), stream=stream, end_s=end_s))
            keep({**head, "kernels": kernels})
            print(_line(kernels[-1]), f"{end_s - time.monotonic():.0f} s left", flush=True)
        for kernel in planned:
            for build in kernel.builds:
                build.cancel()
        pool.shutdown(wait=False, cancel_futures=True)


def machine() -> dict[str, Any]:
    """Describe the device and the versions."""
    import triton

    device = torch.cuda.get_device_properties(0)
    return {
        "gpu": device.name,
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cuda": torch.version.cuda,
        "blocks": BLOCKS,
        "peaks": _PEAKS,
        "empty_kernel_us": _empty_us(),
    }


def _plan(
    name: str,
    shapes: Sequence[Axes],
    *,
    pool: ProcessPoolExecutor,
    threads: ThreadPoolExecutor,
    most: int,
) -> Kernel:
    entry = catalog.get(name, language=Language.TRITON)
    points, whole = points_of(entry, shapes, most=most)
    size = 12
    parts = [points[start : start + size] for start in range(0, len(points), size)]
    return Kernel(
        name=name,
        entry=entry,
        shapes=tuple(shapes),
        points=points,
        whole_space=whole,
        builds=[pool.submit(build, name, part, list(shapes)) for part in parts],
        inputs=[threads.submit(inputs_of, entry, axes) for axes in shapes],
    )


def _peers(kernel: Kernel, *, end_s: float) -> dict[str, list[tuple[str, Any]]]:
    """Compile PyTorch's forms at every shape, tuned on a device that is else idle."""
    found: dict[str, list[tuple[str, Any]]] = {}
    for axes, made in zip(kernel.shapes, kernel.inputs, strict=True):
        arrays = made.result()
        sets = sets_of(kernel.entry, axes, arrays, count=1)
        inputs = sets[0][: len(arrays)]
        for peer in peers_of(kernel.entry.definition.op_type):
            if time.monotonic() > end_s:
                break
            call = compiled(peer)
            try:
                with torch.inference_mode():
                    call(*inputs)
                    torch.cuda.synchronize()
            except Exception as error:  # whatever a compiler raises on one form is a result here
                print(f"{kernel.name} {axes} {peer.__name__}: {_short(error)}", flush=True)
                continue
            found.setdefault(_label(axes), []).append((peer.__name__, call))
    return found


def _kernel(
    kernel: Kernel,
    peers: Mapping[str, list[tuple[str, Any]]],
    *,
    stream: Any,  # noqa: ANN401 - torch.cuda.Stream
    end_s: float,
) -> dict[str, Any]:
    reasons: list[str] = []
    for build_ in kernel.builds:
        reasons += build_.result(max(1.0, end_s - time.monotonic()))
    launches: list[TritonSteps | None] = []
    for (structure, params), reason in zip(kernel.points, reasons, strict=True):
        solution = kernel.entry.solution(structure, params)
        launches.append(None if reason else load(solution, kernel.entry.definition))
    rows: list[dict[str, Any]] = [
        {"structure": structure, "params": params, "median_us": {}}
        | ({"refused": reason} if reason else {})
        for (structure, params), reason in zip(kernel.points, reasons, strict=True)
    ]
    shapes = []
    for axes, made in zip(kernel.shapes, kernel.inputs, strict=True):
        if time.monotonic() > end_s:
            break
        arrays = made.result()
        sets = sets_of(kernel.entry, axes, arrays, count=0)
        for row, loaded in zip(rows, launches, strict=True):
            if loaded is not None and time.monotonic() < end_s:
                row["median_us"][_label(axes)] = _timed(kernel.entry, loaded, axes, sets, stream)
        shapes.append(_shape(kernel, axes, arrays, rows, sets, peers, stream=stream))
    return {
        "definition": kernel.name,
        "language": "triton",
        "whole_space": kernel.whole_space,
        "incumbent": {
            "structure": kernel.entry.incumbent.structure,
            "params": dict(kernel.entry.incumbent.params),
        },
        "points": rows,
        "shapes": shapes,
    }


def _timed(
    entry: catalog.KernelEntry,
    kernel: TritonSteps,
    axes: Axes,
    sets: Sequence[Any],
    stream: Any,  # noqa: ANN401
) -> float | None:
    try:
        return round(quick_us(record(call_of(entry, kernel, axes), sets, stream)), 4)
    except (Refused, RuntimeError) as error:
        print(f"{entry.definition.name} {axes}: {_short(error)}", flush=True)
        return None


def _shape(
    kernel: Kernel,
    axes: Axes,
    arrays: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    sets: Sequence[Any],
    peers: Mapping[str, list[tuple[str, Any]]],
    *,
    stream: Any,  # noqa: ANN401 - torch.cuda.Stream
) -> dict[str, Any]:
    """Measure incumbent, peer and best point once more, side by side."""
    entry, label = kernel.entry, _label(axes)
    timed = [row for row in rows if row["median_us"].get(label) is not None]
    best = min(timed, key=lambda row: row["median_us"][label])
    solution = entry.solution(best["structure"], best["params"])
    sides = {
        "incumbent": record(
            call_of(entry, load(entry.incumbent, entry.definition), axes), sets, stream
        ),
        "best": record(call_of(entry, load(solution, entry.definition), axes), sets, stream),
    }
    count = len(entry.definition.inputs)
    for name, call in peers.get(label, []):
        with torch.inference_mode():
            try:
                sides[name] = record(_of_inputs(call, count), sets, stream)
            except RuntimeError as error:
                print(f"{kernel.name} {axes} {name}: {_short(error)}", flush=True)
    raw = interleaved_us(sides, blocks=BLOCKS, seed=len(label))
    median = {name: round(float(np.median(times)), 4) for name, times in raw.items()}
    forms = {name: took for name, took in median.items() if name not in ("incumbent", "best")}
    peer = min(forms, key=lambda name: forms[name]) if forms else None
    found: dict[str, Any] = {
        "axes": axes,
        "median_us": median,
        "best": {"structure": best["structure"], "params": best["params"]},
        "incumbent_over_best": ratio_interval(raw["incumbent"], raw["best"]),
        "peer": peer,
        "peer_over_best": ratio_interval(raw[peer], raw["best"]) if peer else None,
        "raw_us": {name: [round(t, 4) for t in times] for name, times in raw.items()},
    }
    found["right"] = _right(entry, solution, axes, arrays, sets)
    return found


def _of_inputs(call: Any, count: int) -> clocking.Call:  # noqa: ANN401 - what torch.compile returns
    return lambda tensors: call(*tensors[:count])


def _right(
    entry: catalog.KernelEntry,
    solution: Solution,
    axes: Axes,
    arrays: Mapping[str, Any],
    sets: Sequence[Sequence[torch.Tensor]],
) -> dict[str, Any]:
    """Compare the best point with reference and incumbent, as the judge does."""
    definition = entry.definition
    reference = entry.reference(dict(arrays), axes)
    depth = reduced_elements(definition, definition.lengths(axes))
    got = {}
    for side, each in (("incumbent", entry.incumbent), ("best", solution)):
        call_of(entry, load(each, entry.definition), axes)(sets[0])
        torch.cuda.synchronize()
        outputs = sets[0][len(definition.inputs) :]
        got[side] = [to_numpy(tensor) for tensor in outputs]
    for place, name in enumerate(definition.outputs):
        judged = compare(
            got["best"][place], got["incumbent"][place], reference=reference[name], depth=depth
        )
        if judged.reason is not None:
            return {"ok": False, "output": name, "detail": judged.detail}
    return {"ok": True}


def _empty_us() -> float:
    """Return what the smallest launch costs in a graph: no kernel is faster."""
    tensor = torch.zeros(1, device="cuda")
    stream = torch.cuda.Stream()
    return round(quick_us(record(lambda s: s[0].zero_(), [[tensor]], stream), replays=15), 4)


def dry_run(wanted: Mapping[str, Sequence[Axes]]) -> int:
    """Hold PyTorch's forms against the references at a small shape, on the processor."""
    wrong = 0
    for name, shapes in wanted.items():
        entry = catalog.get(name, language=Language.TRITON)
        axes = {axis: min(length, 64) for axis, length in shapes[0].items()}
        arrays = inputs_of(entry, axes)
        reference = entry.reference(arrays, axes)
        points, whole = points_of(entry, shapes, most=MOST_POINTS)
        (tensors,) = sets_of(entry, axes, arrays, count=1, device="cpu")
        for peer in peers_of(entry.definition.op_type):
            try:
                got = peer(*tensors[: len(arrays)])
            except (RuntimeError, NotImplementedError, ValueError) as error:
                print(f"{name}: {peer.__name__} does not run here: {_short(error)}")
                continue
            for (output, want), tensor in zip(reference.items(), got, strict=True):
                have = to_numpy(tensor).astype(np.float64)
                off = float(np.abs(have - want).max() / max(1e-9, float(np.abs(want).max())))
                wrong += off > 0.1
                verdict = "WRONG" if off > 0.1 else "fits"
                print(f"{name}: {peer.__name__} {output} {off:.1e} {verdict}")
        print(f"{name}: {len(points)} of {whole} points")
    return 1 if wrong else 0


def _label(axes: Axes) -> str:
    return " ".join(f"{axis}={length}" for axis, length in axes.items())


def _line(body: Mapping[str, Any]) -> str:
    cells = []
    for shape in body["shapes"]:
        median = shape["median_us"]
        peer = f"{shape['peer_over_best'][1]:.2f}" if shape["peer_over_best"] else "-"
        right = "" if shape["right"]["ok"] else " WRONG"
        cells.append(
            f"{_label(shape['axes'])}: {median['incumbent']:.2f}/{median['best']:.2f} us"
            f" x{shape['incumbent_over_best'][1]:.2f} torch x{peer}"
            f"{right}"
        )
    return f"{body['definition']} ({len(body['points'])} points)\n  " + "\n  ".join(cells)


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error)[:300]}".replace("\n", " ")


if __name__ == "__main__":
    sys.exit(main())

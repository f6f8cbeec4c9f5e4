"""Every Triton kernel of the catalog on a GPU: all its points, and the best beside its peers.

    OUT=/tmp/out python benchmarks/gpu/catalog_gpu.py --part rows [--limit-s 560] [--jobs 13]
    python benchmarks/gpu/catalog_gpu.py --part rows --dry-run     peers against references, no GPU

For each kernel and each shape: (1) the time of every point of its spaces (of large spaces a sample
by chance, which is said), so that searches can be replayed on them later; (2) incumbent, PyTorch
compiled with max-autotune, and the best point, once more and interleaved; (3) the best point's outputs against the float64 reference.
See `clocking` for how a time is taken. Writes ``catalog_gpu_PART.json`` into ``$OUT``.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "daemon"), str(ROOT)]

import numpy as np  # noqa: E402
import torch  # noqa: E402
from benchmarks.gpu.clocking import (  # noqa: E402
    Call,
    interleaved_us,
    quick_us,
    ratio_interval,
    record,
    sets_for,
)
from benchmarks.gpu.peers import compiled, peers_of  # noqa: E402

from retuned import catalog  # noqa: E402
from retuned.contract import Language, Solution  # noqa: E402
from retuned.lab.number_formats import NUMPY  # noqa: E402
from retuned.lab.oracle import compare, reduced_elements  # noqa: E402
from retuned.lab.subject import make_inputs, numpy_dtype, shape_of  # noqa: E402
from retuned.runtime.spec import Refused  # noqa: E402
from retuned.runtime.triton_launch import TritonKernel  # noqa: E402

Axes = dict[str, int]
Point = tuple[str, dict[str, int | str]]

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
    entry: catalog.Entry
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
    head = {"machine": machine(), "method": (__doc__ or "") + _clock_text()}
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


def _clock_text() -> str:
    from benchmarks.gpu import clocking

    return clocking.__doc__ or ""


def _plan(
    name: str,
    shapes: Sequence[Axes],
    *,
    pool: ProcessPoolExecutor,
    threads: ThreadPoolExecutor,
    most: int,
) -> Kernel:
    entry = catalog.get(name, language=Language.TRITON)
    points, whole = _points(entry, shapes, most=most)
    size = 12
    parts = [points[start : start + size] for start in range(0, len(points), size)]
    return Kernel(
        name=name,
        entry=entry,
        shapes=tuple(shapes),
        points=points,
        whole_space=whole,
        builds=[pool.submit(build, name, part, list(shapes)) for part in parts],
        inputs=[threads.submit(_inputs, entry, axes) for axes in shapes],
    )


def _inputs(entry: catalog.Entry, axes: Axes) -> dict[str, Any]:
    return make_inputs(entry, axes, seed=7, family=entry.families[0])


def _points(entry: catalog.Entry, shapes: Sequence[Axes], *, most: int) -> tuple[list[Point], int]:
    """Return the points to try, and how many there are in all."""
    every: list[Point] = []
    for space in entry.spaces:
        for values in product(*space.params.values()):
            params = dict(zip(space.params, values, strict=True))
            if space.constraints(params, entry.definition):
                every.append((space.name, params))
    if len(every) <= most:
        return every, len(every)
    must: list[Point] = [(entry.incumbent.structure, dict(entry.incumbent.params))]
    for axes in shapes:
        must += [(s.name, dict(start)) for s in entry.spaces for start in s.starts(axes)]
    chosen = random.Random(entry.definition.name).sample(every, most)
    unique = {json.dumps(point, sort_keys=True): point for point in [*must, *chosen]}
    return list(unique.values()), len(every)


def build(name: str, points: Sequence[Point], shapes: Sequence[Axes]) -> list[str]:
    """Compile points into the cache; returns why each could not be, or nothing."""
    entry = catalog.get(name, language=Language.TRITON)
    found = []
    for structure, params in points:
        try:
            kernel = _load(entry, entry.solution(structure, params))
            for axes in shapes:
                _prepare(kernel, entry, axes)
            found.append("")
        except Refused as refused:
            found.append(refused.reason)
    return found


def _load(entry: catalog.Entry, solution: Solution) -> TritonKernel:
    definition = entry.definition
    return TritonKernel(
        solution.sources[0].content,
        entry=solution.entry,
        params=solution.params,
        grid=solution.grid,
        tensors=[*definition.inputs, *definition.outputs],
        axes=list(definition.axes),
        scratch_bytes=solution.scratch_bytes,
    )


def _prepare(kernel: TritonKernel, entry: catalog.Entry, axes: Axes) -> None:
    definition = entry.definition
    specs = [*definition.inputs.values(), *definition.outputs.values()]
    kernel.prepare(
        list(definition.lengths(axes).values()),
        dtypes=[str(spec.dtype) for spec in specs],
        device=torch.device("cuda", 0),
    )


def _peers(kernel: Kernel, *, end_s: float) -> dict[str, list[tuple[str, Any]]]:
    """Compile PyTorch's forms at every shape, tuned on a device that is else idle."""
    found: dict[str, list[tuple[str, Any]]] = {}
    for axes, made in zip(kernel.shapes, kernel.inputs, strict=True):
        arrays = made.result()
        sets = _sets(kernel.entry, axes, arrays, count=1)
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
    launches: list[TritonKernel | None] = []
    for (structure, params), reason in zip(kernel.points, reasons, strict=True):
        solution = kernel.entry.solution(structure, params)
        launches.append(None if reason else _load(kernel.entry, solution))
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
        sets = _sets(kernel.entry, axes, arrays, count=0)
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
    entry: catalog.Entry,
    kernel: TritonKernel,
    axes: Axes,
    sets: Sequence[Any],
    stream: Any,  # noqa: ANN401
) -> float | None:
    try:
        return round(quick_us(record(_call(entry, kernel, axes), sets, stream)), 4)
    except (Refused, RuntimeError) as error:
        print(f"{entry.definition.name} {axes}: {_short(error)}", flush=True)
        return None


def _call(entry: catalog.Entry, kernel: TritonKernel, axes: Axes) -> Call:
    _prepare(kernel, entry, axes)
    return kernel.at(list(entry.definition.lengths(axes).values()), device=torch.device("cuda", 0))


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
        "incumbent": record(_call(entry, _load(entry, entry.incumbent), axes), sets, stream),
        "best": record(_call(entry, _load(entry, solution), axes), sets, stream),
    }
    count = len(entry.definition.inputs)
    for name, call in peers.get(label, []):
        with torch.inference_mode():
            try:
                sides[name] = record(lambda s, call=call: call(*s[:count]), sets, stream)
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


def _right(
    entry: catalog.Entry,
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
        _call(entry, _load(entry, each), axes)(sets[0])
        torch.cuda.synchronize()
        outputs = sets[0][len(definition.inputs) :]
        got[side] = [_to_numpy(tensor) for tensor in outputs]
    for place, name in enumerate(definition.outputs):
        judged = compare(
            got["best"][place], got["incumbent"][place], reference=reference[name], depth=depth
        )
        if judged.reason is not None:
            return {"ok": False, "output": name, "detail": judged.detail}
    return {"ok": True}


def _sets(
    entry: catalog.Entry, axes: Axes, arrays: Mapping[str, Any], *, count: int, device: str = "cuda"
) -> list[list[torch.Tensor]]:
    """Return sets of inputs and outputs; 0 means as many as the cache asks for."""
    definition = entry.definition
    lengths = definition.lengths(axes)
    given = [_to_torch(arrays[name], device) for name in definition.inputs]
    specs = [(shape_of(s, lengths), numpy_dtype(s)) for s in definition.outputs.values()]
    size = sum(t.numel() * t.element_size() for t in given)
    size += sum(math.prod(shape) * kind.itemsize for shape, kind in specs)
    made = []
    for _ in range(count or sets_for(size)):
        outputs = [_to_torch(np.zeros(shape, kind), device) for shape, kind in specs]
        made.append([*(tensor.clone() for tensor in given), *outputs])
    return made


def _to_torch(array: np.typing.NDArray[Any], device: str) -> torch.Tensor:
    (name,) = (dtype for dtype, kind in NUMPY.items() if kind == array.dtype)
    flat = torch.from_numpy(np.ascontiguousarray(array).reshape(-1).view(np.uint8).copy())
    return flat.to(device).view(getattr(torch, name)).view(array.shape)


def _to_numpy(tensor: torch.Tensor) -> np.typing.NDArray[Any]:
    kind = NUMPY[str(tensor.dtype).removeprefix("torch.")]
    flat = tensor.contiguous().view(-1).view(torch.uint8).cpu().numpy()
    return flat.view(kind).reshape(tuple(tensor.shape))


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
        arrays = _inputs(entry, axes)
        reference = entry.reference(arrays, axes)
        points, whole = _points(entry, shapes, most=MOST_POINTS)
        (tensors,) = _sets(entry, axes, arrays, count=1, device="cpu")
        for peer in peers_of(entry.definition.op_type):
            try:
                got = peer(*tensors[: len(arrays)])
            except (RuntimeError, NotImplementedError, ValueError) as error:
                print(f"{name}: {peer.__name__} does not run here: {_short(error)}")
                continue
            for (output, want), tensor in zip(reference.items(), got, strict=True):
                have = _to_numpy(tensor).astype(np.float64)
                error = float(np.abs(have - want).max() / max(1e-9, float(np.abs(want).max())))
                wrong += error > 0.1
                verdict = "WRONG" if error > 0.1 else "fits"
                print(f"{name}: {peer.__name__} {output} {error:.1e} {verdict}")
        print(
            f"{name}: {len(points)} of {whole} points, floor {floor_us(entry, shapes[-1]):.2f} us"
        )
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

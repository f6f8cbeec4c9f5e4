"""CPU kernels of the catalog, structure by structure, at chat and at code shapes.

    python benchmarks/catalog_cpu.py shapes   every structure's first points beside the incumbent
    python benchmarks/catalog_cpu.py space    the whole space of linear_w8 at M = 64 and 256

Everything compared is interleaved in one process on one thread. Weights rotate through copies
larger than the second-level cache, as a model's layers do: at few rows each turn of a variant runs
once over all copies untimed and once timed, so that every variant finds its weights in the same
cache. The clock is the thread's processor time: a pause by the scheduler of a busy machine does not
count. Times are medians with an interval of 95 % from order statistics,
and contain some 3 us for the call itself. Results are in benchmarks/results/.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from retuned import catalog
from retuned.catalog import KernelEntry
from retuned.contract import Solution
from retuned.lab.languages.cpu_cpp import compile_solution
from retuned.lab.subject import numpy_dtype, shape_of
from retuned.runtime.native.cpu import CpuKernel
from retuned.runtime.native.memory import repack

RESULTS = Path(__file__).parent / "results"
FOOTPRINT_BYTES = 8 * 2**20
LINEARS = (
    "linear_w8_n1536_k512",
    "linear_w8_n512_k512",
    "linear_w8_n2816_k512",
    "linear_w8_n512_k1408",
    "linear_w8_n2048_k512",
    "linear_w8_n1024_k1024",
)
ROW_WISE = (
    "rmsnorm_h512",
    "add_rmsnorm_h512",
    "layernorm_h512",
    "silu_mul_i1408",
    "gelu_mul_i1408",
    "rope_q8_k8_d64",
    "softmax_n2048",
    "topk_gating_e64_k8",
)
ROWS = (1, 2, 4, 16, 64, 128, 256)
POSITIONS = 4096
LENGTHS = ((1, 128), (1, 384), (4, 256), (16, 256), (64, 256), (128, 128), (256, 512))
CHAT = {"M": (1, 2, 4), "T": (1,)}
SPACE_NAME = "linear_w8_n1024_k1024"
SPACE_ROWS = (64, 256)

Array = npt.NDArray[Any]


class Subject:
    """One variant, ready to launch with rotating weights."""

    def __init__(self, entry: KernelEntry, solution: Solution, *, cache: Path) -> None:
        definition = entry.definition
        self.entry = entry
        self.solution = solution
        self.samples: dict[str, list[float]] = {}
        self._kernel = CpuKernel(
            compile_solution(solution, cache_dir=cache).path,
            solution.entry,
            tensors=len(definition.inputs) + len(definition.outputs),
            axes=len(definition.axes),
            scratch_bytes=solution.scratch_bytes,
        )

    def launch_us(self, arrays: Mapping[str, Array], axes: Mapping[str, int]) -> float:
        """Time one launch on tensors that are already in the right layout."""
        pointers = [array.ctypes.data for array in arrays.values()]
        lengths = list(self.entry.definition.lengths(axes).values())
        started = time.thread_time_ns()
        self._kernel.launch(pointers, lengths)
        return (time.thread_time_ns() - started) / 1e3


class Tensors:
    """Inputs and output of one shape; constant inputs in several copies and every layout."""

    def __init__(self, entry: KernelEntry, axes: Mapping[str, int]) -> None:
        self._definition = entry.definition
        self._inputs = entry.inputs(axes, seed=1, family="randn")
        lengths = entry.definition.lengths(axes)
        self._outputs = {
            name: np.empty(shape_of(spec, lengths), numpy_dtype(spec))
            for name, spec in entry.definition.outputs.items()
        }
        self._packed: dict[tuple[str, str, int], Array] = {}
        constant = sum(self._inputs[n].nbytes for n in self._constants())
        self.copies = max(1, FOOTPRINT_BYTES // constant) if constant > 2**17 else 1

    def of(self, solution: Solution, turn: int) -> dict[str, Array]:
        """Return the tensors of one launch."""
        copy = turn % self.copies
        arrays = dict(self._inputs)
        for name in self._constants():
            layout = solution.layouts.get(name, "as-is")
            key = (name, layout, copy)
            if key not in self._packed:
                packed = repack(self._inputs[name], layout)
                self._packed[key] = np.array(packed, copy=True, order="C")
            arrays[name] = self._packed[key]
        return {**arrays, **self._outputs}

    def _constants(self) -> list[str]:
        return [name for name, spec in self._definition.inputs.items() if spec.constant]


def measure(
    subjects: Sequence[Subject], axes: Mapping[str, int], *, turns: int, settle: bool
) -> list[dict[str, Any]]:
    """Take turns, in an order that rotates; one row per subject."""
    tensors = Tensors(subjects[0].entry, axes)
    samples: list[list[float]] = [[] for _ in subjects]
    copies = range(tensors.copies) if settle else range(1)
    for turn in range(turns):
        for place in range(len(subjects)):
            index = (place + turn) % len(subjects)
            subject = subjects[index]
            for timed in (False, True) if settle else (turn > 0,):
                for copy in copies:
                    arrays = tensors.of(subject.solution, copy if settle else turn + place)
                    took = subject.launch_us(arrays, axes)
                    if timed:
                        samples[index].append(took)
    return [summary(values) for values in samples]


def summary(values: Sequence[float]) -> dict[str, Any]:
    """Median and its 95 % interval from order statistics."""
    ordered = sorted(values)
    n = len(ordered)
    reach = math.ceil(0.98 * math.sqrt(n))
    middle = n // 2
    low, high = ordered[max(0, middle - reach)], ordered[min(n - 1, middle + reach)]
    return {
        "median_us": round(ordered[middle], 2),
        "interval_us": [round(low, 2), round(high, 2)],
        "launches": n,
    }


def points(entry: KernelEntry) -> Iterator[tuple[str, Solution]]:
    """Yield the incumbent, then what a search would try first at few and at many rows."""
    yield "incumbent", entry.incumbent
    seen = {entry.incumbent.digest}
    for length in (1, 4, 256):
        axes = {axis: length for axis in entry.definition.variable_axes}
        for space in entry.spaces:
            for params in space.starts(axes):
                solution = entry.solution(space.name, params)
                if solution.digest not in seen:
                    seen.add(solution.digest)
                    yield space.name, solution


def shapes_of(entry: KernelEntry) -> list[dict[str, int]]:
    """Return shapes from one token to a chunk of prompt."""
    if "T" in entry.definition.variable_axes:
        return [{"T": t, "S": s} for t, s in LENGTHS]
    more = {"P": POSITIONS} if "P" in entry.definition.variable_axes else {}
    return [{"M": m, **more} for m in ROWS]


def run_shapes(cache: Path) -> dict[str, Any]:
    """Measure every definition of the demo's model, and the row-wise ones of others."""
    names = (*LINEARS, *ROW_WISE, "attention_h8_d64")
    found = []
    for name in names:
        entry = catalog.get(name)
        subjects = [Subject(entry, solution, cache=cache) for _, solution in points(entry)]
        for axes in shapes_of(entry):
            long = axes.get("M", axes.get("T", 0)) >= 64
            rows = measure(subjects, axes, turns=12, settle=not long)
            found.append(shape_row(entry, axes, subjects=subjects, rows=rows))
            print(line(found[-1]), flush=True)
    return {"shapes": found}


def shape_row(
    entry: KernelEntry,
    axes: Mapping[str, int],
    *,
    subjects: Sequence[Subject],
    rows: Sequence[dict[str, Any]],
) -> dict[str, Any]:
    """Put one shape's variants side by side."""
    variants = [
        {"structure": s.solution.structure, "params": dict(s.solution.params), **row}
        for s, row in zip(subjects, rows, strict=True)
    ]
    best = min(variants, key=lambda v: v["median_us"])
    few = any(axes.get(axis) in lengths for axis, lengths in CHAT.items())
    return {
        "definition": entry.definition.name,
        "axes": dict(axes),
        "traffic": "chat" if few else "code",
        "incumbent_us": variants[0]["median_us"],
        "best_us": best["median_us"],
        "best_structure": best["structure"],
        "incumbent_over_best_ratio": round(variants[0]["median_us"] / best["median_us"], 3),
        "variants": variants,
    }


def line(row: Mapping[str, Any]) -> str:
    """One shape as a line of the table."""
    best: dict[str, float] = {}
    for variant in row["variants"]:
        structure = variant["structure"]
        best[structure] = min(best.get(structure, math.inf), variant["median_us"])
    axes = " ".join(f"{k}={v}" for k, v in row["axes"].items())
    cells = "  ".join(f"{name} {us:9.1f}" for name, us in best.items())
    return (
        f"{row['definition']:24} {axes:12} incumbent {row['incumbent_us']:9.1f}  {cells}  "
        f"ratio {row['incumbent_over_best_ratio']:.2f}"
    )


def run_space(cache: Path) -> dict[str, Any]:
    """Measure every valid single-threaded point of linear_w8, in rounds over all points."""
    entry = catalog.get(SPACE_NAME)
    subjects = []
    for space in entry.spaces:
        for params in grid(space.params):
            if params["THREADS"] == 1 and space.constraints(params, entry.definition):
                subjects.append(Subject(entry, entry.solution(space.name, params), cache=cache))
        print(f"{space.name}: {len(subjects)} points compiled so far", flush=True)
    times: dict[str, list[dict[str, Any]]] = {}
    for rows in SPACE_ROWS:
        times[str(rows)] = measure(subjects, {"M": rows}, turns=15, settle=False)
    found = [
        {
            "structure": subject.solution.structure,
            "params": dict(subject.solution.params),
            "median_us": {rows: times[rows][index]["median_us"] for rows in times},
        }
        for index, subject in enumerate(subjects)
    ]
    return {"definition": SPACE_NAME, "axis": "M", "points": found}


def grid(params: Mapping[str, tuple[int | str, ...]]) -> Iterator[dict[str, int | str]]:
    """Every combination."""
    names = list(params)
    for index in np.ndindex(*(len(params[name]) for name in names)):
        yield {name: params[name][i] for name, i in zip(names, index, strict=True)}


def machine() -> dict[str, Any]:
    """Describe the processor, without naming the host."""
    text = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    model = re.search(r"model name\s*:\s*(.+)", text)
    widest = next((w for w in ("avx512f", "avx2", "sse4_1") if w in text), "other")
    return {
        "cpu": model.group(1).strip() if model else "unknown",
        "cores": os.cpu_count(),
        "vectors": widest,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("what", choices=("shapes", "space"))
    parser.add_argument("--cache", type=Path, help="folder for compiled kernels, kept between runs")
    chosen = parser.parse_args()
    cache = chosen.cache or Path(tempfile.mkdtemp(prefix="catalog-cpu-"))
    body = run_shapes(cache) if chosen.what == "shapes" else run_space(cache)
    name = "catalog_cpu.json" if chosen.what == "shapes" else "linear_w8_space.json"
    RESULTS.mkdir(exist_ok=True)
    method = (
        "turns in rotating order, one thread, medians of its processor time; weights rotate "
        "through 8 MiB"
    )
    report = {"machine": machine(), "method": method, **body}
    (RESULTS / name).write_text(json.dumps(report, indent=1) + "\n")
    print(f"written: results/{name}")


if __name__ == "__main__":
    main()

"""What the recordings of `catalog_gpu` say together: by kernel, and over all that memory bounds.

    python -m benchmarks.gpu.summary             reads results/gpu_catalog_*.json, writes a summary

A shape is bound by memory where moving its tensors takes longer than its arithmetic, by the data
sheet. Floors are computed here from the catalog's costs, and no launch in a graph is faster than an
empty kernel. There is headroom where PyTorch's time is at least 1.2 times that floor. A best point
replaces the incumbent only where its 95 % interval says that it is faster; elsewhere the incumbent
stays, as a guard would have it. Nothing is left out of the means but shapes without a peer.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from retuned import catalog
from retuned.contract import Language

RESULTS = Path(__file__).resolve().parents[1] / "results"
OUT = RESULTS / "gpu_summary.json"
_HEADROOM = 1.2


def shape_row(kernel: Mapping[str, Any], shape: Mapping[str, Any], machine: Any) -> dict[str, Any]:  # noqa: ANN401
    """Return what one shape comes to."""
    entry = catalog.get(str(kernel["definition"]), language=Language.TRITON)
    cost = entry.cost(entry.definition.lengths(shape["axes"]))
    peaks = machine["peaks"]
    tflops = peaks["fp8_tflops" if "fp8" in entry.definition.op_type else "bf16_tflops"]
    memory_us = (cost.read_bytes + cost.write_bytes) / (peaks["gbytes_per_s"] * 1e3)
    matrix_us = cost.flops / (tflops * 1e6)
    floor_us = max(memory_us, matrix_us, machine["empty_kernel_us"])
    median = shape["median_us"]
    replaced = shape["right"]["ok"] and shape["incumbent_over_best"][0] > 1.0
    ours_us = median["best"] if replaced else median["incumbent"]
    peer_us = median[shape["peer"]] if shape["peer"] else None
    return {
        "kernel": kernel["definition"],
        "axes": shape["axes"],
        "memory_bound": memory_us >= matrix_us,
        "floor_us": round(floor_us, 3),
        "incumbent_us": median["incumbent"],
        "ours_us": ours_us,
        "replaced": replaced,
        "torch_compile_us": peer_us,
        "incumbent_over_ours": round(median["incumbent"] / ours_us, 4),
        "torch_over_ours": round(peer_us / ours_us, 4) if peer_us else None,
        "headroom": bool(peer_us and peer_us >= _HEADROOM * floor_us),
    }


def geomean(values: Sequence[float]) -> float | None:
    """Return the geometric mean; None of nothing."""
    if not values:
        return None
    return round(math.exp(sum(map(math.log, values)) / len(values)), 4)


def summarise(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return means over shapes that have a peer."""
    own = [row for row in rows if row["torch_over_ours"]]
    bound = [row for row in own if row["memory_bound"]]
    room = [row for row in bound if row["headroom"]]
    kernels = sorted({row["kernel"] for row in own})
    return {
        "torch_over_ours": {
            "all": geomean([row["torch_over_ours"] for row in own]),
            "memory_bound": geomean([row["torch_over_ours"] for row in bound]),
            "memory_bound_with_headroom": geomean([row["torch_over_ours"] for row in room]),
            "shapes": [len(own), len(bound), len(room)],
            "by_kernel": {
                kernel: geomean([row["torch_over_ours"] for row in own if row["kernel"] == kernel])
                for kernel in kernels
            },
        },
        "incumbent_over_ours": geomean([row["incumbent_over_ours"] for row in rows]),
        "slower_than_torch": sum(row["torch_over_ours"] < 0.98 for row in own),
    }


def main() -> None:
    """Summarise, print a line a shape, write the summary."""
    rows = []
    machines = {}
    for path in sorted(RESULTS.glob("gpu_catalog_*.json")):
        body = json.loads(path.read_text("utf-8"))
        machines[path.stem] = body["machine"]
        for kernel in body["kernels"]:
            rows += [shape_row(kernel, shape, body["machine"]) for shape in kernel["shapes"]]
    for row in rows:
        axes = " ".join(f"{name}={length}" for name, length in row["axes"].items())
        print(
            f"{row['kernel']:38} {axes:20} floor {row['floor_us']:8.2f}  incumbent"
            f" {row['incumbent_us']:8.2f}  ours {row['ours_us']:8.2f}  torch"
            f" {row['torch_compile_us'] or 0:8.2f}  x{row['torch_over_ours'] or 0:.2f}"
            f"{'' if row['memory_bound'] else '  matrix'}{'' if row['headroom'] else '  at floor'}"
        )
    totals = summarise(rows)
    print(json.dumps(totals, indent=1))
    body = {"machines": machines, "method": __doc__, "totals": totals, "shapes": rows}
    OUT.write_text(json.dumps(body, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()

"""Reports of made-up servers, as the operation ``tunables`` answers them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Json = dict[str, Any]

SMALL: Json = {"kwargs": {"BLOCK": 64}, "num_warps": 4, "num_stages": 2}
LARGE: Json = {"kwargs": {"BLOCK": 128}, "num_warps": 8, "num_stages": 2}


def asked(how: str = "frozen", *, config: Json | None = None, **fields: Any) -> Json:
    axes = fields.pop("axes", {"elements": 65_536})
    body = {"axes": axes, "launches": 100, "timed": 10, "timed_us": 1_000.0, "captured": 0}
    body |= {"config": SMALL if config is None else config, "how": how, "detail": ""}
    return body | fields


def report(
    kernel: str = "_chunk_scan_fwd_kernel", keys: Sequence[Json] = (), **fields: Any
) -> Json:
    family = fields.get("family", "autotune")
    body = {
        "id": f"tunable:{family}:{kernel}:00000000",
        "family": family,
        "kernel": kernel,
        "module": "vllm.ops",
        "source": "sha256:" + "0" * 64,
        "geometry": {},
        "axes": ["elements"],
        "asked": list(keys) or [asked()],
        "space": {"configs": [SMALL, LARGE]},
        "ways": {"next-call": "on", "recapture": "no-graphs"},
        "refused": "",
        "recorded": 0,
        "table": None,
    }
    return body | fields


def answer(*reports: Json, busy_s: float = 0.1, **fields: Any) -> Json:
    body = {
        "on": True,
        "environment": {
            "pid": 7,
            "versions": {"vllm": "0.26.0", "triton": "3.6.0"},
            "variables": {"VLLM_BATCH_INVARIANT": "0"},
        },
        "steps": {"hook": "on", "count": 10, "tokens": 640, "busy_s": busy_s, "recent": []},
        "tunables": list(reports),
    }
    return {**body, **fields}


def moe(how: str, *, tokens: int, block: bool = True, **fields: Any) -> Json:
    geometry: Json = {"E": 512, "N": 128, "K": 2048, "top_k": 10, "dtype": "fp8_w8a8"}
    geometry["block_shape"] = [128, 128] if block else None
    row = {"BLOCK_SIZE_M": 64}
    keys = [asked(how, axes={"tokens": tokens}, config=row)]
    return report("fused_moe_kernel", keys, family="moe", geometry=geometry, **fields)


def signature(kernel: str, time_ns: int, dims: Sequence[Sequence[int]] = ()) -> Json:
    return {
        "kernel": kernel,
        "launches": 10,
        "gpu_time_ns": time_ns,
        "dims": [list(each) for each in dims],
        "blocks": [8, 1, 1],
        "threads": [128, 1, 1],
    }


def profile(**times: int) -> Json:
    rows = [signature(kernel, time_ns) for kernel, time_ns in times.items()]
    return {"launches": 10 * len(rows), "signatures": rows}

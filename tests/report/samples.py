"""Builders of made-up but plausible report data. Nothing here was measured or is claimed."""

from __future__ import annotations

import math
from typing import Any

Json = dict[str, Any]

_KERNELS: tuple[tuple[str, float, tuple[tuple[int, ...], ...], str, float], ...] = (
    (
        "Cijk_Ailk_Bljk_HHS_BH_MT128x128x32_MI32x32x8x1_SE_1LDSB0_APM1_AF0EM8_WG32_8_1",
        0.31,
        ((256, 4096), (4096, 12288)),
        "op",
        0.9,
    ),
    ("void flash_fwd_kernel<Flash_fwd_traits<128, 64, 128, 4>>", 0.22, (), "none", 0.0),
    ("fused_moe_kernel", 0.17, ((64, 4096), (8, 14336, 4096)), "capture", 1.0),
    ("rmsnorm_kernel_bf16", 0.08, ((256, 4096), (4096,)), "op", 0.9),
    ("triton_poi_fused_silu_mul_0", 0.06, ((256, 14336),), "inferred", 0.55),
    (
        "void at::native::vectorized_elementwise_kernel<4, CUDAFunctor_add<half>>",
        0.05,
        (),
        "none",
        0.0,
    ),
    ("reshape_and_cache_flash", 0.03, ((256, 8, 128),), "marker", 0.7),
    ("topk_softmax", 0.02, ((256, 8),), "counter", 0.95),
)


def signature(
    kernel: str,
    *,
    share: float,
    dims: tuple[tuple[int, ...], ...] = (),
    source: str = "none",
    confidence: float = 0.0,
    total_ns: int = 4_200_000_000,
) -> Json:
    return {
        "kernel": kernel,
        "launches": max(1, round(share * 90_000)),
        "gpu_time_ns": round(share * total_ns),
        "share": share,
        "blocks": [0, 0, 0] if dims else [512, 1, 1],
        "threads": [0, 0, 0] if dims else [256, 1, 1],
        "dims": [list(d) for d in dims],
        "dtypes": ["bfloat16"] * len(dims),
        "layout": "contiguous" if dims else "",
        "shape_source": source,
        "shape_confidence": confidence,
    }


def profile(weights: dict[str, float] | None = None, *, small: int = 24) -> Json:
    """Eight kernels and a tail; `weights` multiplies shares by kernel, 0 drops one."""
    rows = []
    for kernel, share, dims, source, confidence in _KERNELS:
        scaled = share * (weights or {}).get(kernel, 1.0)
        if scaled:
            rows.append((kernel, scaled, dims, source, confidence))
    rows += [(f"elementwise_{i:02d}", 0.06 / (i + 3), (), "none", 0.0) for i in range(small)]
    total = sum(row[1] for row in rows)
    found = [
        signature(k, share=s / total, dims=d, source=src, confidence=c)
        for k, s, d, src, c in sorted(rows, key=lambda row: -row[1])
    ]
    return {
        "launches": sum(s["launches"] for s in found),
        "gpu_time_ns": sum(s["gpu_time_ns"] for s in found),
        "signatures": found,
    }


def analyze() -> Json:
    return {
        "files": [
            {
                "path": "traces/decode/12345_kernel_trace.csv",
                "format": "rocprofv3-csv",
                "launches": 88_210,
                "kernels": 32,
                "span_ns": 5_200_000_000,
                "skipped": {"zero-duration": 12, "duplicate": 3},
                "error": None,
            },
            {
                "path": "traces/broken.json.gz",
                "format": "",
                "launches": 0,
                "kernels": 0,
                "span_ns": 0,
                "skipped": {},
                "error": {
                    "code": "truncated-gzip",
                    "where": "traces/broken.json.gz byte 65536",
                    "message": "the compressed stream ends early; copy the file again",
                },
            },
        ],
        "profile": profile(),
    }


def drift() -> Json:
    return {
        "detected": True,
        "action": "retune",
        "distance": 0.184,
        "sentence": "fused_moe_kernel grew from 17.0 % to 41.2 % of kernel time; rmsnorm is gone.",
        "reasons": [
            {
                "code": "share-changed",
                "kernel": "fused_moe_kernel",
                "share_before": 0.17,
                "share_after": 0.412,
                "detail": "2.4 times the share, over 3 windows",
            },
            {
                "code": "new-signature",
                "kernel": "batched_gemm_a8w8",
                "share_before": 0.0,
                "share_after": 0.09,
                "detail": "absent from every tuned profile",
            },
        ],
    }


def diff() -> Json:
    after = profile({"fused_moe_kernel": 3.2, "rmsnorm_kernel_bf16": 0.0})
    after["signatures"].append(
        signature(
            "batched_gemm_a8w8",
            share=0.09,
            dims=((16, 4096), (4096, 4096)),
            source="op",
            confidence=0.9,
        )
    )
    return {
        "drift": drift(),
        "before": profile(),
        "after": after,
        "names": ["chat-monday.csv", "code-tuesday.csv"],
    }


def _finding(name: str, structure: str, reason: str, **more: Any) -> Json:
    status = {"faster": "promote", "within-noise": "ambiguous"}.get(reason, "reject")
    return {
        "name": name,
        "structure": structure,
        "params": more.get("params", {"TILE": 32, "UNROLL": 4}),
        "status": status,
        "reason": reason,
        "gate": more.get("gate", "G5"),
        "detail": more.get("detail", ""),
        "speedup": more.get("speedup"),
        "seconds": more.get("seconds", 2.4),
    }


def interval(point: float, spread: float = 0.03) -> Json:
    return {
        "lower": point * (1 - spread),
        "point": point,
        "upper": point * (1 + spread),
        "confidence": 0.99,
    }


def live_proof(verdict: str, server: float) -> Json:
    """What the demo tells of one; `server` is its speed with the swap over that without."""
    said = "12.0 % less time" if server > 1 else "12.0 % longer"
    return {
        "sentence": f"{verdict} (stated): steps take {said}; 9 pairs in 21 s, 10 s on",
        "speedup": interval(server),
        "report": {"verdict": verdict, "reason": "stated", "pairs": 9},
    }


def experiment(kernel: str = "linear_w8a32_n1024_k1024") -> Json:
    findings = [
        _finding(
            "panels-32.u4.t1",
            "panels",
            "faster",
            speedup=interval(3.41),
            gate="G6",
            detail="80.2 us at M=1 stays, 19.0 ms falls to 5.4 ms at M=256",
            seconds=9.1,
        ),
        _finding("panels-32.u8.t1", "panels", "lost-search", speedup=interval(3.22)),
        _finding("panels-64.u4.t1", "panels", "lost-search", speedup=interval(2.71, 0.05)),
        _finding(
            "row-dots.u16.t1",
            "row-dots",
            "within-noise",
            speedup=interval(1.006, 0.012),
            detail="lower bound 0.994 is below the noise floor 1.013",
        ),
        _finding("row-dots.u2.t1", "row-dots", "slower", speedup=interval(0.72)),
        _finding(
            "panels-16.u1.t1",
            "panels",
            "slower",
            speedup=interval(0.18, 0.08),
            detail="108 ms against 19.0 ms at M=256",
        ),
        _finding(
            "panels-32.u4.fast",
            "panels",
            "wrong-output",
            gate="G3",
            detail="error 41 times the incumbent's own at M=64",
        ),
        _finding(
            "blocked-7",
            "blocked",
            "compile-failed",
            gate="G1",
            seconds=0.3,
            detail="error: static assertion failed: TILE must be a power of two",
        ),
    ]
    reasons: dict[str, int] = {}
    for finding in findings:
        reasons[finding["reason"]] = reasons.get(finding["reason"], 0) + 1
    return {
        "kernel": kernel,
        "candidates": len(findings),
        "verdicts": reasons,
        "findings": findings,
        "noise_floor_ratio": 1.013,
        "seconds": 41.0,
    }


def failed_experiment() -> Json:
    first = experiment()["findings"]
    return {
        "kernel": "rmsnorm_h1024",
        "candidates": 3,
        "verdicts": {"within-noise": 1, "slower": 2},
        "findings": [first[3], first[4], {**first[4], "name": "two-pass.v16"}],
        "noise_floor_ratio": 1.021,
        "seconds": 12.5,
    }


_PHASES = (
    ("start", 0, 12),
    ("chat", 12, 70),
    ("code", 70, 130),
    ("experiment", 130, 190),
    ("swap on and off", 190, 240),
    ("fault", 240, 252),
    ("after rollback", 252, 280),
)
_RATES = {
    "start": 60,
    "chat": 210,
    "code": 118,
    "experiment": 112,
    "fault": 186,
    "after rollback": 188,
}


def _rate(t: int) -> tuple[float, str]:
    name = next(n for n, start, end in _PHASES if start <= t < end)
    base = float(_RATES.get(name, 190 if (t - 190) // 12 % 2 == 0 else 119))
    return base + 6 * math.sin(t * 1.7) + 3 * math.sin(t * 0.37), name


def demo() -> Json:
    timeline = [
        {"t_s": float(t), "tokens_per_s": _rate(t)[0], "phase": _rate(t)[1]} for t in range(280)
    ]
    windows = [
        {
            "t_s": t + 5.0,
            "distance": 0.012 + 0.004 * math.sin(t) if t < 70 else 0.22 + 0.02 * math.sin(t),
            "cusum": max(0.0, (t - 70) * 0.9) if t < 95 else 0.0,
            "action": "retune" if t == 90 else "none",
        }
        for t in range(10, 130, 10)
    ]
    shares = [
        ("linear_w8a32_n1024_k1024", "M 1 to 16", 0.44, 0.12),
        ("linear_w8a32_n1024_k1024", "M 129 to 512", 0.06, 0.55),
        ("attention_h16_d64", "L 256 to 512", 0.21, 0.17),
        ("rmsnorm_h1024", "M 1 to 16", 0.09, 0.02),
        ("silu_mul_f2816", "M 129 to 512", 0.03, 0.09),
    ]
    body = drift()
    body["sentence"] = (
        "linear_w8a32_n1024_k1024 at 129 <= M <= 512 grew from 6.0 % to 55.0 % of kernel time."
    )
    body["before"] = [
        {"kernel": k, "shape": s, "share_before": a, "share_after": b} for k, s, a, b in shares
    ]
    body["after"] = body["before"]
    body["reasons"] = [
        {
            "code": "share-changed",
            "kernel": k,
            "shape": s,
            "share_before": a,
            "share_after": b,
            "detail": f"{abs(b - a) * 100:.1f} points over 3 windows",
        }
        for k, s, a, b in shares[:3]
    ]
    return {
        "requests": {"sent": 1204, "ok": 1204, "failed": 0},
        "tokens_per_s": {
            "before_drift": 210.4,
            "after_drift": 118.2,
            "after_swap": 190.7,
            "after_rollback": 188.1,
        },
        "drift": body,
        "experiments": [failed_experiment(), experiment()],
        "swaps": [
            {
                "kernel": "linear_w8a32_n1024_k1024",
                "guard": "129 <= M <= 512",
                "digest": "sha256:" + "3f9a" * 16,
                "speedup": interval(3.38),
                "swap_us": 61.4,
                "live_proof": live_proof("helps", 1.59),
                "kept": True,
                "rolled_back": True,
            }
        ],
        "rollback": {
            "detected_after_s": 4.1,
            "reverted": True,
            "alarm_to_revert_s": 0.31,
            "reason": "shadow-mismatch",
            "kernel": "linear_w8a32_n1024_k1024",
        },
        "duration_s": 281.3,
        "machine": {"cpu": "Example CPU 3.0 GHz", "cores": 2, "memory_gib": 24, "gpu": None},
        "timeline": timeline,
        "phases": [{"name": n, "start_s": a, "end_s": b} for n, a, b in _PHASES],
        "drift_windows": windows,
        "hypotheses": [
            {
                "definition": "rmsnorm_h1024",
                "share": 0.05,
                "expected_gain_ratio": 1.3,
                "expected_saving": 0.012,
                "attempt": 1,
                "because": "12 % of the bandwidth the machine reaches at these shapes",
            },
            {
                "definition": "linear_w8a32_n1024_k1024",
                "share": 0.55,
                "expected_gain_ratio": 2.5,
                "expected_saving": 0.33,
                "attempt": 2,
                "because": "row dots read the weight once per row; panels read it once",
            },
        ],
        "proposals": [
            {
                "id": "sha256:" + "a41c" * 16,
                "kernel": "linear_w8a32_n1024_k1024",
                "risk": "medium",
                "guard": "129 <= M <= 512",
                "gate": "demo.yaml: approved, one person",
                "decided_by": "--yes on the command line",
            }
        ],
    }

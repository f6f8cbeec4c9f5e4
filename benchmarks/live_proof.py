"""Error rates and power of the live proof on simulated servers.

    OPENBLAS_NUM_THREADS=1 python -m benchmarks.live_proof [--runs 1000] [--power 40]

The production code plans pairs, fits expected times, bets and decides; `live_proof_sim` draws the
steps of the servers. Four parts:

- `no_effect`: proofs of a swap that changes nothing, on five kinds of servers. Short blocks decide
  alone (`long_blocks` 0), so that a wrong `helps` counts when it is first shown.
- `resigned`: one proof without effect, its pairs re-labelled at random, with all looks.
- `effects`: proofs of known effects, with the time until the verdict after the pilot.
- `traps`: rare stalls behind a faster mean, and a kernel that is twice as fast behind a slow host,
  both with long blocks.

Raw counts are in benchmarks/results/live_proof_sim.json. Times are simulated seconds.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.catalog_cpu import machine
from benchmarks.live_proof_sim import (
    GPU_BOUND,
    HOST_BOUND,
    HOST_ONLY,
    SERVERS,
    Server,
    Swap,
    run_proof,
)

from retuned.stages.watch.proof import PairKind, ProofSettings, ProofState
from retuned.stages.watch.proof.evidence import factors, scale_of

RESULT = Path(__file__).resolve().parent / "results" / "live_proof_sim.json"
EFFECTS = (-0.05, -0.02, -0.01, -0.005, 0.005, 0.01, 0.02, 0.05)
NOISY = ("host-bound", "bursts")
NOISY_S = 420.0
"""Longest duration of proofs without effect on noisy servers; the default is 1,800 s."""
METHOD = (
    "the production code plans, fits, bets and decides; benchmarks/live_proof_sim.py draws steps; "
    "one seed per proof; seconds are simulated and counted from the end of the pilot of 60 s; "
    "no_effect and effects: short blocks decide alone; a proof ends at its first verdict; effects "
    "are of GPU time on the GPU-bound server, of host time on the host-bound one; a step adds "
    "a constant of 0.3 ms; trend has the seeds of gpu-bound"
)


def summary(states: Sequence[ProofState]) -> dict[str, Any]:
    """Count verdicts, and give quantiles of the time after the pilot."""
    reports = [state.report for state in states if state.report is not None]
    verdicts = Counter(f"{each.verdict}/{each.reason}" for each in reports)
    seconds = sorted(each.seconds for each in reports)
    scales = sorted(state.pairs[-1].scale or 0.0 for state in states)
    return {
        "proofs": len(reports),
        "verdicts": dict(sorted(verdicts.items())),
        "seconds_median": round(seconds[len(seconds) // 2], 1),
        "seconds_9_of_10": round(seconds[int(0.9 * len(seconds))], 1),
        "scale_median": round(scales[len(scales) // 2], 5),
        "effect_median": _median([each.effect for each in reports if each.effect is not None]),
        "void_pairs": sum(each.void_pairs for each in reports),
        "pairs": sum(each.pairs for each in reports),
    }


def _median(values: list[float]) -> float | None:
    return round(sorted(values)[len(values) // 2], 5) if values else None


def no_effect(kind: str, *, runs: int) -> dict[str, Any]:
    longest = NOISY_S if kind in NOISY else 1800.0
    settings = ProofSettings(long_blocks=0, max_duration_s=longest)
    states = [
        run_proof(SERVERS[kind], Swap(), seed=10_000 + seed, settings=settings)
        for seed in range(runs)
    ]
    return {"server": kind, "max_duration_s": longest, **summary(states)}


def resigned(*, labels: int, pairs: int = 300) -> dict[str, Any]:
    """Re-label the pairs of one proof, and count how often either side reaches the bound."""
    settings = ProofSettings(long_blocks=0, min_effect=1e-6, max_duration_s=60.0 + 2.02 * pairs)
    state = run_proof(GPU_BOUND, Swap(), seed=77, settings=settings)
    sham = [pair.d for pair in state.of(PairKind.SHAM) if pair.d is not None]
    d = np.array([pair.d for pair in state.of(PairKind.SHORT)], dtype=np.float64)
    rng = np.random.default_rng(7)
    found = {"helps": 0, "harms": 0}
    for _ in range(labels):
        signed = d * rng.choice([-1.0, 1.0], len(d))
        scales = np.repeat([scale_of(sham, signed[:at]) for at in range(0, len(d), 8)], 8)[: len(d)]
        for name, side in (("helps", -1.0), ("harms", 1.0)):
            logs = np.cumsum(factors(side * signed / scales), axis=0)
            found[name] += int(np.exp(logs).mean(axis=1).max() >= 100.0)
    return {"labels": labels, "pairs": len(d), "scale_updated_every_pairs": 8, **found}


def effects(kind: str, server: Server, *, runs: int) -> list[dict[str, Any]]:
    rows = []
    for effect in EFFECTS:
        swap = Swap(host=effect) if kind == "host-bound" else Swap(gpu=effect)
        settings = ProofSettings(long_blocks=0)
        states = [
            run_proof(server, swap, seed=50_000 + seed, settings=settings) for seed in range(runs)
        ]
        rows.append({"server": kind, "effect": effect, **summary(states)})
    return rows


def traps(*, runs: int) -> list[dict[str, Any]]:
    cases = {
        "stalls: 1 step in 500 + 50 ms, mean 1 % less": (GPU_BOUND, Swap(gpu=-0.01, stalls=0.002)),
        "GPU time halved, host unchanged": (HOST_ONLY, Swap(gpu=-0.5)),
        "GPU time halved, host 45 % more": (HOST_ONLY, Swap(gpu=-0.5, host=0.45)),
    }
    rows = []
    for name, (server, swap) in cases.items():
        states = [run_proof(server, swap, seed=90_000 + seed) for seed in range(runs)]
        reports = [state.report for state in states if state.report is not None]
        bound = sum(report.account.host_bound for report in reports)
        rows.append({"case": name, "account_host_bound": bound, **summary(states)})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--runs", type=int, default=1000, help="proofs of each null")
    parser.add_argument("--power", type=int, default=40, help="proofs of each effect")
    parser.add_argument("--labels", type=int, default=10_000)
    parser.add_argument("--out", type=Path, default=RESULT)
    chosen = parser.parse_args()
    began = time.process_time()
    body: dict[str, Any] = {"effects": []}
    for kind, server in (("gpu-bound", GPU_BOUND), ("host-bound", HOST_BOUND)):
        body["effects"] += effects(kind, server, runs=chosen.power)
        print(f"effects {kind}: {time.process_time() - began:.0f} s")
    body["traps"] = traps(runs=min(chosen.power, 40))
    body["resigned"] = resigned(labels=chosen.labels)
    print(f"traps, re-labelled: {time.process_time() - began:.0f} s")
    body["no_effect"] = []
    for kind in SERVERS:
        body["no_effect"].append(no_effect(kind, runs=chosen.runs))
        print(f"no effect {kind}: {time.process_time() - began:.0f} s")
    write_report(chosen.out, body, method=METHOD, began_s=began)


def write_report(out: Path, body: Mapping[str, Any], *, method: str, began_s: float) -> None:
    """Write results with their machine, method and processor time since `began_s`."""
    report = {
        "machine": {**machine(), "python": platform.python_version()},
        "method": method,
        "cpu_s": round(time.process_time() - began_s, 1),
        **body,
    }
    out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""Error rates and power of a live proof by boots of replicas, on simulated fleets.

    OPENBLAS_NUM_THREADS=1 python -m benchmarks.live_proof_replicas [--runs 1000] [--power 200]

The production code assigns pairs, cuts windows, fits expected times, bets and decides;
`live_proof_replicas_sim` draws boots. Four parts:

- `no_effect`: proofs of a swap that changes nothing, by boot spread, also with heavy tails and with
  three times as many pairs.
- `power`: share of proofs that end `helps`, by boots in each arm, boot spread and effect, and the
  least effect that 80 % of them find.
- `below_spread`: effects that are smaller than the boot spread, with many pairs.
- `harm`: swaps that make steps slower, with the pairs until that is known.

Raw counts are in benchmarks/results/live_proof_replicas_sim.json. Times are simulated.
"""

from __future__ import annotations

import argparse
import math
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.live_proof import write_report
from benchmarks.live_proof_replicas_sim import Fleet, run_boots

from retuned.stages.watch.proof import (
    BootSettings,
    ReplicaReport,
    Verdict,
    percent_of,
)

RESULT = Path(__file__).resolve().parent / "results" / "live_proof_replicas_sim.json"
SPREADS = (0.005, 0.01, 0.02)
IN_SPREADS = {
    4: (20.0,),
    8: (2.0, 2.5, 3.0, 3.5, 4.0, 5.0),
    12: (1.5, 2.0, 2.5, 3.0),
    16: (1.0, 1.25, 1.5, 1.75, 2.0, 2.5),
    24: (1.0, 1.25, 1.5, 2.0),
}
"""Effects that are tried, in boot spreads, by boots in each arm."""
METHOD = (
    "the production code assigns, cuts windows, fits, bets and decides; "
    "benchmarks/live_proof_replicas_sim.py draws boots; one seed per proof; 8 A/A pairs before "
    "each proof; at most 16 pairs unless said; a boot's level is normal unless said, and a window "
    "adds 0.4 % of its own; the balancer sends a faster boot more work; least_effect_80 is "
    "interpolated between the effects of the rows, and null if no effect reaches 80 %"
)


def summary(reports: Sequence[ReplicaReport]) -> dict[str, Any]:
    """Count verdicts, and give medians."""
    verdicts = Counter(f"{each.verdict}/{each.reason}" for each in reports)
    return {
        "proofs": len(reports),
        "verdicts": dict(sorted(verdicts.items())),
        "pairs_median": _median([each.pairs for each in reports]),
        "spread_median": _median([each.spread.sd for each in reports if each.spread]),
        "spread_high_median": _median([each.spread.high for each in reports if each.spread]),
        "effect_median": _median([each.effect for each in reports if each.effect is not None]),
    }


def _median(values: Sequence[float]) -> float | None:
    return round(sorted(values)[len(values) // 2], 5) if values else None


def proofs(
    fleet: Fleet, *, runs: int, first_seed: int, most_pairs: int = 16
) -> list[ReplicaReport]:
    settings = BootSettings(most_pairs=most_pairs)
    states = [run_boots(fleet, seed=first_seed + n, settings=settings) for n in range(runs)]
    return [state.report for state in states if state.report is not None]


def no_effect(*, runs: int) -> list[dict[str, Any]]:
    cases = [(Fleet(spread), 16) for spread in SPREADS]
    cases += [(Fleet(0.01, heavy=True), 16), (Fleet(0.01), 48)]
    return [
        {
            "spread": fleet.spread,
            "heavy_tails": fleet.heavy,
            "most_pairs": most,
            **summary(proofs(fleet, runs=runs, first_seed=10_000, most_pairs=most)),
        }
        for fleet, most in cases
    ]


def power(*, runs: int) -> list[dict[str, Any]]:
    rows = []
    for spread in SPREADS:
        for boots, effects in IN_SPREADS.items():
            shares = []
            for times in effects:
                fleet = Fleet(spread, effect=math.expm1(-times * spread))
                found = proofs(fleet, runs=runs, first_seed=50_000, most_pairs=boots)
                helps = sum(each.verdict is Verdict.HELPS for each in found)
                wrong = sum(each.verdict is Verdict.HARMS for each in found)
                row = {"effect_in_spreads": times, "helps": helps, "harms": wrong, "proofs": runs}
                shares.append(row)
            rows.append(
                {
                    "spread": spread,
                    "boots_in_each_arm": boots,
                    "least_effect_80_in_spreads": _least(shares),
                    "least_effect_80_percent": _percent(_least(shares), spread),
                    "effects": shares,
                }
            )
    return rows


def _least(shares: Sequence[dict[str, Any]]) -> float | None:
    """Return the effect at which 80 % are found, between the last below and the first above."""
    last: tuple[float, float] | None = None
    for row in shares:
        at, share = row["effect_in_spreads"], row["helps"] / row["proofs"]
        if share >= 0.8:
            if last is None:
                return float(at)
            part = (0.8 - last[1]) / (share - last[1])
            return round(float(last[0] + part * (at - last[0])), 2)
        last = (at, share)
    return None


def _percent(in_spreads: float | None, spread: float) -> float | None:
    return None if in_spreads is None else round(-percent_of(-in_spreads * spread), 2)


def below_spread(*, runs: int) -> list[dict[str, Any]]:
    rows = []
    for times, most in ((0.5, 16), (0.5, 64), (0.8, 64)):
        fleet = Fleet(0.01, effect=math.expm1(-times * 0.01))
        found = proofs(fleet, runs=runs, first_seed=70_000, most_pairs=most)
        row = {"spread": 0.01, "effect_in_spreads": times, "most_pairs": most}
        rows.append({**row, **summary(found)})
    return rows


def harm(*, runs: int) -> list[dict[str, Any]]:
    rows = []
    for effect in (0.02, 0.05, 0.10, 0.20):
        found = proofs(Fleet(0.01, effect=effect), runs=runs, first_seed=80_000)
        rows.append({"spread": 0.01, "effect": effect, **summary(found)})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--runs", type=int, default=1000, help="proofs of each null")
    parser.add_argument("--power", type=int, default=200, help="proofs of each effect")
    parser.add_argument("--out", type=Path, default=RESULT)
    chosen = parser.parse_args()
    began = time.process_time()
    body: dict[str, Any] = {}
    body["no_effect"] = no_effect(runs=chosen.runs)
    print(f"no effect: {time.process_time() - began:.0f} s")
    body["power"] = power(runs=chosen.power)
    print(f"power: {time.process_time() - began:.0f} s")
    body["below_spread"] = below_spread(runs=chosen.power)
    body["harm"] = harm(runs=chosen.power)
    write_report(chosen.out, body, method=METHOD, began_s=began)


if __name__ == "__main__":
    main()

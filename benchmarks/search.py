"""The parameter search beside uniform sampling, on surfaces it was not made for.

    python -m benchmarks.search record   times of every point of some kernels; a quarter of an hour
    python -m benchmarks.search          the comparison, from the recordings; a quarter of an hour

Surfaces are recordings of real kernels on a processor, and synthetic ones that are hard in one way
each: interactions (ridge), cliffs with regions that cannot be built (cliff), many small hills
(rugged), mostly irrelevant parameters (sparse), unordered choices (words). The search's constants
were chosen on the part called tuning; the figures that count are of the part called held-out. All
searches get the same budget, a tenth of the points, in batches of four as the lab asks for them,
with a noise of 1 % on every measurement; the three that measured best are the finalists, and the
best of them counts. Writes benchmarks/results/search.json.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.catalog_cpu import machine
from benchmarks.search_sim.recording import record
from benchmarks.search_sim.replay import Make, Outcome, replay
from benchmarks.search_sim.surfaces import KINDS, Surface, recorded, synthetic
from benchmarks.uniform import RandomGenerator

from retuned.lab.generators import SearchGenerator

RESULTS = Path(__file__).parent / "results"
RECORDINGS = RESULTS / "search_surfaces.json"
TUNED_ON = RESULTS / "linear_w8_space.json"
TUNING = ("linear_w8_n1024_k1024",)
LEAST = 8
"""Evaluations on surfaces so small that a tenth of them is nothing."""
METHODS: Mapping[str, Make] = {
    "ours": lambda surface, seed: SearchGenerator(surface.tunable, cores=1, seed=seed),
    "random": lambda surface, seed: RandomGenerator(surface.tunable, cores=1, seed=seed),
}


def surfaces(part: str, *, count: int) -> list[Surface]:
    """Return the surfaces of a part."""
    found: list[Surface] = []
    bodies = [json.loads(TUNED_ON.read_text())]
    if RECORDINGS.exists():
        bodies += json.loads(RECORDINGS.read_text())["kernels"]
    for body in bodies:
        for guesses in (True, False):
            found += recorded(body, guesses=guesses, tuning=TUNING)
    first = 0 if part == "tuning" else 1000
    found += [synthetic(kind, first + seed, part=part) for kind in KINDS for seed in range(count)]
    return [surface for surface in found if surface.part == part]


def compare(found: Sequence[Surface], *, seeds: int) -> list[dict[str, Any]]:
    """Run every method on every surface; one row a surface."""
    rows = []
    for surface in found:
        budget = max(LEAST, math.ceil(len(surface.times_us) / 10))
        row: dict[str, Any] = {
            "surface": surface.name,
            "kind": surface.kind,
            "points": len(surface.times_us),
            "evaluations": budget,
            "incumbent_share": round(surface.best_us / surface.incumbent_us, 4),
        }
        for method, make in METHODS.items():
            began = time.process_time()
            outcomes = [
                replay(make, surface, evaluations=budget, seed=seed) for seed in range(seeds)
            ]
            row[method] = _summary(outcomes, budget)
            row[method]["cpu_s"] = round(time.process_time() - began, 2)
        rows.append(row)
        cells = "  ".join(f"{m} {row[m]['median']:.3f}/{row[m]['worst']:.3f}" for m in METHODS)
        print(f"{surface.name:44} {len(surface.times_us):5} {budget:4}  {cells}", flush=True)
    return rows


def _summary(outcomes: Sequence[Outcome], budget: int) -> dict[str, Any]:
    shares = sorted(outcome.share for outcome in outcomes)
    needed = [outcome.needed if outcome.needed else budget + 1 for outcome in outcomes]
    return {
        "median": round(statistics.median(shares), 4),
        "worst": round(shares[0], 4),
        "within_2_percent": round(sum(share >= 0.98 for share in shares) / len(shares), 3),
        "median_evaluations_to_2_percent": statistics.median(needed),
        "shares": [round(share, 4) for share in shares],
    }


def totals(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return each method's figures over all surfaces, and those of real kernels alone."""
    found = {}
    for label, own in (
        ("all", rows),
        ("recorded", [row for row in rows if row["kind"] == "recorded"]),
        ("synthetic", [row for row in rows if row["kind"] != "recorded"]),
    ):
        if not own:
            continue
        found[label] = {
            method: {
                "mean_share": round(
                    statistics.fmean(share for row in own for share in row[method]["shares"]), 4
                ),
                "within_2_percent": round(
                    statistics.fmean(row[method]["within_2_percent"] for row in own), 3
                ),
                "surfaces_with_median_within_2_percent": sum(
                    row[method]["median"] >= 0.98 for row in own
                ),
                "surfaces": len(own),
            }
            for method in METHODS
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("what", nargs="?", choices=("compare", "record"), default="compare")
    parser.add_argument("--part", choices=("tuning", "held-out", "both"), default="both")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--count", type=int, default=5, help="synthetic surfaces of each kind")
    parser.add_argument("--cache", type=Path, help="folder for compiled kernels, kept between runs")
    chosen = parser.parse_args()
    RESULTS.mkdir(exist_ok=True)
    if chosen.what == "record":
        cache = chosen.cache or Path(tempfile.mkdtemp(prefix="search-record-"))
        method = "rounds over all points in rotating order, one thread, medians of its CPU time"
        body = {"machine": machine(), "method": method, "kernels": list(record(cache))}
        RECORDINGS.write_text(json.dumps(body) + "\n")
        print("written: results/search_surfaces.json")
        return
    parts = ("tuning", "held-out") if chosen.part == "both" else (chosen.part,)
    report: dict[str, Any] = {
        "machine": machine(),
        "method": (__doc__ or "").strip(),
        "seeds": chosen.seeds,
        "parts": {},
    }
    for part in parts:
        print(part)
        rows = compare(surfaces(part, count=chosen.count), seeds=chosen.seeds)
        report["parts"][part] = {"totals": totals(rows), "surfaces": rows}
        print(json.dumps(report["parts"][part]["totals"], indent=1))
    if chosen.part == "both":
        (RESULTS / "search.json").write_text(json.dumps(report, indent=1) + "\n")
        print("written: results/search.json")


if __name__ == "__main__":
    main()

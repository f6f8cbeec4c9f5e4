"""What priors from other sizes of a kernel save, and what wrong ones cost.

    python -m benchmarks.priors      a few minutes

Each surface is a size that is held out. Priors are learned from searches of other sizes, each with
the usual budget of a tenth of the points and a noise of 1 %. Other sizes of the recorded kernel are
its other recorded lengths; those of made-up ones follow the same law, where each value of each
parameter does up to some per cent more or less. Wrong priors come from a kernel that has only the
space in common (every point has another's time: unrelated), and from the held-out size itself
turned upside down (a lie). Counted are evaluations until the best so far was truly within 2 % of
the exhaustive best; searches go on to a quarter of the points, and one that never was there
counts as one more than that. Constants were chosen on the part called tuning. Writes
benchmarks/results/priors.json.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.catalog_cpu import machine
from benchmarks.search import RESULTS, TUNED_ON
from benchmarks.search_sim.replay import Outcome, replay
from benchmarks.search_sim.siblings import inverted, priors_from, shuffled, sibling
from benchmarks.search_sim.surfaces import KINDS, Surface, recorded, synthetic

from retuned.lab.generators import SearchGenerator
from retuned.lab.generators.priors import Priors

SIBLINGS = 3
"""Other sizes that were searched before."""
SPREAD = 0.03
"""How much a value does more or less at another size, in logarithms."""
SOURCES = ("none", "siblings", "unrelated", "inverted")
"""Where priors come from."""
FIRST = {"tuning": 0, "held-out": 3000}
"""Seeds of the made-up surfaces."""


def cases(part: str, *, count: int) -> list[tuple[Surface, list[Surface]]]:
    """Return held-out sizes, each with the other sizes that were searched before."""
    found: list[tuple[Surface, list[Surface]]] = []
    if part == "recorded":
        for guesses in (True, False):
            sizes = recorded(json.loads(TUNED_ON.read_text()), guesses=guesses, tuning=())
            found += [(held, [each for each in sizes if each is not held]) for held in sizes]
        return found
    for kind in KINDS:
        for seed in range(count):
            held = synthetic(kind, FIRST[part] + seed, part=part)
            sizes = [sibling(held, number=n, spread=SPREAD) for n in range(SIBLINGS)]
            found.append((held, sizes))
    return found


def compare(found: Sequence[tuple[Surface, list[Surface]]], *, seeds: int) -> list[dict[str, Any]]:
    """Search every held-out size with each kind of prior; one row a surface."""
    rows = []
    for held, sizes in found:
        points = len(held.times_us)
        limit = max(16, math.ceil(points * 0.25))
        row: dict[str, Any] = {"surface": held.name, "kind": held.kind, "points": points}
        for name in SOURCES:
            outcomes = [
                _run(held, _priors(name, held, sizes, seed=seed + 100), limit=limit, seed=seed)
                for seed in range(seeds)
            ]
            row[name] = [each.needed or limit + 1 for each in outcomes]
        rows.append(row)
        cells = "  ".join(f"{name} {statistics.fmean(row[name]):6.1f}" for name in SOURCES)
        print(f"{held.name:44} {points:5}  {cells}", flush=True)
    return rows


def _priors(source: str, held: Surface, sizes: Sequence[Surface], *, seed: int) -> Priors | None:
    if source == "none":
        return None
    searched = {
        "siblings": list(sizes),
        "unrelated": [shuffled(held, number=n) for n in range(SIBLINGS)],
        "inverted": [inverted(held)],
    }[source]
    return priors_from(searched, seed=seed)


def _run(surface: Surface, priors: Priors | None, *, limit: int, seed: int) -> Outcome:
    def make(each: Surface, chance: int) -> SearchGenerator:
        return SearchGenerator(each.tunable, cores=1, seed=chance, priors=priors)

    return replay(make, surface, evaluations=limit, seed=seed)


def totals(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return, per kind of prior, evaluations that were needed and how that compares with none."""
    found = {}
    for name in SOURCES:
        own = [needed for row in rows for needed in row[name]]
        more = [
            needed - without
            for row in rows
            for needed, without in zip(row[name], row["none"], strict=True)
        ]
        found[name] = {
            "mean_evaluations": round(statistics.fmean(own), 2),
            "median_evaluations": statistics.median(own),
            "mean_more_than_none": round(statistics.fmean(more), 2),
            "median_more_than_none": statistics.median(more),
            "searches": len(own),
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--part", choices=("tuning", "held-out", "recorded", "all"), default="all")
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--count", type=int, default=5, help="made-up surfaces of each kind")
    chosen = parser.parse_args()
    parts = ("tuning", "recorded", "held-out") if chosen.part == "all" else (chosen.part,)
    report: dict[str, Any] = {
        "machine": machine(),
        "method": (__doc__ or "").strip(),
        "seeds": chosen.seeds,
        "parts": {},
    }
    for part in parts:
        print(part)
        rows = compare(cases(part, count=chosen.count), seeds=chosen.seeds)
        report["parts"][part] = {"totals": totals(rows), "surfaces": rows}
        print(json.dumps(report["parts"][part]["totals"], indent=1))
    if chosen.part == "all":
        path: Path = RESULTS / "priors.json"
        path.write_text(json.dumps(report, indent=1) + "\n")
        print("written: results/priors.json")


if __name__ == "__main__":
    main()

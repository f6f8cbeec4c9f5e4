"""What a search recovers after the traffic changed, on surfaces that were measured on a GPU.

    python -m benchmarks.gpu.recovery            reads results/gpu_catalog_*.json; ten minutes

Yesterday's traffic launches a kernel at its small shapes, and the kernel was tuned for exactly
that: its incumbent is the best of all recorded points at yesterday's mix. Then the traffic shifts
to the larger shapes. A search may evaluate a tenth of the points; what it recovers is the part of
the time per launch, at today's mix, that the best of all recorded points would save. Evaluations
have a noise of 1 %, the three that measured best are finalists, the best of them counts. Kernels
whose incumbent is within 2 % of the best at today's mix have nothing to recover and are listed.
``ours`` begins with the catalog's first guesses, as the product does; ``ours, no guesses`` and all
others know nothing.

``autotuner`` is what Triton's own does with a list of the same length: points of the incumbent's
structure at even distances, each measured; it has no other structures, and no memory.
Of kernels with large spaces a sample by chance was recorded; searches see only recorded points.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import mul
from pathlib import Path
from typing import Any

from benchmarks.catalog_cpu import machine
from benchmarks.search_sim.replay import Make, replay
from benchmarks.search_sim.surfaces import Surface
from benchmarks.uniform import RandomGenerator

from retuned import catalog
from retuned.catalog.entry import Params, Space
from retuned.contract import Definition, Language, Workload
from retuned.lab.generators import SearchGenerator
from retuned.lab.generators.spaces import Grid, Point

RESULTS = Path(__file__).resolve().parents[1] / "results"
OUT = RESULTS / "gpu_recovery.json"
SEEDS = 20
_HEADROOM = 1.02
_CLOSE = 0.98
"""Time of the best point over that of the best finalist."""
_NOISE = 0.01
_SHIFTS: Mapping[int, tuple[tuple[float, ...], tuple[float, ...]]] = {
    3: ((0.8, 0.2, 0.0), (0.1, 0.3, 0.6)),
    4: ((0.7, 0.3, 0.0, 0.0), (0.1, 0.2, 0.5, 0.2)),
    5: ((0.6, 0.3, 0.1, 0.0, 0.0), (0.05, 0.15, 0.3, 0.4, 0.1)),
}
"""Shares of launches before and after, by the number of recorded shapes, smallest shape first."""
METHODS: Mapping[str, Make] = {
    "ours": lambda surface, seed: SearchGenerator(surface.tunable, cores=1, seed=seed),
    "random": lambda surface, seed: RandomGenerator(surface.tunable, cores=1, seed=seed),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix(Surface):
    """A surface whose times are means over a mix of shapes."""

    mix: tuple[tuple[dict[str, int], float], ...]

    @property
    def workloads(self) -> list[Workload]:
        """The shapes of the mix."""
        name = self.tunable.definition.name
        return [Workload(definition=name, axes=axes, weight=w) for axes, w in self.mix if w > 0.0]


def surface_of(body: Mapping[str, Any], *, guesses: bool) -> Mix:
    """Return today's surface, with yesterday's best as incumbent."""
    entry = catalog.get(str(body["definition"]), language=Language.TRITON)
    shapes = [dict(shape["axes"]) for shape in body["shapes"]]
    before, after = _SHIFTS[len(shapes)]
    labels = [" ".join(f"{a}={n}" for a, n in axes.items()) for axes in shapes]
    rows = {_key(row["structure"], row["params"]): row["median_us"] for row in body["points"]}
    tunable = _recorded_only(entry, frozenset(rows), guesses=guesses)
    grid = Grid(tunable, cores=1)
    old: dict[Point, float | None] = {}
    new: dict[Point, float | None] = {}
    for point in grid.points:
        taken = rows[_key(point.structure, grid.params(point))]
        times = [taken[label] for label in labels if taken.get(label) is not None]
        whole = len(times) == len(labels)
        old[point] = sum(map(mul, before, times)) if whole else None
        new[point] = sum(map(mul, after, times)) if whole else None
    tuned = min((took, point) for point, took in old.items() if took is not None)[1]
    return Mix(
        name=str(body["definition"]),
        kind="recorded",
        part="held-out",
        tunable=dataclasses.replace(tunable, incumbent=grid.solution(tuned)),
        axes=shapes[-1],
        times_us=new,
        noise=_NOISE,
        mix=tuple(zip(shapes, after, strict=True)),
    )


def _recorded_only(
    entry: catalog.KernelEntry, recorded: frozenset[str], *, guesses: bool
) -> catalog.KernelEntry:
    def narrowed(space: Space) -> Space:
        def valid(params: Params, definition: Definition) -> bool:
            return _key(space.name, params) in recorded and space.valid(params, definition)

        kept = dataclasses.replace(space, valid=valid)
        if guesses:
            return kept
        return dataclasses.replace(kept, starts=lambda _axes: (), rank=lambda _axes: 0)

    return dataclasses.replace(entry, spaces=tuple(narrowed(space) for space in entry.spaces))


def _key(structure: str, params: Mapping[str, int | str]) -> str:
    return json.dumps([structure, sorted(params.items())])


def compare(body: Mapping[str, Any], *, seeds: int) -> dict[str, Any]:
    """Replay every method on one kernel's surface."""
    known, blind = surface_of(body, guesses=True), surface_of(body, guesses=False)
    headroom = blind.incumbent_us / blind.best_us
    budget = math.ceil(len(blind.times_us) / 10)
    row: dict[str, Any] = {
        "kernel": blind.name,
        "points": len(blind.times_us),
        "whole_space": body["whole_space"],
        "evaluations": budget,
        "headroom": round(headroom, 4),
    }
    if headroom < _HEADROOM:
        return row
    sides = {"ours": (known, METHODS["ours"]), "ours, no guesses": (blind, METHODS["ours"])}
    sides |= {name: (blind, make) for name, make in METHODS.items() if name != "ours"}
    for name, (surface, make) in sides.items():
        shares = [replay(make, surface, evaluations=budget, seed=s).share for s in range(seeds)]
        row[name] = _summary(shares, headroom=headroom)
    row["autotuner"] = _summary([_autotuned(blind, budget)], headroom=headroom)
    return row


def _recovered(share: float, headroom: float) -> float:
    """Return the part of the saving: 1 is what the best point saves, 0 nothing."""
    lost = 1.0 - 1.0 / headroom
    return (1.0 - 1.0 / (headroom * share)) / lost if share * headroom > 1.0 else 0.0


def _autotuned(surface: Mix, budget: int) -> float:
    structure = surface.tunable.incumbent.structure
    own = sorted(point for point in surface.times_us if point.structure == structure)
    step = max(1.0, len(own) / budget)
    tried = [own[int(n * step)] for n in range(min(budget, len(own)))]
    times = [took for point in tried if (took := surface.times_us[point]) is not None]
    return surface.best_us / min([surface.incumbent_us, *times])


def _summary(shares: Sequence[float], *, headroom: float) -> dict[str, Any]:
    recovered = [_recovered(share, headroom) for share in shares]
    return {
        "median": round(statistics.median(recovered), 4),
        "mean": round(statistics.fmean(recovered), 4),
        "worst": round(min(recovered), 4),
        "within_2_percent": round(statistics.fmean(share >= _CLOSE for share in shares), 4),
        "raw": [round(value, 4) for value in recovered],
    }


def main() -> None:
    """Compare on all recordings, print a line a kernel, and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=SEEDS)
    chosen = parser.parse_args()
    rows = []
    for path in sorted(RESULTS.glob("gpu_catalog_*.json")):
        for body in json.loads(path.read_text("utf-8"))["kernels"]:
            rows.append(compare(body, seeds=chosen.seeds))
            cells = "  ".join(
                f"{name} {row['median']:.2f}"
                for name, row in rows[-1].items()
                if isinstance(row, dict)
            )
            print(
                f"{rows[-1]['kernel']:40} {rows[-1]['evaluations']:3} of {rows[-1]['points']:4}"
                f"  headroom {rows[-1]['headroom']:.2f}  {cells}",
                flush=True,
            )
    names = ["ours", "ours, no guesses", "random", "autotuner"]
    moved = [row for row in rows if "ours" in row]
    totals = {
        name: {
            "mean_recovered": round(statistics.fmean(row[name]["mean"] for row in moved), 4),
            "within_2_percent_of_the_best": round(
                statistics.fmean(row[name]["within_2_percent"] for row in moved), 4
            ),
            "kernels_with_median_over_95_percent": sum(
                row[name]["median"] >= 0.95 for row in moved
            ),
            "kernels": len(moved),
        }
        for name in names
    }
    print(json.dumps(totals, indent=1))
    body = {"machine": machine(), "method": __doc__, "seeds": chosen.seeds}
    OUT.write_text(json.dumps({**body, "totals": totals, "kernels": rows}) + "\n", "utf-8")


if __name__ == "__main__":
    main()

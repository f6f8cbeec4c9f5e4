"""A search over a surface, as the lab runs it: in batches, with noise, three finalists."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.search_sim.surfaces import Surface

from retuned.contract import Solution
from retuned.lab.generators.spaces import Grid
from retuned.ports import Finding, Generator
from retuned.stages.verdict import Interval, Reason, ShapeResult, Status, Verdict

BATCH = 4
FINALISTS = 3

Make = Callable[[Surface, int], Generator]
"""Makes a generator for a surface and a seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a search found."""

    share: float
    """Exhaustive best over the best of the finalists: 1 is the best itself."""
    needed: int | None
    """Evaluations until the true best so far was within 2 %; None if it never was."""


def replay(make: Make, surface: Surface, *, evaluations: int, seed: int) -> Outcome:
    """Run a search; the same seed is the same run."""
    grid = Grid(surface.tunable, cores=1)
    generator = make(surface, seed)
    noise = random.Random(f"{surface.name}:{seed}")
    base = surface.incumbent_us
    history: list[Finding] = []
    true: list[float] = []
    while len(history) < evaluations:
        batch = generator.propose(
            surface.tunable.definition,
            surface.workloads,
            history=tuple(history),
            count=min(BATCH, evaluations - len(history)),
        )
        if not batch:
            break
        for solution in batch:
            point = grid.point(solution.structure, solution.params)
            assert point is not None, "generators stay on the grid"
            took = surface.times_us[point]
            error = math.exp(noise.gauss(0.0, surface.noise))
            measured = None if took is None else took * error
            history.append(finding(solution, surface.tunable.incumbent, measured, base_us=base))
            true.append(math.inf if took is None else took)
    ranked = sorted(range(len(true)), key=lambda n: _measured(history[n]))
    best = min([base, *(true[n] for n in ranked[:FINALISTS])])
    needed = next((n + 1 for n in range(len(true)) if surface.best_us / true[n] >= 0.98), None)
    return Outcome(share=surface.best_us / best, needed=needed)


def finding(
    solution: Solution, incumbent: Solution, took_us: float | None, *, base_us: float
) -> Finding:
    """Return what the lab would say after the search; None was out of shared memory."""
    shapes: tuple[ShapeResult, ...] = ()
    speedup = None
    if took_us is not None:
        ratio = base_us / took_us
        speedup = Interval(lower=ratio, point=ratio, upper=ratio, confidence=0.95)
        shapes = (
            ShapeResult(
                axes={"M": 1},
                weight=1.0,
                incumbent_us=base_us,
                candidate_us=took_us,
                speedup=speedup,
            ),
        )
    verdict = Verdict(
        status=Status.REJECT,
        reason=Reason.OVER_LIMIT if took_us is None else Reason.LOST_SEARCH,
        gate="G2" if took_us is None else "G5",
        candidate=solution.digest,
        incumbent=incumbent.digest,
        speedup=speedup,
        shapes=shapes,
    )
    return Finding(solution=solution, verdict=verdict, seconds=0.0)


def _measured(finding: Finding) -> float:
    shapes = finding.verdict.shapes
    return shapes[0].candidate_us if shapes else math.inf

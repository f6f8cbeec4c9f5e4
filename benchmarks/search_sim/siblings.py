"""Sizes of one kernel: surfaces that resemble each other, and some that only look so."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Sequence

from benchmarks.search_sim.replay import finding
from benchmarks.search_sim.surfaces import Surface

from retuned.contract import Digest, digest_of
from retuned.lab.generators import SearchGenerator
from retuned.lab.generators.prior_fit import Past, learn_priors
from retuned.lab.generators.priors import Priors
from retuned.lab.generators.spaces import Grid, Point
from retuned.ports import Finding

HERE: Digest = digest_of("simulated")
BATCH = 4


def sibling(surface: Surface, *, number: int, spread: float) -> Surface:
    """Return another size of a made-up kernel: the same law, with a new random change per value.

    Parameters
    ----------
    surface
        The kernel at the size that is held out.
    number
        Which sibling.
    spread
        Standard deviation of what each value of each parameter does more, or less, than there; in
        logarithms. Single points differ by half of it beside.
    """
    chance = random.Random(f"{surface.name}:sibling:{number}")
    bends: dict[tuple[str, int, int], float] = {}
    times: dict[Point, float | None] = {}
    for point, took in sorted(surface.times_us.items()):
        keys = [(point.structure, axis, place) for axis, place in enumerate(point.places)]
        for key in keys:
            bends.setdefault(key, chance.gauss(0.0, spread))
        own = chance.gauss(0.0, spread / 2)
        more = sum(bends[key] for key in keys) + own
        times[point] = None if took is None else took * math.exp(more)
    return dataclasses.replace(surface, name=f"{surface.name}, size {number}", times_us=times)


def shuffled(surface: Surface, *, number: int) -> Surface:
    """Return a kernel that has only the space in common: every point has another's time."""
    chance = random.Random(f"{surface.name}:unrelated:{number}")
    points = sorted(surface.times_us)
    incumbent = Grid(surface.tunable, cores=1).point(
        surface.tunable.incumbent.structure, surface.tunable.incumbent.params
    )
    others = [point for point in points if point != incumbent]
    times = [surface.times_us[point] for point in others]
    chance.shuffle(times)
    mixed = dict(zip(others, times, strict=True))
    assert incumbent is not None, "incumbents are on their grid"
    mixed[incumbent] = surface.times_us[incumbent]
    return dataclasses.replace(surface, name=f"{surface.name}, unrelated", times_us=mixed)


def inverted(surface: Surface) -> Surface:
    """Return what a lie would look like: the best is the worst, and the worst the best."""
    known = [took for took in surface.times_us.values() if took is not None]
    middle = 2.0 * math.log(math.sqrt(min(known) * max(known)))
    times = {
        point: None if took is None else math.exp(middle - math.log(took))
        for point, took in surface.times_us.items()
    }
    return dataclasses.replace(surface, name=f"{surface.name}, inverted", times_us=times)


def priors_from(surfaces: Sequence[Surface], *, seed: int) -> Priors:
    """Search every surface with the usual budget, and learn from what was found, failures too."""
    past = [
        Past(finding=each, experiment=surface.name, environment=HERE, arch="", age_days=0.0)
        for surface in surfaces
        for each in _searched(surface, seed=seed)
    ]
    language = str(surfaces[0].tunable.incumbent.language)
    return learn_priors(past, family="simulated", language=language, environment=HERE, arch="")


def _searched(surface: Surface, *, seed: int) -> list[Finding]:
    grid = Grid(surface.tunable, cores=1)
    search = SearchGenerator(surface.tunable, cores=1, seed=seed)
    noise = random.Random(f"{surface.name}:{seed}:past")
    budget = max(8, math.ceil(len(surface.times_us) / 10))
    history: list[Finding] = []
    while len(history) < budget:
        batch = search.propose(
            surface.tunable.definition, surface.workloads, history=history, count=BATCH
        )
        if not batch:
            break
        for solution in batch:
            point = grid.point(solution.structure, solution.params)
            assert point is not None, "searches stay on the grid"
            took = surface.times_us[point]
            measured = None if took is None else took * math.exp(noise.gauss(0.0, surface.noise))
            base = surface.incumbent_us
            history.append(finding(solution, surface.tunable.incumbent, measured, base_us=base))
    return history

"""Uniform sampling: what benchmarks and tests compare a generator with."""

from __future__ import annotations

import random
from collections.abc import Sequence

from retuned.contract import Definition, Solution, Workload
from retuned.lab.generators.spaces import Grid, Tunable, require_definition
from retuned.ports import Finding


class RandomGenerator:
    """Proposes valid points in an order that the seed fixes; learns nothing.

    Parameters
    ----------
    tunable
        Kernel to propose variants of.
    cores
        Cores a launch may use.
    seed
        Same seed, same order.
    structures
        Only these; empty means all.
    """

    name = "random"

    def __init__(
        self, tunable: Tunable, *, cores: int, seed: int, structures: Sequence[str] = ()
    ) -> None:
        self._grid = Grid(tunable, cores=cores, structures=structures)
        self._order = sorted(self._grid.points)
        random.Random(seed).shuffle(self._order)

    def propose(
        self,
        definition: Definition,
        workloads: Sequence[Workload],
        *,
        history: Sequence[Finding],
        count: int,
    ) -> Sequence[Solution]:
        """Return up to `count` variants not in `history`; empty means the space is exhausted.

        Raises
        ------
        UsageError
            If this generator was made for another definition.
        """
        del workloads
        require_definition(definition, self._grid.tunable)
        solutions = [self._grid.tunable.incumbent, *(finding.solution for finding in history)]
        tried = {self._grid.point(s.structure, s.params) for s in solutions}
        fresh = [point for point in self._order if point not in tried]
        return [self._grid.solution(point) for point in fresh[:count]]

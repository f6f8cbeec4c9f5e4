"""Winners from elsewhere as first guesses here: another device, another size of the same operator.

Kernels tuned for one architecture are wrong for the next, but some of their choices help: the
structure, the elements per thread, the depth of the pipeline. Parameters are translated by the
capacities of the two devices, moved to the nearest point that can be built here, and measured like
any others. No evidence is carried over.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from retuned.contract import Definition, Digest, Guard, Solution, TrustClass, Workload
from retuned.lab.generators.devices import DeviceFacts, facts_of
from retuned.lab.generators.space_inference import VEC
from retuned.lab.generators.spaces import (
    THREADS,
    Grid,
    Params,
    Point,
    Tunable,
    require_definition,
)
from retuned.ports import Finding
from retuned.stages.verdict import Status

_WARPS, _STAGES = "num_warps", "num_stages"
_FAR = 16.0
"""Distance, in halvings and doublings, that stands for a word that differs."""
_MOST = 8
"""Most earlier findings that are looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Earlier:
    """A finding of an earlier experiment."""

    finding: Finding
    """What was found."""
    environment: Digest
    """Digest of the environment it was found in."""
    arch: str = ""
    """Architecture of that environment; empty where it is not known."""
    workloads: tuple[Workload, ...] = ()
    """Shapes it was measured at."""


class PortingGenerator:
    """Proposes earlier winners, translated; deterministic for what it was given.

    Parameters
    ----------
    tunable
        Kernel to propose variants of.
    cores
        Cores a launch may use.
    device
        Where variants are to run.
    earlier
        Findings from other environments or of other sizes of the operator.
    structures
        Only these; empty means all, earlier winners' own sources among them.
    """

    name = "porting"

    def __init__(
        self,
        tunable: Tunable,
        *,
        cores: int,
        device: DeviceFacts,
        earlier: Sequence[Earlier],
        structures: Sequence[str] = (),
    ) -> None:
        self._grid = Grid(tunable, cores=cores, structures=structures)
        self._device = device
        self._structures = frozenset(structures)
        winners = [each for each in earlier if _is_winner(each)]
        self._earlier = sorted(winners, key=_worth, reverse=True)[:_MOST]

    def propose(
        self,
        definition: Definition,
        workloads: Sequence[Workload],
        *,
        history: Sequence[Finding],
        count: int,
    ) -> Sequence[Solution]:
        """Return up to `count` variants not in `history`; empty once every winner was handed on.

        Raises
        ------
        UsageError
            If this generator was made for another definition.
        """
        del workloads
        require_definition(definition, self._grid.tunable)
        taken = {finding.solution.digest for finding in history}
        taken.add(self._grid.tunable.incumbent.digest)
        chosen: list[Solution] = []
        for each in self._earlier:
            solution = self._ported(each, definition)
            if solution is not None and solution.digest not in taken:
                taken.add(solution.digest)
                chosen.append(solution)
        return chosen[:count]

    def _ported(self, earlier: Earlier, definition: Definition) -> Solution | None:
        solution = earlier.finding.solution
        if solution.language is not self._grid.tunable.incumbent.language:
            return None
        params = translate(solution.params, source=facts_of(earlier.arch), target=self._device)
        point = nearest(self._grid, solution.structure, params)
        if point is not None:
            return self._grid.solution(point)
        if solution.definition != definition.name or self._structures:
            return None
        # A source outside every space: its launch options are translated, its sizes stay.
        options = {n: params[n] for n in (_WARPS, _STAGES, VEC, THREADS) if n in params}
        return solution.model_copy(
            update={
                "params": {**solution.params, **options},
                "guard": Guard(),
                "trust": TrustClass.GENERATED,
                "author": f"ported from {earlier.arch or 'elsewhere'}"[:120],
            }
        )


def translate(
    params: Params, *, source: DeviceFacts | None, target: DeviceFacts
) -> dict[str, int | str]:
    """Return parameters that ask as much of one device as they did of another.

    Parameters
    ----------
    params
        As they were tuned.
    source
        Where they were tuned; None where that is not known.
    target
        Where they are to be used.

    Examples
    --------
    >>> from retuned.lab.generators.devices import GPUS
    >>> tuned = {"BLOCK": 1024, "num_warps": 8, "num_stages": 4}
    >>> translate(tuned, source=GPUS["sm_90"], target=GPUS["gfx942"])
    {'BLOCK': 1024, 'num_warps': 4, 'num_stages': 2}
    """
    found = dict(params)
    if source is not None and source.is_gpu and target.is_gpu:
        if isinstance(found.get(_WARPS), int):
            threads = int(found[_WARPS]) * source.lanes  # as many threads as before
            found[_WARPS] = min(max(1, threads // target.lanes), target.most_warps)
        if isinstance(found.get(_STAGES), int) and source.shared_bytes and target.shared_bytes:
            # Each stage is a copy of the tiles in shared memory.
            room = math.sqrt(target.shared_bytes / source.shared_bytes)
            found[_STAGES] = max(1, min(8, round(int(found[_STAGES]) * min(room, 1.0))))
    if isinstance(found.get(VEC), int):
        wider = source is not None and found[VEC] == source.vector_bytes
        most = target.vector_bytes
        found[VEC] = most if wider else min(int(found[VEC]), most)
    if isinstance(found.get(THREADS), int):
        found[THREADS] = max(1, min(int(found[THREADS]), target.units))
    return found


def nearest(grid: Grid, structure: str, params: Params) -> Point | None:
    """Return the point of a structure that is nearest to some parameters, in doublings.

    None if the structure is unknown or shares no parameter with them. Parameters that only one side
    has do not count.
    """
    space = grid.spaces.get(structure)
    if space is None or not space.params.keys() & params.keys():
        return None
    own = [point for point in grid.points if point.structure == structure]
    return min(own, key=lambda point: (_distance(grid.params(point), params), point), default=None)


def _distance(point: Mapping[str, int | str], wanted: Params) -> float:
    total = 0.0
    for name in point.keys() & wanted.keys():
        here, there = point[name], wanted[name]
        if isinstance(here, int) and isinstance(there, int) and min(here, there) >= 0:
            total += (math.log2(1 + here) - math.log2(1 + there)) ** 2
        elif here != there:
            total += _FAR
    return total


def _worth(earlier: Earlier) -> tuple[bool, float, str]:
    """Rank a finding: winners first, then by the lower bound of their speedup."""
    verdict = earlier.finding.verdict
    lower = verdict.speedup.lower if verdict.speedup is not None else 0.0
    return verdict.status is Status.PROMOTE, lower, earlier.finding.solution.digest


def _is_winner(earlier: Earlier) -> bool:
    """Whether it was faster than its incumbent; slower variants are not used as seeds."""
    verdict = earlier.finding.verdict
    faster = verdict.speedup is not None and verdict.speedup.lower > 1.0
    return verdict.status is Status.PROMOTE or faster
